const content = JSON.parse(document.getElementById("content").textContent);
const byId = (id) => document.getElementById(id);
const canvas = byId("map"), pen = canvas.getContext("2d"), tip = byId("tip");
const STEPS = 10000, RADIUS = 4, NEAR = 8, MARGIN = 24, BATCH = 300;
const total = content.names.length;
let column = content.columns[0], off = new Set(), wanted = "", chosen = -1, hovered = -1;
let view = { scale: 1, x: 0, y: 0 };

// Golden angles give neighbouring codes colours that are far apart.
const colour = (code) => `hsl(${(code * 137.5) % 360} 70% ${code % 2 ? 40 : 52}%)`;
const isShown = (row) => !off.has(column.codes[row]) && content.names[row].toLowerCase().includes(wanted);
const shownRows = () => [...Array(total).keys()].filter(isShown);

function placeOf(row) {
  const width = canvas.clientWidth - 2 * MARGIN, height = canvas.clientHeight - 2 * MARGIN;
  const x = MARGIN + (content.x[row] / STEPS) * width, y = MARGIN + (1 - content.y[row] / STEPS) * height;
  return [x * view.scale + view.x, y * view.scale + view.y];
}

function draw() {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const rows = shownRows();
  for (const row of rows) {
    dot(row, RADIUS, colour(column.codes[row]));
  }
  if (chosen >= 0) {
    for (const other of content.neighbours[chosen]) ring(other, "#000", 1);
    ring(chosen, "#d00", 3);
  }
  byId("count").textContent = `${rows.length} of ${total} shown`;
}

function dot(row, radius, fill) {
  const [x, y] = placeOf(row);
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fillStyle = fill;
  pen.fill();
}

function ring(row, stroke, width) {
  const [x, y] = placeOf(row);
  pen.beginPath();
  pen.arc(x, y, RADIUS + 2, 0, 7);
  pen.strokeStyle = stroke;
  pen.lineWidth = width;
  pen.stroke();
}

function nearestTo(x, y) {
  let best = -1, least = NEAR * NEAR;
  for (const row of shownRows()) {
    const [left, top] = placeOf(row), distance = (left - x) ** 2 + (top - y) ** 2;
    if (distance <= least) [best, least] = [row, distance];
  }
  return best;
}

function tile(row) {
  const element = document.createElement("div"), place = row % (SIDE * SIDE);
  element.className = `tile sheet${Math.floor(row / (SIDE * SIDE))}`;
  element.style.backgroundPosition = `-${(place % SIDE) * TILE}px -${Math.floor(place / SIDE) * TILE}px`;
  return element;
}

function figure(row, caption) {
  const element = document.createElement("figure"), text = document.createElement("figcaption");
  text.textContent = caption;
  element.title = content.names[row];
  element.append(tile(row), text);
  element.addEventListener("click", () => choose(row));
  return element;
}

const valueOf = (row) => column.values[column.codes[row]];

function choose(row) {
  chosen = row;
  byId("chosen").textContent = content.names[row];
  const others = content.neighbours[row].map((other, rank) =>
    figure(other, `${(content.cosines[row][rank] / 1000).toFixed(3)} ${valueOf(other)}`));
  byId("neighbours").replaceChildren(figure(row, valueOf(row)), ...others);
  draw();
}

// A long list is filled as one scrolls to its end.
function fill(elements) {
  const list = byId("list");
  const more = () => list.append(...Array.from({ length: BATCH }, () => elements.next().value).filter(Boolean));
  list.replaceChildren();
  more();
  byId("right").onscroll = ({ target }) => {
    if (target.scrollTop + 2 * target.clientHeight > target.scrollHeight) more();
  };
}

const LISTS = {
  *shown() { for (const row of shownRows()) yield figure(row, valueOf(row)); },
  *pairs() {
    for (const pair of content.pairs) {
      const rank = content.neighbours[pair[0]].indexOf(pair[1]), element = document.createElement("div");
      const cosine = rank >= 0 ? content.cosines[pair[0]][rank]
        : content.cosines[pair[1]][content.neighbours[pair[1]].indexOf(pair[0])];
      element.className = "pair";
      element.append(...pair.map((row) => figure(row, `${(cosine / 1000).toFixed(3)} ${valueOf(row)}`)));
      yield element;
    }
  },
  *lonely() {
    for (const row of content.lonely) {
      yield figure(row, content.cosines[row].length ? (content.cosines[row][0] / 1000).toFixed(3) : "");
    }
  },
};
let listed = "shown";

function showList(name) {
  listed = name;
  for (const each of Object.keys(LISTS)) byId(each).classList.toggle("on", each === name);
  fill(LISTS[name]());
}

function showLegend() {
  const counts = column.values.map(() => 0);
  for (const code of column.codes) counts[code]++;
  byId("legend").replaceChildren(...column.values.map((value, code) => {
    const line = document.createElement("li"), swatch = document.createElement("i");
    swatch.style.background = colour(code);
    line.append(swatch, `${value || "(none)"} (${counts[code]})`);
    line.classList.toggle("off", off.has(code));
    line.addEventListener("click", () => {
      off.has(code) ? off.delete(code) : off.add(code);
      update();
    });
    return line;
  }));
}

function update() {
  showLegend();
  draw();
  if (listed === "shown") showList("shown");
}

function hover(event) {
  hovered = nearestTo(event.offsetX, event.offsetY);
  tip.hidden = hovered < 0;
  if (hovered < 0) return;
  tip.firstElementChild.replaceWith(tile(hovered));
  tip.lastElementChild.textContent = `${content.names[hovered]} ${valueOf(hovered)}`;
  tip.style.left = `${Math.min(event.offsetX + 12, canvas.clientWidth - 330)}px`;
  tip.style.top = `${Math.min(event.offsetY + 12, canvas.clientHeight - 120)}px`;
}

let held = null, moved = false;
canvas.addEventListener("mousedown", (event) => { held = [event.offsetX, event.offsetY]; moved = false; });
window.addEventListener("mouseup", () => { held = null; });
canvas.addEventListener("mousemove", (event) => {
  if (held === null) return hover(event);
  const [x, y] = held;
  moved ||= Math.hypot(event.offsetX - x, event.offsetY - y) > 3;
  view.x += event.offsetX - x;
  view.y += event.offsetY - y;
  held = [event.offsetX, event.offsetY];
  draw();
});
canvas.addEventListener("click", (event) => {
  const row = nearestTo(event.offsetX, event.offsetY);
  if (row >= 0 && !moved) choose(row);
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = Math.exp(-event.deltaY / 500);
  view.scale *= factor;
  view.x = event.offsetX - factor * (event.offsetX - view.x);
  view.y = event.offsetY - factor * (event.offsetY - view.y);
  draw();
}, { passive: false });
canvas.addEventListener("dblclick", () => { view = { scale: 1, x: 0, y: 0 }; draw(); });
window.addEventListener("resize", draw);
byId("find").addEventListener("input", (event) => { wanted = event.target.value.toLowerCase(); update(); });
byId("by").append(...content.columns.map(({ name }) => new Option(name)));
byId("by").addEventListener("change", (event) => {
  column = content.columns[event.target.selectedIndex];
  off = new Set();
  update();
});
for (const name of Object.keys(LISTS)) byId(name).addEventListener("click", () => showList(name));
showLegend();
draw();
showList("shown");
