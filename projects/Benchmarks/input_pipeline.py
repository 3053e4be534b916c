"""Views a second of one process: the project's input pipeline against plain torchvision and PIL."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import default_collate

from projects.Benchmarks.measuring import compare, measure
from projects.Benchmarks.photographs import write_photographs
from projects.Benchmarks.reference_input import ReferenceViews
from revisit.data.catalog import get_records
from revisit.data.loader import ViewDataset
from revisit.data.mapper import ViewMapper
from revisit.data.reader import read_image

from detectron2.config import CfgNode

BATCH = 32


def measure_input(cfg: CfgNode, *, files: str | None, images: int, repeats: int) -> dict[str, object]:
    """Images a second on one core, from files to a batch: ours up to uint8 tensors, the reference's up to normalised
    ones; of a worker that leaves the looks to the device (DATALOADER.AUGMENT_ON_DEVICE); and of decoding alone, the
    floor.

    Args:
        files: a data set's name, or None for made-up photographs of 640 x 480.
        images: of one repeat.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory() as folder:
        if files:
            records = get_records(files)
        else:
            records = [{"file_name": str(path)} for path in write_photographs(Path(folder), min(images, 128))]
        order = np.random.default_rng(0).permutation(images) % len(records)
        batches = [order[start : start + BATCH].tolist() for start in range(0, images, BATCH)]
        mapper = ViewMapper.from_config(cfg)
        dataset = ViewDataset(records, replace(mapper, looks_on_device=False))
        worker = ViewDataset(records, replace(mapper, looks_on_device=True))
        reference = ReferenceViews(cfg)
        random.seed(0)
        torch.manual_seed(0)
        seconds = measure(
            {
                "ours": lambda: [dataset.__getitems__([(0, n) for n in batch]) for batch in batches],
                "worker": lambda: [worker.__getitems__([(0, n) for n in batch]) for batch in batches],
                "reference": lambda: [
                    default_collate([reference(records[n]["file_name"]) for n in batch]) for batch in batches
                ],
                "decoding": lambda: [read_image(records[n]["file_name"]) for n in order],
            },
            repeats,
        )
    parts = {name: compare(seconds, name, "reference", images) for name in ("ours", "worker", "decoding")}
    result = parts["ours"]
    for name in ("worker", "decoding"):
        result[f"{name}_ratio"] = parts[name]["ratio"]
        result[f"{name}_images_per_second"] = parts[name][f"{name}_images_per_second"]
    return result
