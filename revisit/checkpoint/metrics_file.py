"""The numbers that a run has written, for what needs no torch to read them."""

import json
from pathlib import Path


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """metrics.json -> (iteration, value) pairs by name, in order: without a line that a killed run left torn, and of
    iterations that a resumed run repeated with the last."""
    series: dict[str, dict[int, float]] = {}
    for line in path.read_text(errors="replace").split("\n"):
        try:
            values = json.loads(line)
            iteration = int(values.pop("iteration"))
        except (ValueError, AttributeError, KeyError, TypeError):
            continue
        for name, value in values.items():
            series.setdefault(name, {})[iteration] = value
    return {name: sorted(values.items()) for name, values in series.items()}
