"""Tables of results as text: Markdown to read, CSV to compute with; a number with its spread over seeds."""

import csv
import functools
import io
import json
import math
import operator
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from revisit.errors import on_one_line

# How a text begins that spreadsheets take for a formula, with apostrophes of its own before it, and one that has ours.
_FORMULA = re.compile("'*[=+\\-@\t\\uff1d\\uff0b\\uff0d\\uff20]")
_ESCAPED = re.compile(f"'{_FORMULA.pattern}")


def score_in(file: Path, names: Sequence[str]) -> float:
    """The number of a JSON file of results that stands below these names, level by level."""
    return float(functools.reduce(operator.getitem, names, json.loads(file.read_text())))


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table without a line end after it. A bar in a cell is text."""
    lines = [f"| {' | '.join(map(_bars_as_text, row))} |" for row in (headers, ["---"] * len(headers), *rows)]
    return "\n".join(map(on_one_line, lines))


def _bars_as_text(text: str) -> str:
    return text.replace("|", "\\|")


def csv_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file with its last line end, as ``write_csv`` writes it."""
    text = io.StringIO()
    write_csv(text, headers, rows)
    return text.getvalue()


def write_csv(file: TextIO, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file, a line for each row, whatever texts hold. A text that a spreadsheet would compute as a formula
    gets an apostrophe before it, which ``CsvLines`` takes off; numbers stay as they are."""
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(map(_cell, headers))
    lines.writerows(map(_cell, row) for row in rows)


class CsvLines:
    """The lines of a CSV file, as they were before ``csv_table`` wrote them. May raise csv.Error."""

    def __init__(self, file: Iterable[str]):
        self._reader = csv.reader(file)

    @property
    def line_num(self) -> int:
        """The number of lines that are read."""
        return self._reader.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        return [cell[1:] if _ESCAPED.match(cell) else cell for cell in next(self._reader)]


class LongLineError(csv.Error, ValueError):
    """A line of a CSV file has more values than names."""


class CsvDicts(csv.DictReader):
    """``CsvLines`` after the first, each by the names in that one. May raise csv.Error, also of a line with more values
    than names: a comma that is not quoted would shift what follows it."""

    reader: Any

    def __init__(self, file: Iterable[str]):
        super().__init__(())
        self.reader = CsvLines(file)

    def __next__(self) -> dict:
        line = super().__next__()
        if any(line.pop(self.restkey, ())):
            names = len(self.fieldnames or ())
            raise LongLineError(f"line {self.line_num} has more than {names} values: quote a text with a comma")
        return line


def _cell(value: object) -> object:
    """A cell as it is written. A text that has the apostrophe already gets another one."""
    if isinstance(value, int | float) or value is None:
        return value
    text = on_one_line(str(value))
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
