"""A writer of metrics from outside the tree: WRITERS ("table",) appends them to OUTPUT_DIR/metrics.csv."""

import csv
from pathlib import Path

from revisit.engine.writers import WRITER_REGISTRY

from detectron2.config import CfgNode
from detectron2.utils.events import EventWriter, get_event_storage


class TableWriter(EventWriter):
    """A row for each new value: iteration, name, value."""

    def __init__(self, path: Path):
        self._path = path
        self._written = -1  # the last iteration

    def write(self) -> None:
        values = get_event_storage().latest()  # by name: a value and its iteration
        rows = [(iteration, name, value) for name, (value, iteration) in values.items() if iteration > self._written]
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerows(rows)
        self._written = max([self._written, *(iteration for iteration, _, _ in rows)])


@WRITER_REGISTRY.register()
def table(cfg: CfgNode) -> TableWriter:
    return TableWriter(Path(cfg.OUTPUT_DIR) / "metrics.csv")
