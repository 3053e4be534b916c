"""A table of the paper beside ours: Markdown to read, CSV to compute with, LaTeX to print."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence

from projects.PaperTables.cells import Cell
from projects.PaperTables.columns import COLUMNS
from projects.PaperTables.spread import mean_and_spread

NONE = "–"


def ours(cell: Cell) -> str:
    """What we have for a cell: a number only of finished evaluations, and how many of the seeds it stands for."""
    if not cell.jobs:
        return NONE
    values = cell.values()
    if not values:
        return next((job.state for job in cell.jobs if job.state != "not run"), "not run")
    text = mean_and_spread(values, COLUMNS[cell.column].digits)
    return text if len(values) == len(cell.jobs) else f"{text} ({len(values)} of {len(cell.jobs)} seeds)"


def as_markdown(cells: list[Cell], title: str, notes: Sequence[str]) -> str:
    """A pair of columns, paper and ours, for each of the table's; notes below."""
    rows, columns = _names(cells)
    by_place = {(cell.row, cell.column): cell for cell in cells}
    head = " | ".join(f"{column}: paper | ours" for column in columns)
    lines = [f"## {title}", "", f"| | {head} |", "|---" * (1 + 2 * len(columns)) + "|"]
    for row in rows:
        pairs = [f"{_paper(by_place[row, column])} | {ours(by_place[row, column])}" for column in columns]
        lines.append(f"| {row} | {' | '.join(pairs)} |")
    return "\n".join([*lines, "", *notes])


def as_csv(cells: list[Cell]) -> str:
    """A line a cell: row, column, the paper's value, our mean, deviation, values, seeds wanted, state."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "paper", "mean", "deviation", "values", "seeds", "state"])
    for cell in cells:
        values = cell.values()
        deviation = statistics.stdev(values) if len(values) > 1 else ""
        numbers = [statistics.mean(values) if values else "", deviation, " ".join(map(str, values)), len(cell.jobs)]
        state = "finished" if values and len(values) == len(cell.jobs) else ours(cell)
        writer.writerow([cell.row, cell.column, "" if cell.paper is None else cell.paper, *numbers, state])
    return text.getvalue()


def as_latex(cells: list[Cell], title: str) -> str:
    """A ``tabular`` for booktabs, each cell ``paper / ours``."""
    rows, columns = _names(cells)
    by_place = {(cell.row, cell.column): cell for cell in cells}
    lines = [
        f"% {title}: paper / ours",
        f"\\begin{{tabular}}{{l{'c' * len(columns)}}}",
        "\\toprule",
        " & ".join(["", *map(_escaped, columns)]) + " \\\\",
        "\\midrule",
    ]
    for row in rows:
        pairs = [f"{_paper(by_place[row, column])} / {ours(by_place[row, column])}" for column in columns]
        lines.append(" & ".join(map(_escaped, [row, *pairs])) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _names(cells: list[Cell]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(cell.row for cell in cells)), list(dict.fromkeys(cell.column for cell in cells))


def _paper(cell: Cell) -> str:
    return NONE if cell.paper is None else str(cell.paper)


def _escaped(text: str) -> str:
    for plain, latex in (("&", "\\&"), ("%", "\\%"), ("_", "\\_"), ("±", "$\\pm$"), ("–", "--")):
        text = text.replace(plain, latex)
    return text
