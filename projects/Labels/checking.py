"""From the labels of a data set to the list of those that are suspected, and its pictures."""

import os
from argparse import Namespace
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Labels.detections import how_good, judged, missing, read_detections, shifted
from projects.Labels.half_detectors import half_jobs, train_halves
from projects.Labels.labels import Labels, read_labels_of
from projects.Labels.pictures import SHOWN, draw
from projects.Labels.suspects import NOT_A_LABEL, Suspect, among_all, odd, ordered, swapped, write_suspects
from projects.Labels.votes import Vote, vote
from projects.Rows.embedders import Embedder, embedder_of
from projects.Rows.embedding import embed, rows_of, seconds_to_embed
from projects.Rows.image_lists import full_names
from projects.Rows.regions import Places, boxes_of, whole_images
from projects.Rows.row_table import TABLE, RowTable
from projects.Tiles.tiled_names import tiling_and_name
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.evaluation.nearest import nearest
from revisit.jobs.commands import Job, cost_of

ROWS, DETECTORS = "rows", "detectors"


class Looked(NamedTuple):
    """The labels whose images can be read, their rows, and what the neighbours of each say."""

    labels: Labels
    table: RowTable
    votes: Vote


def check(args: Namespace) -> Counter[str]:
    """Write what the options of tools/check_labels.py ask for; how many suspects of each kind are listed.

    Raises UserError: see the modules.
    """
    _expect_whole_images(args)
    labels = read_labels_of(args.data)
    _say(labels)
    detectors = args.boxes or args.config_file
    expect(labels.of == "box" or not detectors, f"{args.data} has no boxes to detect: expected no detectors")
    results = read_detections(args.boxes, labels.class_names) if args.boxes else {}
    places = boxes_of(args.data) if labels.of == "box" else whole_images(args.data)
    embedder = embedder_of(_options(args, labels.of), [each.record for each in places])
    halves = []
    if args.config_file:
        halves = half_jobs(args.data, labels, args.config_file, args.opts, args.output / DETECTORS)
    _say_cost(places, embedder, halves, args.output / ROWS / TABLE)
    looked = _look(labels, places, args, embedder)
    suspects = swapped(looked.labels, looked.votes)
    if labels.of == "box":
        suspects += odd(looked.labels)
    if args.config_file:
        results = read_detections(train_halves(halves), labels.class_names)
    if detectors:
        images = judged(looked.labels, results)
        suspects += missing(images, looked.labels) + shifted(images, looked.labels)
        print(how_good(images))
    suspects = ordered(suspects, args.count)
    write_suspects(args.output, among_all(suspects, labels, looked.table.files), args.data)
    draw(args.output, suspects, looked.table, _nearest(suspects, looked, embedder), args.data)
    return Counter(suspect.kind for suspect in suspects)


def _expect_whole_images(args: Namespace) -> None:
    """Raises UserError where labels or detectors are of windows, and says how these look at whole images."""
    tiling, name = tiling_and_name(args.data)
    sees_tiles = bool(args.config_file and make_config(args.config_file, args.opts).INPUT.TILES)
    expect(
        not (tiling or sees_tiles),
        f"labels are compared in whole images: expected --data {name}; for detectors of tiles, train on windows, let "
        "tools/predict.py --tiles look at others, and give its predictions.json as --boxes",
    )


def _say(labels: Labels) -> None:
    """What is not looked at."""
    for line in labels.left_out:
        print(f"left out: {line}")
    if not np.ptp(labels.classes):
        print(f"all boxes are of one class, {labels.class_names[labels.classes[0]]}: none can be swapped")


def _say_cost(places: list[Places], embedder: Embedder, halves: list[Job], table: Path) -> None:
    """Before it begins, what is to be done."""
    count = sum(1 if each.boxes is None else len(each.boxes) for each in places)
    what = f"looking at {len(places):,} images with {count:,} labels"
    if not table.is_file():
        what += f", about {seconds_to_embed(places, embedder) / 60:.1f} minutes for one process"
    for job in halves:
        what += f"; {job.name}: {'done before' if job.done else cost_of(job)}"
    print(what, flush=True)


def _options(args: Namespace, of: str) -> Namespace:
    """Those of tools/embed.py."""
    boxes = args.data if of == "box" else ""
    fixed = {"boxes": boxes, "box_head": False, "pyramid": False, "config_file": "", "opts": []}
    return Namespace(**vars(args) | fixed)


def _look(labels: Labels, places: list[Places], args: Namespace, embedder: Embedder) -> Looked:
    folder = args.output / ROWS
    folder.mkdir(exist_ok=True)
    table = embed(places, embedder, folder, args.readers)
    table = table._replace(files=full_names(table))  # which were relative in earlier versions
    for problem in table.about["left out"]:
        print(f"left out: {problem}")
    readable = labels.of_files(np.unique(table.files))
    assert len(readable.classes) == len(table.rows)
    return Looked(readable, table, vote(table.rows, readable.classes, readable.images))


def _nearest(suspects: list[Suspect], looked: Looked, embedder: Embedder) -> list[np.ndarray]:
    """Rows of the table that are most similar to each suspect, at most SHOWN, those of its own image left out."""
    new = iter(_near_new([suspect for suspect in suspects if suspect.index == NOT_A_LABEL], looked.table, embedder))
    return [next(new) if suspect.index == NOT_A_LABEL else _near(suspect.index, looked) for suspect in suspects]


def _near(index: int, looked: Looked) -> np.ndarray:
    """The same of a label that the table has; fewer where other images have no more."""
    near, images = looked.votes.nearest[index], looked.labels.images
    return near[images[near] != images[index]][:SHOWN]


def _near_new(suspects: list[Suspect], table: RowTable, embedder: Embedder) -> list[np.ndarray]:
    """The same of boxes that the table does not have."""
    by_file = defaultdict(list)
    for number, suspect in enumerate(suspects):
        by_file[suspect.file_name].append(number)
    if not by_file:
        return []
    places = []
    for file, own in by_file.items():
        boxes = np.array([suspects[number].box for number in own], np.float32)
        places.append(Places({"file_name": file}, boxes, [""] * len(own)))
    numbers = list(chain.from_iterable(by_file.values()))
    files = np.array([os.path.abspath(suspects[number].file_name) for number in numbers])
    _, images = np.unique(np.concatenate([files, table.files]), return_inverse=True)
    near = nearest(rows_of(places, embedder), table.rows, SHOWN, without=np.split(images, [len(files)]))
    others = [np.empty(0, int)] * len(suspects)
    for number, row, cosines in zip(numbers, *near, strict=True):
        others[number] = row[cosines.isfinite()].numpy()
    return others
