"""What data a command reads, from its config file and its KEY VALUE pairs."""

from __future__ import annotations

import ast
import functools

from revisit.data.catalog import datasets_root, get_records
from revisit.errors import UserError

from detectron2.config import CfgNode


def missing_data(command: tuple[str, ...]) -> list[str]:
    """Data sets and folders that a command names, by its --config-file or KEY VALUE pairs, and that are not on disk."""
    missing = [name for name in _data_sets(command) if _size(name) is None]
    folder = _content(command).get("LABEL_PROPAGATION", {}).get("DATA")
    if folder and not (datasets_root() / folder).is_dir():
        missing.append(str(datasets_root() / folder))
    return missing


def data_facts(command: tuple[str, ...]) -> tuple[str, ...]:
    """How many images the command's data sets have, those of them that are on disk and have a fixed name."""
    sizes = {name: _size(name) for name in _data_sets(command) if ":" not in name}
    return tuple(f"{name}: {size} images" for name, size in sizes.items() if size is not None)


def _data_sets(command: tuple[str, ...]) -> list[str]:
    pairs = list(zip(command[-2::-2], command[::-2], strict=False))  # KEY VALUE end the line, the last one counts
    options = dict(reversed(pairs))
    data = _content(command).get("DATASETS", {})
    parts = [options.get(f"DATASETS.{part}", data.get(part, ())) for part in ("TRAIN", "TEST")]
    return list(dict.fromkeys(name for part in parts for name in _names(part)))


def _content(command: tuple[str, ...]) -> dict:
    return CfgNode.load_yaml_with_base(command[command.index("--config-file") + 1])


@functools.cache
def _size(name: str) -> int | None:
    try:
        return len(get_records(name))
    except UserError:
        return None


def _names(value: object) -> tuple[str, ...]:
    return tuple(ast.literal_eval(value)) if isinstance(value, str) else tuple(value)
