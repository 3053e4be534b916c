"""A data set in training, validation and test, such that images that belong together are on one side; as files."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from projects.Labels.accepting import expect_sizes, in_coco_format
from projects.Labels.belonging import kept_together
from projects.Labels.sides import IMAGES, divided, sums_of
from projects.Tiles.tiled_names import tiling_and_name
from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.coco_truth import read_coco
from revisit.data.sources.file_names import expect_file_names, expect_files
from revisit.data.sources.image_folders import write_list
from revisit.data.sources.records import Records
from revisit.data.sources.split_files import text_of_names
from revisit.data.sources.subsets import classes_shown
from revisit.errors import expect, first_few
from revisit.files import make_folder, write_correctable, write_whole
from revisit.markdown import csv_table, markdown_table

from detectron2.data import MetadataCatalog

SIDES = ("train", "val", "test")
OFF = 0.1  # share of what is asked, above which a side's size is named
MOST_LISTED = 20  # classes in the printed table


class Split(NamedTuple):
    """N images or windows in G groups on S sides."""

    names: list[str]  # (S,) of the sides
    shares: np.ndarray  # (S,) that were asked for, 1 together
    groups: np.ndarray  # (N,) int64
    side: np.ndarray  # (G,) int64
    content: csr_array  # (G, 1 + C) numbers of images, and of objects of each class
    classes: list[str]  # (C,)

    @property
    def sums(self) -> np.ndarray:
        """(S, 1 + C) float64, what is on each side."""
        return sums_of(self.content, self.side, len(self.names))

    def files(self, records: Records) -> dict[str, list[str]]:
        """By side the files of its images, each once, in their order."""
        files: dict[str, dict[str, None]] = {name: {} for name in self.names}
        for record, number in zip(records, self.side[self.groups].tolist(), strict=True):
            files[self.names[number]][os.path.abspath(record["file_name"])] = None
        return {name: list(of_side) for name, of_side in files.items()}


def write_split(
    name: str, output: Path, rules: Sequence[tuple[str, Any]], shares: Mapping[str, float], seed: int
) -> Iterator[str]:
    """Write a list of the images of each side, of boxes a file in COCO's format too, and groups.csv; yields lines that
    say what was kept together, and the sizes.

    Args:
        rules: see kept_together.
        shares: of SIDES, of all images; a side of 0 is none.

    Raises:
        UserError: images without files of their own, a rule that finds nothing, groups too large for what is asked, or
            an output that has a split already; see expect_sizes.
    """
    records = get_records(name)
    expect_files(records, f"--data {name}", "a folder of images, or labels next to files of images")
    there = [path for path in (output / f"{side}.txt" for side in SIDES) if path.exists()]
    expect(not there, f"--output {output} has {first_few([path.name for path in there])}: expected a new folder")
    groups, notes = kept_together(records, rules)
    split = split_of(records, groups, names_of(name), shares, seed)
    files = split.files(records)
    for of_side in files.values():
        text_of_names(of_side, f"an image of --data {name}")  # refused before any file is written
    _, whole = tiling_and_name(name)
    of_whole = records if whole == name else get_records(whole)
    if not MetadataCatalog.get(whole).get("json_file"):
        expect_sizes(of_whole)
    make_folder(output, "--output")
    for side, of_side in files.items():
        write_list(output / f"{side}.txt", of_side)
    paths = (os.path.abspath(record["file_name"]) for record in records)
    lines = zip(paths, groups.tolist(), strict=True)
    write_whole(output / "groups.csv", csv_table(("file_name", "group"), dict.fromkeys(lines)))
    yield from notes or ["no --rule: only windows of one file are kept together"]
    yield from _report(split, output)
    yield from _write_boxes(whole, of_whole, output, files)


def split_of(
    records: Records, groups: np.ndarray, classes: Sequence[str], shares: Mapping[str, float], seed: int
) -> Split:
    """Groups on sides. Raises UserError where a side that is asked for would be empty."""
    names = [side for side in SIDES if shares.get(side, 0) > 0]
    asked = np.array([shares[side] for side in names])
    content = _content(records, groups)
    side = divided(content, asked, seed)
    split = Split(names, asked, groups, side, content, [*classes])
    empty = [names[number] for number in range(len(names)) if number not in side]
    sizes = content[:, [IMAGES]].toarray()
    expect(
        not empty,
        f"{' and '.join(empty)} would be empty: {len(side):,} groups have {sizes.min():,.0f} to {sizes.max():,.0f} of "
        f"{sizes.sum():,.0f} images: expected more groups, a rule that joins fewer images, or larger shares, such as "
        "--rule test=0.3",
    )
    return split


def _content(records: Records, groups: np.ndarray) -> csr_array:
    """(G, 1 + C) float64: images, and objects of each class."""
    columns = [[IMAGES, *(number + 1 for number in classes_shown(record))] for record in records]
    rows = np.repeat(groups, [len(each) for each in columns])
    flat = np.concatenate(columns)
    return coo_array((np.ones(len(flat)), (rows, flat))).tocsr()


def _report(split: Split, output: Path) -> Iterator[str]:
    """Lines for the sizes, all of them in sizes.csv, and for what could not be done."""
    sums = split.sums.round().astype(int)
    named = [*split.classes, *map(str, range(len(split.classes), sums.shape[1] - 1))]
    of_groups = np.bincount(split.side, minlength=len(split.names))
    order = 1 + np.argsort(-sums[:, 1:].sum(axis=0), kind="stable")
    rows = [("groups", *of_groups.tolist()), ("images", *sums[:, IMAGES].tolist())]
    rows += [(named[column - 1], *sums[:, column].tolist()) for column in order.tolist() if sums[:, column].any()]
    write_whole(output / "sizes.csv", csv_table(("of", *split.names), rows))
    listed = rows[: MOST_LISTED + 2]
    yield markdown_table(("of", *split.names), [[str(row[0]), *(f"{n:,}" for n in row[1:])] for row in listed])
    if len(rows) > len(listed):
        yield f"{len(rows) - len(listed)} more classes are in sizes.csv"
    yield from _limits(split, sums, named)


def _limits(split: Split, sums: np.ndarray, names: Sequence[str]) -> Iterator[str]:
    """What a split could not do because groups stay whole."""
    totals = sums.sum(axis=0)
    largest = split.content[:, [IMAGES]].max()
    for name, share, (count, *objects) in zip(split.names, split.shares, sums, strict=True):
        wanted = share * totals[IMAGES]
        if abs(count - wanted) > max(OFF * wanted, 1):
            yield (
                f"{name} has {count:,} images where {wanted:,.0f} were asked for: the largest group has "
                f"{largest:,.0f} images and stays whole"
            )
        lacking = np.flatnonzero((totals[1:] > 0) & (np.array(objects) == 0))
        if len(lacking):
            yield f"{name} lacks {first_few([names[number] for number in lacking.tolist()])}: in too few groups"


def _write_boxes(name: str, records: Records, output: Path, files: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Write the labelled boxes of each side, of a data set of whole images; a line that says how they are named as data
    sets."""
    if not any("annotations" in record for record in records):
        yield _written(output)
        return
    expect_file_names(records, f"--data {name}")
    metadata = MetadataCatalog.get(name)
    stated = metadata.get("json_file", "")
    folder = metadata.get("image_root", "") or folder_of(records, name)
    content = read_coco(Path(stated)) if stated else {}
    for side, names in files.items():
        on_side = set(names)
        kept = [record for record in records if os.path.abspath(record["file_name"]) in on_side]
        path = output / f"{side}.json"
        if stated:
            write_correctable(path, json.dumps(_part(content, {record["image_id"] for record in kept})))
        else:
            write_data_set(path, [in_coco_format(record) for record in kept], names_of(name), folder=folder)
    yield f"{_written(output)}, coco:{folder}:{output}/train.json with its boxes"


def _written(output: Path) -> str:
    return f"written to {output}: list:{output}/train.txt is a data set"


def _part(content: Mapping[str, Any], images: set) -> dict[str, Any]:
    """A file's content with these images alone, by their ids; all else as it is."""
    kept = {
        "images": [entry for entry in content["images"] if entry["id"] in images],
        "annotations": [entry for entry in content.get("annotations", ()) if entry["image_id"] in images],
    }
    return {**content, **kept}
