"""Images per second of one process: views by ours and by plain torchvision and PIL, images from shards and files."""

import random
from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np
import torch

from projects.Benchmarks.measuring import compare, measure, timer
from projects.Benchmarks.photographs import files_or_photographs
from projects.Benchmarks.reference_input import ReferenceViews
from revisit.data.catalog import get_records
from revisit.data.loader import ViewDataset
from revisit.data.mapper import ViewMapper
from revisit.data.reader import read_record
from revisit.errors import UserError

from detectron2.config import CfgNode

BATCH = 32
MOST_PHOTOGRAPHS = 128


def measure_shards(*, files: str, shards: str, images: int = 2000, repeats: int) -> dict[str, object]:
    """Images read and decoded; ratio above 1 says that shards are faster.

    Args:
        files: a data set of loose files, the reference.
        shards: a folder with the same images, by tools/make_shards.py.
        images: of one repeat.
    """
    loose, packed = get_records(files), get_records(f"shards:{shards}")
    if len(loose) != len(packed):
        raise UserError(f"{files} has {len(loose)} images, {shards} {len(packed)}: expected the same images")
    order = np.random.default_rng(0).permutation(len(loose))[:images].tolist()
    seconds = measure({"files": timer(_reading(loose, order)), "shards": timer(_reading(packed, order))}, repeats)
    return compare(seconds, "shards", "files", len(order))


def measure_input(cfg: CfgNode, *, files: str | None = None, images: int = 256, repeats: int) -> dict[str, object]:
    """From files to a batch: ours up to uint8 tensors, the reference's up to normalised ones; of a worker that leaves
    the looks to the device (DATALOADER.AUGMENT_ON_DEVICE); and of decoding alone, the floor.

    Args:
        files: a data set's name, or None for made-up photographs of 640 x 480.
        images: of one repeat.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    with files_or_photographs(files, min(images, MOST_PHOTOGRAPHS)) as name:
        records = get_records(name)
        order = (np.random.default_rng(0).permutation(images) % len(records)).tolist()
        batches = [order[start : start + BATCH] for start in range(0, images, BATCH)]
        mapper, reference = ViewMapper.from_config(cfg), ReferenceViews(cfg)

        def ours(looks_on_device: bool) -> Callable[[], object]:
            dataset = ViewDataset(records, replace(mapper, looks_on_device=looks_on_device))
            return lambda: [dataset.__getitems__([(0, n) for n in batch]) for batch in batches]

        def plain() -> None:
            for batch in batches:
                reference.batch([records[number]["file_name"] for number in batch])

        random.seed(0)
        torch.manual_seed(0)
        forms = {"ours": ours(False), "worker": ours(True), "decoding": _reading(records, order), "reference": plain}
        seconds = measure({name: timer(form) for name, form in forms.items()}, repeats)
    result = compare(seconds, "ours", "reference", images)
    for name in ("worker", "decoding"):
        compared = compare(seconds, name, "reference", images)
        result[f"{name}_ratio"] = compared["ratio"]
        result[f"{name}_images_per_second"] = compared[f"{name}_images_per_second"]
    return result


def _reading(records: list[dict], order: list[int]) -> Callable[[], object]:
    """A call that reads and decodes the records of these numbers."""
    return lambda: [read_record(records[number]) for number in order]
