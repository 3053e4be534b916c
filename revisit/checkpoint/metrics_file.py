"""The numbers that a run has written, for what needs no torch to read them."""

import json
import math
import sys
from pathlib import Path

from revisit.errors import UserError, expect

OF_TRAINING = "total_loss"  # what every line of training has


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """metrics.json -> (iteration, value) pairs by name, in order: numbers alone, without a line that a killed run left
    torn. Where training has stepped back, as a run does that resumes, what was written beyond that step is left out.

    Raises:
        UserError: a file of something else.
    """
    series: dict[str, dict[int, float]] = {}
    trained = -1  # the iteration of the last line of training: those of scores may precede it
    for line in _lines(path):
        try:
            values = json.loads(line)
        except ValueError:
            continue
        expect(
            isinstance(values, dict) and isinstance(values.get("iteration"), int),
            f"{path}: {line[:100]!r}: expected lines with an iteration and its metrics",
        )
        iteration = values.pop("iteration")
        numbers = {name: value for name, value in values.items() if is_number(value)}
        if OF_TRAINING in numbers:
            if iteration < trained:
                series = {name: _until(iteration, values) for name, values in series.items()}
            trained = iteration
        for name, value in numbers.items():
            series.setdefault(name, {})[iteration] = value
    return {name: sorted(values.items()) for name, values in series.items() if values}


def _until(iteration: int, values: dict[int, float]) -> dict[int, float]:
    return {n: value for n, value in values.items() if n <= iteration}


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number that a float holds: its whole numbers may have any length."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)


def last_metric(folder: Path, name: str) -> float:
    """The last value of a metric of a run; NaN where it has none."""
    file = folder / "metrics.json"
    series = read_metrics(file).get(name, []) if file.is_file() else []
    return series[-1][1] if series else math.nan


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no text ({error}): expected a run's metrics") from error
