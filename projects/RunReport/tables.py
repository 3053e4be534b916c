"""Tables of text: from any JSON, from CSV files, and of what differs in the runs' settings and environments."""

import csv
from pathlib import Path
from typing import NamedTuple

import yaml

from projects.RunReport.collect import ReportedRun
from revisit.config import add_revisit_config
from revisit.keys import dotted_keys

from detectron2.config import get_cfg

MOST_ITEMS = 8  # of a list in a cell
ABSENT = "–"
NOT_SHOWN = {"OUTPUT_DIR", "VERSION"}  # settings that say nothing about a run


class TextTable(NamedTuple):
    """Rows of text under headers."""

    title: str
    headers: list[str]
    rows: list[list[str]]


class ComparedLine(NamedTuple):
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
    if isinstance(value, list):
        shown = ", ".join(as_text(item) for item in value[:MOST_ITEMS])
        return f"{shown}, … ({len(value)} in all)" if len(value) > MOST_ITEMS else shown or "()"
    if isinstance(value, dict):
        return ", ".join(f"{key} {as_text(item)}" for key, item in value.items()) or "{}"
    return str(value)


def from_json(content: object, title: str = "") -> list[TextTable]:
    """Any JSON as tables: the plain values of a dict, then a table for each nested one; alike dicts share one."""
    if isinstance(content, list) and _is_nested(content):
        return [_of_dicts(title, content)]
    if not isinstance(content, dict):
        return [TextTable(title, ["value"], [[as_text(content)]])]
    if len(content) > 1 and _alike(list(content.values())):
        return [_of_dicts(title, [{"": key, **item} for key, item in content.items()])]
    plain = [[str(key), as_text(value)] for key, value in content.items() if not _is_nested(value)]
    tables = [TextTable(title, ["", "value"], plain)] if plain else []
    for key, value in content.items():
        tables += from_json(value, f"{title} / {key}" if title else key) if _is_nested(value) else []
    return tables


def from_csv(path: Path) -> TextTable:
    """A CSV file with a header."""
    with open(path, newline="", errors="replace") as file:
        headers, *rows = [[cell or ABSENT for cell in row] for row in csv.reader(file) if row] or [[]]
    return TextTable(path.name, headers, rows)


def of_evaluation(content: object, files: list[Path]) -> list[TextTable]:
    """The results, then the CSV files beside them."""
    tables = [] if content is None else from_json(content)
    return tables + [from_csv(path) for path in files if path.suffix == ".csv"]


def settings(runs: list[ReportedRun]) -> list[ComparedLine]:
    """Config keys in which some run departs from the defaults or from another run; those that differ first."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    configs = [dotted_keys(yaml.safe_load(cfg.dump())), *(run.config for run in runs)]
    defaults, *columns = ({key: _setting(value) for key, value in config.items()} for config in configs)
    lines = []
    for key in sorted(set().union(*columns) - NOT_SHOWN):
        default, *values = (column.get(key, ABSENT) for column in (defaults, *columns))
        present = {column.get(key, ABSENT) for column in columns if column}
        lines += [ComparedLine(key, default, values, len(present) > 1)] if present != {default} else []
    return sorted(lines, key=lambda line: not line.differs)


def environments(runs: list[ReportedRun]) -> list[ComparedLine]:
    """What is known about the environment of every run; what differs first."""
    keys = dict.fromkeys(key for run in runs for key in run.environment)
    rows = [(key, [run.environment.get(key, ABSENT) for run in runs]) for key in keys]
    lines = [ComparedLine(key, "", values, len({*values} - {ABSENT}) > 1) for key, values in rows]
    return sorted(lines, key=lambda line: not line.differs)


def _setting(value: object) -> str:
    """A config value in full, as one would type it."""
    return f"({', '.join(map(_setting, value))})" if isinstance(value, list) else str(value) or '""'


def _is_nested(value: object) -> bool:
    """Whether a value needs a table of its own: a dict or a list of dicts, with something in it."""
    items = [value] if isinstance(value, dict) else value
    return bool(value) and isinstance(items, list) and all(isinstance(item, dict) for item in items)


def _alike(values: list[object]) -> bool:
    """Whether dicts of plain values share most of their keys."""
    if not all(isinstance(value, dict) and value and not any(map(_is_nested, value.values())) for value in values):
        return False
    return len(set.intersection(*map(set, values))) * 2 >= len(set.union(*map(set, values)))


def _of_dicts(title: str, dicts: list[dict]) -> TextTable:
    """A row for each dict, its values under the keys that occur."""
    keys = list(dict.fromkeys(key for item in dicts for key in item))
    return TextTable(title, keys, [[as_text(item.get(key)) for key in keys] for item in dicts])
