"""The folder that ToyScenes goes to: when it may be made or replaced, and how it appears at once."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from revisit.errors import UserError

RECORD = "toy_scenes.json"
_TOP_LEVEL = {RECORD, "object_centric", "coco", "VOC2007", "cityscapes", "NYUD_MT", "DAVIS"}
_COUNTED = {".jpg", ".png", ".npy"}


def is_already_there(output: Path, record: dict) -> bool:
    """Whether ``output`` holds exactly the data set that ``record`` describes; False if it is free.

    Args:
        output: a folder, which need not exist.
        record: what RECORD would say, with "layout_version" and with "counts", the number of pictures and
            maps below each folder.

    Raises:
        UserError: ``output`` holds anything else.
    """
    if _is_free(output):
        return False
    found = _read_record(output)
    if found is None:
        raise UserError(
            f"{output} exists and is not ToyScenes (a folder with {RECORD}); "
            "expected a new or empty folder: choose another --output"
        )
    asked_for = record.keys() - {"layout_version", "counts"}
    differing = [key for key in record if key in asked_for and found.get(key) != record[key]]
    if differing:
        change = ", ".join(f"{key} {found.get(key)} (asked for: {record[key]})" for key in differing[:3])
        raise UserError(
            f"{output} already holds ToyScenes with {change}: choose another --output, or replace it with --overwrite"
        )
    layout, expected = found.get("layout_version", 1), record["layout_version"]  # the first was not written down
    if layout != expected:
        raise UserError(
            f"{output} holds ToyScenes in layout version {layout}, expected {expected}, which has other files: "
            "draw it again with --overwrite, its pictures stay the same"
        )
    for folder, count in record["counts"].items():
        files = sum(1 for path in (output / folder).rglob("*") if path.suffix in _COUNTED)
        if files != count:
            raise UserError(
                f"{output / folder} holds {files} pictures or maps, expected {count}: "
                "draw the data set again with --overwrite"
            )
    return True


def check_replaceable(output: Path) -> None:
    """Raises UserError unless ``output`` is free or holds ToyScenes and nothing else."""
    if _is_free(output):
        return
    if _read_record(output) is None:
        raise UserError(
            f"{output} exists and is not ToyScenes (a folder with {RECORD}), so --overwrite does not "
            "delete it: choose another --output"
        )
    foreign = sorted(path.name for path in output.iterdir() if path.name not in _TOP_LEVEL)
    if foreign:
        raise UserError(
            f"{output} also holds {foreign[0]}, which is not part of ToyScenes, so --overwrite does not "
            "delete it: move it away, or choose another --output"
        )


@contextmanager
def all_or_nothing(output: Path) -> Iterator[Path]:
    """A new folder next to ``output`` that takes its place on success and vanishes on any failure."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    replaced = output.with_name(f".{output.name}.replaced-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        if output.exists():
            output.rename(replaced)
        partial.rename(output)
    except BaseException:
        if replaced.exists() and not output.exists():
            replaced.rename(output)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _is_free(output: Path) -> bool:
    return not output.exists() or (output.is_dir() and not any(output.iterdir()))


def _read_record(output: Path) -> dict | None:
    try:
        record = json.loads((output / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "generator_version" in record else None
