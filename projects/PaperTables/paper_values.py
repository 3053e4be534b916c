"""The numbers that the paper prints, and nothing else."""

from __future__ import annotations

import functools
import json
from pathlib import Path

Table = dict[str, dict[str, float | None]]  # row -> column -> value; None where the paper prints none

_FILE = Path(__file__).with_name("paper_tables.json")


def paper_table(name: str) -> Table:
    """One of the paper's tables, rows and columns by the names of paper_tables.json.

    Tables of a single column, which the file keeps as plain values, are of VOC_SVM_mAP.
    """
    table = _tables()[name]
    if name == "knn":
        values = {f"k {k}": value for k, value in table["k"].items()}
        values |= {f"lambda {weight}": value for weight, value in table["lambda"].items()}
        values |= {
            "mined before the head": table["mined_before_head"],
            "mined after the head": table["mined_after_head"],
        }
        return {row: {"VOC_SVM_mAP": value} for row, value in values.items()}
    if "cols" not in table:
        return {row: {"VOC_SVM_mAP": value} for row, value in table["rows"].items()}
    return {row: dict(zip(table["cols"], values, strict=True)) for row, values in table["rows"].items()}


def note_of(name: str) -> str:
    """What the paper's table was made with."""
    return _tables()[name].get("note", "")


@functools.cache
def _tables() -> dict:
    return json.loads(_FILE.read_text())
