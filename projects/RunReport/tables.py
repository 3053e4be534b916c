"""Tables of text: from any JSON, from the scores of runs, from what their settings have apart."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from projects.RunReport.collect import Evaluation, Run, flat
from revisit.config import add_revisit_config

from detectron2.config import get_cfg

MOST_ROWS = 300
MOST_ITEMS = 8  # of a list in a cell
ABSENT = "–"
UNTOLD = ("OUTPUT_DIR", "VERSION")  # settings that say nothing about a run


@dataclass(frozen=True)
class Table:
    """Rows of text under headers."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    left_out: int = 0  # rows beyond MOST_ROWS


@dataclass(frozen=True)
class Line:
    """A setting or fact in every run."""

    key: str
    default: str
    values: list[str]
    differs: bool  # between the runs


def as_text(value: object) -> str:
    """A value for a cell: numbers to four digits, short lists whole."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        shown = ", ".join(as_text(item) for item in value[:MOST_ITEMS])
        return f"{shown}, … ({len(value)} in all)" if len(value) > MOST_ITEMS else shown or "()"
    if isinstance(value, dict):
        return ", ".join(f"{key} {as_text(item)}" for key, item in value.items()) or "{}"
    return str(value)


def from_json(content: object, title: str = "") -> list[Table]:
    """Any JSON as tables: the plain values of a dict, then a table for each nested one.

    Dicts of alike dicts and lists of dicts become one table with a column a key.
    """
    if isinstance(content, list) and content and all(isinstance(item, dict) for item in content):
        return [_table(title, [""], [([], item) for item in content])]
    if isinstance(content, dict) and len(content) > 1 and _alike(list(content.values())):
        return [_table(title, [""], [([str(key)], item) for key, item in content.items()])]
    if not isinstance(content, dict):
        return [Table(title, ["value"], [[as_text(content)]])]
    nested = {key: value for key, value in content.items() if _is_nested(value)}
    plain = [[str(key), as_text(value)] for key, value in content.items() if key not in nested]
    tables = [_cut(title, ["", "value"], plain)] if plain else []
    for key, value in nested.items():
        tables += from_json(value, f"{title} / {key}" if title else str(key))
    return tables


def from_csv(path: Path) -> Table:
    """A CSV file with a header."""
    with open(path, newline="", errors="replace") as file:
        rows = [[cell or ABSENT for cell in row] for row in csv.reader(file) if row]
    return _cut(path.name, rows[0] if rows else [], rows[1:])


def of_evaluation(evaluation: Evaluation) -> list[Table]:
    """The results, then the CSV files beside them."""
    tables = [] if evaluation.content is None else from_json(evaluation.content)
    return tables + [from_csv(path) for path in evaluation.tables if path.suffix == ".csv"]


def settings(runs: list[Run]) -> list[Line]:
    """Config keys that some run has apart from the defaults or from another run; those that differ first."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    defaults = flat(yaml.safe_load(cfg.dump()))
    configs = [run.config for run in runs]
    with_config = [config for config in configs if config]
    lines = []
    for key in sorted(set().union(*with_config)) if with_config else ():
        missing = object()
        found = [config.get(key, missing) for config in with_config]
        if key in UNTOLD or all(value == defaults.get(key, missing) for value in found):
            continue
        values = [_setting(config[key]) if key in config else ABSENT for config in configs]
        default = _setting(defaults[key]) if key in defaults else ABSENT
        lines.append(Line(key, default, values, any(value != found[0] for value in found)))
    return sorted(lines, key=lambda line: not line.differs)


def environments(runs: list[Run]) -> list[Line]:
    """What is known about the environment of every run; what differs first."""
    lines = []
    for key in dict.fromkeys(key for run in runs for key in run.environment):
        found = [run.environment[key] for run in runs if key in run.environment]
        values = [run.environment.get(key, ABSENT) for run in runs]
        lines.append(Line(key, "", values, len(set(found)) > 1))
    return sorted(lines, key=lambda line: not line.differs)


def _setting(value: object) -> str:
    """A config value in full, as one would type it."""
    if isinstance(value, list):
        return f"({', '.join(_setting(item) for item in value)})"
    return '""' if value == "" else str(value)


def _is_nested(value: object) -> bool:
    return (isinstance(value, dict) and bool(value)) or (
        isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    )


def _alike(values: list[object]) -> bool:
    """Whether dicts of plain values share most of their keys."""
    if not all(isinstance(value, dict) and value and not any(map(_is_nested, value.values())) for value in values):
        return False
    return len(set.intersection(*map(set, values))) * 2 >= len(set.union(*map(set, values)))


def _table(title: str, first: list[str], entries: Iterable[tuple[list[str], dict]]) -> Table:
    """A row an entry: what names it, then its values under the keys that occur."""
    entries = list(entries)
    keys = list(dict.fromkeys(key for _, item in entries for key in item))
    headers = [*first[: len(entries[0][0])], *map(str, keys)]
    return _cut(title, headers, [[*named, *(as_text(item.get(key)) for key in keys)] for named, item in entries])


def _cut(title: str, headers: list[str], rows: list[list[str]]) -> Table:
    return Table(title, headers, rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS))
