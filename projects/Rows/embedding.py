"""Embed images or boxes in parts, each of which is one whole file, so that an interrupted command continues."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from projects.Rows.embedders import Embedder, Sample, embedder_again
from projects.Rows.regions import Places
from projects.Rows.row_table import FILE_SIZES, TABLE, RowTable, load_table, save_table
from revisit.boxes.coco_files import folder_of
from revisit.data.images.deep_images import format_flags, format_keys, format_of
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import UNKNOWN_SIZE, other_size, require_record
from revisit.data.loading.workers import SignalSafeLoader
from revisit.data.sources.records import fingerprint, sample
from revisit.errors import UserError, expect
from revisit.jobs.parts import Arrays, Work, in_parts
from revisit.jobs.processes import HERE
from revisit.jobs.record import Record
from revisit.jobs.runner import PerProcess, Runner

PART = 256  # images
BATCH = 64
FIRST = 4  # images, by which the time for all is estimated
PARTS = "parts"


class Image(NamedTuple):
    """An image that a loader's worker has read, or why there is none."""

    places: Places
    sample: Sample | None
    problem: str = ""


class _Images(Dataset):
    """Images of the places, read and prepared."""

    def __init__(self, places: Sequence[Places], prepare: Callable[[dict, np.ndarray], object], pixels: PixelFormat):
        self._places, self._prepare, self._pixels = places, prepare, pixels

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Image:
        places = self._places[index]
        try:
            image = require_record(places.record, self._pixels)
        except UserError as error:
            return Image(places, None, str(error))
        height, width = image.shape[:2]
        if problem := _misfit(places, {"height": height, "width": width}):
            return Image(places, None, problem)
        boxes = np.array([[0, 0, width, height]], np.float32) if places.boxes is None else places.boxes
        return Image(places, Sample(self._prepare(places.record, image), (height, width), boxes))


def _misfit(places: Places, size: dict[str, int]) -> str:
    """What is wrong where boxes are px of an image of another size, such as of a photograph that EXIF turns."""
    stated = {side: places.record.get(side) for side in size}
    if places.boxes is None or None in stated.values() or stated in (size, UNKNOWN_SIZE):
        return ""
    return other_size(places.record, size, stated)


def embed(
    places: list[Places],
    embedder: Embedder,
    output: Path,
    readers: int = 0,
    runner: Runner = HERE,
    device: str = "",
) -> RowTable:
    """The table of all places, which OUTPUT/embeddings.npz has too; what is there already is not made again.

    ``about["left out"]`` says of each image why it has no rows: it cannot be read, or its boxes are of another size.
    ``readers`` is the number of processes that read images for each network; other processes than this one compute on
    ``device``, by default a GPU where they have one.

    Raises:
        SystemExit: in a process that has made its share of the parts, where another one puts them together.
        UserError: ``output`` is of other images, boxes or weights; none of the images can be read.
    """
    records = [each.record for each in places]
    with runner.alone(output):
        of_places = {"images": fingerprint(records, labels=False), "boxes": _digest(places)}
        of_places["folder"] = os.path.realpath(folder_of(records))  # the table names its files
        Record(output, embedder.about | of_places).claim()
    if (output / TABLE).is_file():
        print(f"{output / TABLE} is there already", flush=True)
        return load_table(output)
    pixels = format_of(embedder.about["flags"], records)
    network = PerProcess(partial(embedder_again, embedder.about, device), embedder)
    work = Work("embedding", len(places), PART, partial(_part, places, network, pixels, readers))
    with in_parts(work, output / PARTS, runner) as arrays:
        left_out = arrays.pop("left_out").tolist()
        expect(len(arrays["rows"]) > 0, f"none of the {len(places)} images can be read, the first: {left_out[:1]}")
        seen = dict.fromkeys(format_keys()) | format_flags(pixels)
        about = embedder.about | {"flags": embedder.about["flags"] | seen}
        table = RowTable(**arrays, about=about | {"left out": left_out})
        table.about[FILE_SIZES] = table.file_sizes()
        save_table(output / TABLE, table)
    return table


def _digest(places: list[Places]) -> str:
    """Of all boxes and classes."""
    digest = hashlib.sha256(b"[")
    for start in range(0, len(places), PART):  # of a list in JSON, whose text would take as much as the boxes
        some = places[start : start + PART]
        content = [[None if each.boxes is None else each.boxes.tolist(), each.classes] for each in some]
        digest.update((", " * (start > 0) + json.dumps(content)[1:-1]).encode())
    digest.update(b"]")
    return digest.hexdigest()


def seconds_to_embed(places: list[Places], embedder: Embedder) -> float:
    """About how long ``embed`` takes without other processes, by FIRST of the images, spread evenly."""
    some = sample(places, FIRST)
    start = perf_counter()
    _at_once(some, embedder)
    return (perf_counter() - start) / len(some) * len(places)


def rows_of(places: list[Places], embedder: Embedder) -> np.ndarray:
    """(N, C) float32 unit rows of few places. Raises UserError for an image that cannot be read."""
    arrays = _at_once(places, embedder)
    expect(not len(arrays["left_out"]), str(arrays["left_out"][:1]))
    return arrays["rows"]


def _at_once(places: list[Places], embedder: Embedder) -> Arrays:
    """Of all of few places, in this process."""
    pixels = format_of(embedder.about["flags"], [each.record for each in places])
    return _part(places, lambda: embedder, pixels, 0, range(len(places)))


def _part(
    places: list[Places], network: Callable[[], Embedder], pixels: PixelFormat, readers: int, part: range
) -> Arrays:
    """Rows of some of the places, and what they are of; names of files hold wherever the table is read."""
    embedder = network()
    images = _Images([places[index] for index in part], embedder.prepare, pixels)
    loader = SignalSafeLoader(images, batch_size=BATCH, num_workers=readers, collate_fn=list)
    rows, files, boxes, classes, left_out = [torch.empty(0)], [], [np.empty((0, 4), np.float32)], [], []
    for batch in loader:
        left_out += [image.problem for image in batch if image.sample is None]
        readable = [image for image in batch if image.sample is not None]
        if not readable:
            continue
        rows.append(embedder.rows([image.sample for image in readable]).cpu())
        for image in readable:
            boxes.append(image.sample.boxes)
            files += [os.path.abspath(image.places.record["file_name"])] * len(image.sample.boxes)
            classes += image.places.classes
    return {
        "rows": torch.cat(rows).numpy(),
        "files": np.array(files, str),
        "boxes": np.concatenate(boxes),
        "classes": np.array(classes, str),
        "left_out": np.array(left_out, str),
    }
