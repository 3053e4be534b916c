"""A table of the paper beside ours: Markdown to read, CSV to compute with, LaTeX to print, a sweep to look at."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from projects.common.tables import csv_table, deviation, markdown_table, mean_and_spread
from projects.PaperTables.cells import Cell
from projects.PaperTables.paper_tables import COLUMNS
from projects.Pictures.curves import saved_plot

NONE = "–"


def ours(cell: Cell, digits: int | None = None) -> str:
    """What we have for a cell: ``mean ± standard deviation`` of finished seeds alone, and how many if not all.

    ``digits`` after the point; None: as many as the column of the paper's tables has.
    """
    if not cell.jobs:
        return NONE
    values = cell.values()
    if not values:
        return next((job.state for job in cell.jobs if job.state != "not run"), "not run")
    digits = COLUMNS[cell.column].digits if digits is None else digits
    seeds = f" ({len(values)} of {len(cell.jobs)} seeds)" if len(values) < len(cell.jobs) else ""
    return f"{mean_and_spread(values, digits)}{seeds}"


def as_markdown(cells: list[Cell], title: str, notes: Sequence[str]) -> str:
    """A pair of columns, paper and ours, for each of the table's; notes below."""
    rows = _by_row(cells)
    headers = ["", *(text for cell in next(iter(rows.values())) for text in (f"{cell.column}: paper", "ours"))]
    lines = [[label, *(text for cell in row for text in (_paper(cell), ours(cell)))] for label, row in rows.items()]
    return "\n".join([f"## {title}", "", markdown_table(headers, lines), "", *notes])


def as_csv(cells: list[Cell]) -> str:
    """A line per cell: row, column, the paper's value, our mean, deviation, values, seeds wanted, state, network."""
    rows = []
    for cell in cells:
        values = cell.values()
        numbers = [statistics.mean(values) if values else "", deviation(values) if len(values) > 1 else ""]
        numbers += [" ".join(map(str, values)), len(cell.jobs)]
        state = "finished" if values and len(values) == len(cell.jobs) else ours(cell)
        rows.append([cell.row, cell.column, cell.paper, *numbers, state, cell.network])  # None leaves a cell empty
    return csv_table(["row", "column", "paper", "mean", "deviation", "values", "seeds", "state", "network"], rows)


def as_latex(cells: list[Cell], title: str) -> str:
    """A ``tabular`` for booktabs, each cell ``paper / ours``."""
    rows = _by_row(cells)
    columns = [cell.column for cell in next(iter(rows.values()))]
    lines = [["", *columns], *([label, *(f"{_paper(c)} / {ours(c)}" for c in row)] for label, row in rows.items())]
    head, *body = (" & ".join(map(_escaped, line)) + " \\\\" for line in lines)
    start = [f"% {title}: paper / ours", f"\\begin{{tabular}}{{l{'c' * len(columns)}}}", "\\toprule", head, "\\midrule"]
    return "\n".join([*start, *body, "\\bottomrule", "\\end{tabular}", ""])


def plot_sweep(cells: list[Cell], output: Path) -> None:
    """Draw our scores of the table ``knn``, if there are any, mean and deviation over seeds, against k and lambda."""
    if not any(cell.values() for cell in cells):
        return
    with saved_plot(output, columns=2, size=(5, 4)) as axes:
        axes[1].sharey(axes[0])
        for axis, swept in zip(axes, ("k", "lambda"), strict=True):
            for column in dict.fromkeys(cell.column for cell in cells):
                line = [cell for cell in cells if (cell.row.split()[0], cell.column) == (swept, column)]
                scores = {float(cell.row.split()[1]): cell.values() for cell in line if cell.values()}
                means, spreads = ([of(values) for values in scores.values()] for of in (statistics.mean, deviation))
                axis.errorbar(list(scores), means, spreads, marker="o", capsize=3, label=column)
            axis.set(xlabel=swept, ylabel="score (%)")


def _by_row(cells: list[Cell]) -> dict[str, list[Cell]]:
    return {row: [cell for cell in cells if cell.row == row] for row in dict.fromkeys(cell.row for cell in cells)}


def _paper(cell: Cell) -> str:
    return NONE if cell.paper is None else str(cell.paper)


def _escaped(text: str) -> str:
    for plain, latex in (("&", "\\&"), ("%", "\\%"), ("_", "\\_"), ("±", "$\\pm$"), ("–", "--")):
        text = text.replace(plain, latex)
    return text
