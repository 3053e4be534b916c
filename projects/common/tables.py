"""Tables of results as text: Markdown to read, CSV to compute with; a number with its spread over seeds."""

import csv
import functools
import io
import json
import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path


def score_in(file: Path, names: Sequence[str]) -> float:
    """The number of a JSON file of results that stands below these names, level by level."""
    return float(functools.reduce(operator.getitem, names, json.loads(file.read_text())))


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table without a line end after it."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *rows))


def csv_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file with its last line end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headers, *rows])
    return text.getvalue()


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds; of a single one 0, and NaN where a value is NaN."""
    if any(map(math.isnan, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def mean_and_spread(values: Sequence[float], digits: int) -> str:
    """``mean ± standard deviation``, of a single value it alone; a result may have null for a score."""
    if any(map(math.isnan, values)):
        return "undefined"
    spread = f" ± {deviation(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"
