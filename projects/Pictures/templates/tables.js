// A table that is wider than its place becomes a list, so that no column is hidden; one of many numbers scrolls.
const MOST_COLUMNS = 10;
function listWideTables() {
  for (const table of document.querySelectorAll("table")) {
    const [titles] = table.tHead ? table.tHead.rows : [];
    const place = table.closest("section, article");
    if (!place || !titles || titles.cells.length > MOST_COLUMNS) continue;
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => { cell.dataset.title = titles.cells[column].textContent; });
    }
    table.removeAttribute("data-list");
    table.toggleAttribute("data-list", table.scrollWidth > place.clientWidth);
  }
}
window.addEventListener("load", listWideTables);
window.addEventListener("resize", listWideTables);
