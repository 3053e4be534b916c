"""Tables of text: from any JSON, from CSV files, and of what differs in the runs' settings and environments."""

from pathlib import Path
from typing import NamedTuple

import yaml

from projects.Reports.collect import ReportedRun
from revisit.config import add_revisit_config
from revisit.errors import UserError, first_line, translated, without_secrets
from revisit.keys import dotted_keys
from revisit.markdown import CsvLines

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
        return _list_as_text(value)
    if isinstance(value, dict):
        items = [f"{key} {as_text(item)}" for key, item in value.items()]
        return ", ".join(items) or "{}"
    return without_secrets(str(value))


def _list_as_text(values: list) -> str:
    shown = ", ".join(map(as_text, values[:MOST_ITEMS]))
    if len(values) > MOST_ITEMS:
        return f"{shown}, … ({len(values)} in all)"
    return shown or "()"


def from_json(content: object, title: str = "") -> list[TextTable]:
    """Any JSON as tables: the plain values of a dict, then a table for each nested one; alike dicts share one."""
    if isinstance(content, list) and _is_nested(content):
        return [_of_dicts(title, content)]
    if not isinstance(content, dict):
        return [TextTable(title, ["value"], [[as_text(content)]])]
    if len(content) > 1 and _alike(list(content.values())):
        named = [{"": key, **item} for key, item in content.items()]
        return [_of_dicts(title, named)]
    return _of_levels(title, content)


def _of_levels(title: str, content: dict) -> list[TextTable]:
    """A table of the plain values, if there are any; then those of each nested value, under the path of its keys."""
    nested = {key: value for key, value in content.items() if _is_nested(value)}
    plain = [[str(key), as_text(value)] for key, value in content.items() if key not in nested]
    tables = [TextTable(title, ["", "value"], plain)] if plain else []
    for key, value in nested.items():
        path = f"{title} / {key}" if title else key
        tables += from_json(value, path)
    return tables


def from_csv(path: Path) -> TextTable:
    """A CSV file with a header."""
    with translated(f"reading {path}", content=True), open(path, newline="", errors="replace") as file:
        lines = [line for line in CsvLines(file) if line]
    rows = [[cell or ABSENT for cell in line] for line in lines]
    headers = rows[0] if rows else []
    return TextTable(path.name, headers, rows[1:])


def of_evaluation(content: object, files: list[Path]) -> list[TextTable]:
    """The results, then the CSV files next to them."""
    tables = [] if content is None else from_json(content)
    for path in files:
        if path.suffix == ".csv":
            try:
                tables.append(from_csv(path))
            except UserError as error:
                tables.append(TextTable(path.name, ["not shown"], [[first_line(error)]]))
    return tables


def settings(runs: list[ReportedRun]) -> list[ComparedLine]:
    """Config keys in which some run departs from the defaults or from another run; those that differ first."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    defaults = _typed(dotted_keys(yaml.safe_load(cfg.dump())))
    columns = [_typed(run.config) for run in runs]
    lines = []
    for key in sorted(set().union(*columns) - NOT_SHOWN):
        default = defaults.get(key, ABSENT)
        values = [column.get(key, ABSENT) for column in columns]
        distinct = {value for column, value in zip(columns, values, strict=True) if column}  # a run may have no config
        if distinct != {default}:
            lines.append(ComparedLine(key, default, values, len(distinct) > 1))
    return sorted(lines, key=_is_alike)


def environments(runs: list[ReportedRun]) -> list[ComparedLine]:
    """What is known about the environment of every run; what differs first."""
    keys = dict.fromkeys(key for run in runs for key in run.environment)
    lines = []
    for key in keys:
        values = [run.environment.get(key, ABSENT) for run in runs]
        distinct = set(values) - {ABSENT}
        lines.append(ComparedLine(key, "", values, len(distinct) > 1))
    return sorted(lines, key=_is_alike)


def _is_alike(line: ComparedLine) -> bool:
    return not line.differs


def _typed(config: dict[str, object]) -> dict[str, str]:
    return {key: _setting(value) for key, value in config.items()}


def _setting(value: object) -> str:
    """A config value in full, as one would type it."""
    if isinstance(value, list):
        return f"({', '.join(map(_setting, value))})"
    return without_secrets(str(value)) or '""'


def _is_nested(value: object) -> bool:
    """Whether a value needs a table of its own: a dict or a list of dicts, with something in it."""
    items = [value] if isinstance(value, dict) else value
    if not value or not isinstance(items, list):
        return False
    return all(isinstance(item, dict) for item in items)


def _alike(values: list[object]) -> bool:
    """Whether dicts of plain values share most of their keys."""
    if not all(map(_is_plain_dict, values)):
        return False
    keys = [set(value) for value in values]
    shared, occurring = set.intersection(*keys), set.union(*keys)
    return 2 * len(shared) >= len(occurring)


def _is_plain_dict(value: object) -> bool:
    """Whether a value is a dict with something in it, and nothing that needs a table of its own."""
    if not isinstance(value, dict) or not value:
        return False
    return not any(map(_is_nested, value.values()))


def _of_dicts(title: str, dicts: list[dict]) -> TextTable:
    """A row for each dict, its values under the keys that occur."""
    keys = list(dict.fromkeys(key for item in dicts for key in item))
    rows = [[as_text(item.get(key)) for key in keys] for item in dicts]
    return TextTable(title, keys, rows)
