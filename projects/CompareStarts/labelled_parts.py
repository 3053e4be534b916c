"""Parts of a data set's labelled images, as data sets.

``held_out:NAME:FEWER:MORE:SEED`` are those to choose by, which are neither learned from nor tested on: those of
subset:MORE:SEED:NAME that subset:FEWER:SEED:NAME does not have. Boxes are scored against these records, as COCO's
evaluator does it, whatever file they are from.

``picked:NAME:N:FILE`` are the first N of a list, in an order that somebody has chosen. FILE is one image a line, such
as selected.txt of tools/select_images.py. Larger numbers contain smaller ones.
"""

import os
from pathlib import Path
from typing import NamedTuple

from revisit.data.sources.catalog import get_records, metadata_of_part
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.image_folders import load_list
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import Records, others_than
from revisit.data.sources.subsets import are_numbers, is_labelled, nested_subset
from revisit.errors import expect

HELD_OUT = "held_out"
PICKED = "picked"
SHARE = 0.2  # of the labelled images
LEAST = 3  # images, where at least as many are left to learn from


def load_held_out(name: str, fewer: str, more: str, seed: str) -> LabelledSet:
    """See the module. Raises UserError where FEWER, MORE and SEED are no numbers in this order of size."""
    expect(
        are_numbers(fewer, more, seed) and int(fewer) < int(more),
        f"data set '{HELD_OUT}:{name}:{fewer}:{more}:{seed}': expected numbers of images FEWER below MORE, and a seed",
    )
    records = get_records(name)
    learned = nested_subset(records, int(fewer), int(seed), name)
    labelled = nested_subset(records, int(more), int(seed), name)
    return LabelledSet(others_than(learned, labelled), class_metadata(name))


TEXTS = ("NAME", "FEWER", "MORE", "SEED")
LABEL_LAYOUT_REGISTRY.register(LabelLayout(HELD_OUT, ":".join(TEXTS), load_held_out, metadata_of_part, TEXTS))


class HeldOut(NamedTuple):
    """What rates and lengths are chosen by: a share of the labelled images, or with a ``name`` this data set, with
    its ``facts``."""

    share: float = SHARE
    name: str = ""
    facts: tuple[str, ...] = ()

    def count(self, labels: int) -> int:
        """How many of so many labelled images are held out; 0 where a data set is named."""
        if self.name:
            return 0
        return min(max(round(self.share * labels), LEAST), labels // 2)

    def data_set(self, data: str, labels: int, seed: int) -> str:
        """The name of those of the data set ``data``, the same for all starts."""
        return self.name or f"{HELD_OUT}:{data}:{labels - self.count(labels)}:{labels}:{seed}"


def read_held_out(text: str) -> HeldOut:
    """A share, such as 0.2, or the name of a data set. Raises UserError for a share that is none."""
    try:
        share = float(text)
    except ValueError:
        return HeldOut(name=text)
    expect(0 < share <= 0.5, f"--held-out {text}: expected a share above 0 and up to 0.5, or the name of a data set")
    return HeldOut(share)


def load_picked(name: str, count: str, file: Path) -> LabelledSet:
    """See the module.

    Raises:
        UserError: N is no number; images have no files of their own; the list has fewer than N labelled images of the
            data set.
    """
    expect(count.isdecimal() and int(count) > 0, f"data set '{PICKED}:{name}:{count}:{file}': expected a number N")
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


LABEL_LAYOUT_REGISTRY.register(LabelLayout(PICKED, "NAME:N:LIST", load_picked, metadata_of_part, texts=("NAME", "N")))
