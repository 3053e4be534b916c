"""Labelled images in an order that somebody has chosen: ``picked:NAME:N:FILE``, the first N of a list.

FILE is one image a line, such as selected.txt of tools/select_images.py. Larger numbers contain smaller ones.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from projects.CompareStarts.held_out import held_out_metadata
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.image_folders import load_list
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import Records
from revisit.data.sources.subsets import is_labelled
from revisit.errors import expect
from revisit.files import file_digest

if TYPE_CHECKING:  # every command registers the layout
    from projects.CompareStarts.comparison import Task

KIND = "picked"
SEED = "{seed}"


def with_pick(task: "Task", file: str, seeds: Sequence[int]) -> "Task":
    """The task whose labels the first images of a list get; ``{seed}`` in its name is the seed.

    Raises:
        UserError: no such list.
    """
    place = os.path.abspath(os.path.expanduser(file.removeprefix("list:")))
    facts = []
    for path in sorted({place.replace(SEED, str(seed)) for seed in seeds}):
        expect(os.path.isfile(path), f"--labelled {path}: no such list; tools/select_images.py makes one, selected.txt")
        facts.append(f"{path}: {file_digest(path)[:16]}")
    return replace(task, picked=place, facts=(*task.facts, *facts))


def picked_name(name: str, count: int, file: str) -> str:
    return f"{KIND}:{name}:{count}:{file}"


def load_picked(name: str, count: str, file: Path) -> LabelledSet:
    """See the module.

    Raises:
        UserError: N is no number; images have no files of their own; the list has fewer than N labelled images of the
            data set.
    """
    expect(count.isdecimal() and int(count) > 0, f"data set '{KIND}:{name}:{count}:{file}': expected a number N")
    records = get_records(name)
    expect_file_names(records, name)
    order = in_order(records, file)
    expect(len(order) >= int(count), f"{file} has {len(order)} labelled images of {name}: expected {count} or more")
    return LabelledSet(order[: int(count)], class_metadata(name))


def in_order(records: Records, file: Path) -> Records:
    """The labelled records that a list names, in its order. Raises UserError for a list that is none."""
    by_place = {os.path.realpath(record["file_name"]): record for record in records if is_labelled(record)}
    places = dict.fromkeys(os.path.realpath(each["file_name"]) for each in load_list(file))
    return [by_place[place] for place in places if place in by_place]


LABEL_LAYOUT_REGISTRY.register(LabelLayout(KIND, "NAME:N:LIST", load_picked, held_out_metadata, texts=("NAME", "N")))
