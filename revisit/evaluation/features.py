"""Features of a whole data set by a frozen backbone, over all processes."""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import (
    Read,
    UnreadableImageError,
    read_or_next,
    read_record,
    require_record,
)
from revisit.data.loading.workers import SignalSafeLoader
from revisit.data.sources.catalog import get_records
from revisit.data.views.resampling import crop_and_resize
from revisit.errors import UserError, expect

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.data.samplers import InferenceSampler
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset
from detectron2.utils import comm

BATCH = 64


class Features(NamedTuple):
    """Features of a data set in its order."""

    rows: Tensor  # (M, Cg) float32 unit rows
    labels: Tensor  # (M,) int64; -1 where the data set has none


class CenterCropDataset(Dataset):
    """Images for evaluation: short side to 256/224 of ``size``, then the central (C, size, size) uint8.

    An unreadable image raises UserError; if it may be ``replaced``, the next readable one in the list takes its place.
    """

    def __init__(self, records: list[dict], size: int, pixels: PixelFormat, *, replaced: bool = False):
        self._records = records
        self._size = size
        self._pixels = pixels
        self._replaced = replaced

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict:
        record = self._records[index]
        if self._replaced:
            record, image = readable_record(self._records, index, partial(read_record, pixels=self._pixels))
        else:
            image = require_record(record, self._pixels)
        image = center_crop(image, self._size)
        return {"image": torch.from_numpy(image).permute(2, 0, 1), "label": record.get("label", -1)}


def readable_record(records: list[dict], index: int, read: Callable[[dict], Read]) -> tuple[dict, Read]:
    """The record at ``index``, or the next one that ``read`` can read, and what it returns.

    Raises:
        UserError: too many in a row cannot be read.
    """
    try:
        record, content, _ = read_or_next(records, index, read)
    except UnreadableImageError as error:
        raise UserError(str(error)) from error
    return record, content


def center_crop(image: np.ndarray, size: int) -> np.ndarray:
    """(H, W, C) uint8 -> (size, size, C): the resize to 256/224 and its crop, in one resampling."""
    height, width = image.shape[:2]
    side = round(min(height, width) * 224 / 256)
    x0 = (width - side) // 2
    y0 = (height - side) // 2
    return crop_and_resize(image, np.array([x0, y0, x0 + side, y0 + side]), size)


def whole_image(image: np.ndarray, size: int) -> np.ndarray:
    """(H, W, C) uint8 -> (size, size, C), whatever its shape."""
    height, width = image.shape[:2]
    return crop_and_resize(image, np.array([0, 0, width, height]), size)


TRANSFORMS = {"square": whole_image, "center_crop": center_crop}  # how a frozen network sees an image


def check_not_enlarged(name: str, size: int, key: str, transform: str = "center_crop") -> None:
    """Raise UserError if views of ``size`` px, the value of ``key``, would enlarge a data set's images.

    tools/make_shards.py may have made them smaller.
    """
    short = MetadataCatalog.get(name).get("short_side")
    least = size if transform == "square" else -(-size * 256 // 224)
    expect(
        not short or short >= least,
        f"data set {name!r} has images made smaller, to a short side of {short} px: {key} {size} would enlarge "
        f"them, expected at least {least} px",
    )


class _FeatureCollector(DatasetEvaluator):
    """Keeps the model's features; the main process gets those of all processes, in the data set's order.

    Memory for the ``count`` rows of this process is reserved once, so that there is never a second copy.
    """

    def __init__(self, count: int):
        self._count = count

    def reset(self) -> None:
        self._rows = torch.empty(0)
        self._labels: list[int] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        start = len(self._labels)
        if not start:
            self._rows = torch.empty(self._count, *outputs[0]["feature"].shape)
        rows = torch.stack([output["feature"] for output in outputs])  # one wait for the device
        self._rows[start : start + len(rows)] = rows
        self._labels += [record["label"] for record in inputs]

    def evaluate(self) -> Features | None:
        own = Features(self._rows[: len(self._labels)], torch.tensor(self._labels, dtype=torch.int64))
        if comm.get_world_size() == 1:
            return own
        parts = comm.gather(own)
        if not comm.is_main_process():
            return None
        parts = [part for part in parts if len(part.labels)]  # with fewer images than processes some have none
        labels = torch.cat([part.labels for part in parts])
        rows = torch.empty(len(labels), *self._rows.shape[1:])
        # The system gives memory where it is written, so each part can go as its rows arrive.
        for part_of_rows in rows.split([len(part.labels) for part in parts]):
            part_of_rows.copy_(parts.pop(0).rows)
        return Features(rows, labels)


def extractor(cfg: CfgNode, model: nn.Module) -> Callable[[str], Features | None]:
    """``features_of`` a data set by name, whose centres are cut out as KNN_EVAL says; of each data set once."""
    size = cfg.KNN_EVAL.IMAGE_SIZE
    pixels = pixel_format(cfg)
    return cache(lambda name: features_of(cfg, model, CenterCropDataset(get_records(name), size, pixels)))


def features_of(cfg: CfgNode, model: nn.Module, images: Dataset) -> Features | None:
    """Features of every image, in evaluation mode; None but on the main process.

    A GPU computes in the training's precision, a CPU in float32, which costs little there.
    """
    loader = SignalSafeLoader(
        images,
        sampler=InferenceSampler(len(images)),
        batch_size=BATCH,
        num_workers=cfg.DATALOADER.NUM_WORKERS,
        collate_fn=list,
    )
    amp = cfg.SOLVER.AMP
    enabled = amp.ENABLED and cfg.MODEL.DEVICE.startswith("cuda")
    with torch.autocast("cuda", getattr(torch, amp.DTYPE) if enabled else None, enabled=enabled):
        features = inference_on_dataset(model, loader, _FeatureCollector(len(loader.sampler)))
    return features or None  # Detectron2 makes {} of None
