"""From one image to its views: decode once, cut the boxes, resize, give each view its look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch.nn import functional as F

from revisit.data.augment import GREY_PROBABILITY, apply_look, draw_look
from revisit.data.crops import ConstrainedMultiCrop, CropBoxes
from revisit.data.images import decode_image, images_required, read_image
from revisit.data.shards import read_sample
from revisit.randomness import Stream, counter_rng

from detectron2.config import CfgNode


class Views(TypedDict):
    """Views of one image, all uint8 RGB. Absent without small crops: ``small``."""

    anchor: np.ndarray  # (H, W, 3)
    positive: np.ndarray  # (H, W, 3)
    small: np.ndarray  # (N, h, w, 3)
    boxes: CropBoxes


def read_record(record: dict) -> np.ndarray:
    """The (H, W, 3) uint8 RGB image of a data set record (see ``revisit.data.catalog``)."""
    if "image" in record:
        return record["image"]
    if "offset" in record:
        return decode_image(read_sample(record), f"{record['file_name']}, byte {record['offset']}")
    return read_image(record["file_name"])


def require_record(record: dict) -> np.ndarray:
    """As read_record, where nothing can stand in for the image: raises UserError if it cannot be read."""
    with images_required():
        return read_record(record)


def crop_and_resize(image: np.ndarray, box: np.ndarray, size: int) -> np.ndarray:
    """Cut ``box`` from an (H, W, 3) uint8 image and resize it to (size, size, 3).

    Bilinear with antialiasing, on uint8: within one grey level of PIL's filter, which the paper's code uses.
    """
    x0, y0, x1, y1 = box
    crop = torch.from_numpy(image[y0:y1, x0:x1]).permute(2, 0, 1)[None]
    resized = F.interpolate(crop, size=(size, size), mode="bilinear", antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


@dataclass(frozen=True)
class ViewMapper:
    """Anchor, large positive and N small positives of an image (METHOD: views).

    The views are a function of (seed, epoch, image index) and the image alone. The anchor always has the
    standard look; ``policy`` is the positives'.
    """

    crops: ConstrainedMultiCrop
    large_size: int
    small_size: int
    policy: str
    seed: int
    grey_probability: float = GREY_PROBABILITY

    @classmethod
    def from_config(cls, cfg: CfgNode) -> ViewMapper:
        """The mapper that cfg.VIEWS and cfg.SEED describe."""
        views = cfg.VIEWS
        crops = ConstrainedMultiCrop(
            large_scale=views.LARGE_SCALE,
            small_scale=views.SMALL_SCALE,
            num_small=views.NUM_SMALL,
            min_overlap=views.MIN_OVERLAP,
            max_iou=views.MAX_IOU,
        )
        return cls(crops, views.LARGE_SIZE, views.SMALL_SIZE, views.POLICY, cfg.SEED, views.GREY_PROBABILITY)

    def __call__(self, image: np.ndarray, epoch: int, index: int) -> Views:
        """Draw the views of image ``index`` in ``epoch``."""
        rng = counter_rng(self.seed, Stream.VIEWS, epoch, index)
        boxes = self.crops(*image.shape[:2], rng)

        def view(box: np.ndarray, size: int, policy: str) -> np.ndarray:
            look = draw_look(policy, rng, grey_probability=self.grey_probability)
            return apply_look(crop_and_resize(image, box, size), look)

        views = Views(
            anchor=view(boxes.anchor, self.large_size, "standard"),
            positive=view(boxes.positive, self.large_size, self.policy),
            boxes=boxes,
        )
        if len(boxes.small):
            views["small"] = np.stack([view(box, self.small_size, self.policy) for box in boxes.small])
        return views
