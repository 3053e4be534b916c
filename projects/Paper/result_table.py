"""A table of the paper next to ours: Markdown to read, CSV to compute with, LaTeX to print, a sweep to look at."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from projects.Paper.cells import Cell
from projects.Paper.paper_tables import COLUMNS
from projects.Pictures.curves import saved_plot
from revisit.markdown import csv_table, deviation, markdown_table, mean_and_spread

NONE = "–"
# What LaTeX takes for a command; rows may be called like files.
LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%_#${}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"±": "$\\pm$", "–": "--"}
)


def ours(cell: Cell, digits: int | None = None) -> str:
    """What we have for a cell: ``mean ± standard deviation`` of finished seeds alone, and how many if not all.

    ``digits`` after the point; None: as many as the column of the paper's tables has.
    """
    if not cell.jobs:
        return NONE
    values = cell.values()
    if not values:
        begun = [job.state for job in cell.jobs if job.state != "not run"]
        return begun[0] if begun else "not run"
    if digits is None:
        digits = COLUMNS[cell.column].digits
    finished = len(values)
    wanted = len(cell.jobs)
    seeds = f" ({finished} of {wanted} seeds)" if finished < wanted else ""
    return f"{mean_and_spread(values, digits)}{seeds}"


def as_markdown(cells: list[Cell], title: str, notes: Sequence[str]) -> str:
    """A pair of columns, paper and ours, for each of the table's; notes below."""
    columns = _columns(cells)
    headers = [""]
    for column in columns:
        headers += [f"{column}: paper", "ours"]
    lines = []
    for label, row in _by_row(cells).items():
        line = [label]
        for column in columns:
            line += _pair(row.get(column))
        lines.append(line)
    table = markdown_table(headers, lines)
    return "\n".join([f"## {title}", "", table, "", *notes])


def as_csv(cells: list[Cell]) -> str:
    """A line per cell: row, column, the paper's value, our mean, deviation, values, seeds wanted, state, network."""
    rows = []
    for cell in cells:
        values = cell.values()
        mean = statistics.mean(values) if values else None  # None leaves a cell empty
        spread = deviation(values) if len(values) > 1 else None
        in_words = " ".join(map(str, values))
        wanted = len(cell.jobs)
        state = "finished" if values and len(values) == wanted else ours(cell)
        rows.append([cell.row, cell.column, cell.paper, mean, spread, in_words, wanted, state, cell.network])
    return csv_table(["row", "column", "paper", "mean", "deviation", "values", "seeds", "state", "network"], rows)


def as_latex(cells: list[Cell], title: str) -> str:
    """A ``tabular`` for booktabs, each cell ``paper / ours``."""
    columns = _columns(cells)
    head = _latex_line(["", *columns])
    body = []
    for label, row in _by_row(cells).items():
        pairs = [" / ".join(_pair(row.get(column))) for column in columns]
        body.append(_latex_line([label, *pairs]))
    places = "l" + "c" * len(columns)
    return "\n".join(
        [
            f"% {title}: paper / ours",
            f"\\begin{{tabular}}{{{places}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


def _latex_line(texts: Sequence[str]) -> str:
    return " & ".join(text.translate(LATEX) for text in texts) + " \\\\"


def plot_sweep(cells: list[Cell], output: Path) -> None:
    """Draw our scores of the table ``knn``, if there are any, mean and deviation over seeds, against k and lambda."""
    if not any(cell.values() for cell in cells):
        return
    with saved_plot(output, columns=2, size=(5, 4)) as axes:
        axes[1].sharey(axes[0])
        for axis, swept in zip(axes, ("k", "lambda"), strict=True):
            for column in dict.fromkeys(cell.column for cell in cells):
                scores = _swept_scores([cell for cell in cells if cell.column == column], swept)
                means = [statistics.mean(values) for values in scores.values()]
                spreads = [deviation(values) for values in scores.values()]
                axis.errorbar(list(scores), means, spreads, marker="o", capsize=3, label=column)
            axis.set(xlabel=swept, ylabel="score (%)")


def _swept_scores(cells: list[Cell], swept: str) -> dict[float, list[float]]:
    """By the value of what is swept, the scores of the rows ``SWEPT VALUE`` that have some."""
    scores = {}
    for cell in cells:
        words = cell.row.split()
        values = cell.values()
        if words[0] == swept and values:
            scores[float(words[1])] = values
    return scores


def _by_row(cells: list[Cell]) -> dict[str, dict[str, Cell]]:
    """By row and column; of some cells alone rows have other columns."""
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, {})[cell.column] = cell
    return rows


def _columns(cells: list[Cell]) -> list[str]:
    """Those of any row, each once."""
    return list(dict.fromkeys(cell.column for cell in cells))


def _pair(cell: Cell | None) -> tuple[str, str]:
    """What the paper has for a cell, and what we have."""
    if cell is None:
        return NONE, NONE
    return NONE if cell.paper is None else str(cell.paper), ours(cell)
