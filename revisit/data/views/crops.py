"""Where the views of an image lie, random resized crops and the constrained multi-crop; and cutting them out.

Boxes are ``x0, y0, x1, y1`` in whole pixels, upper bounds exclusive.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch.nn import functional as F

from revisit.keys import PIXELS, SHARE, declare, integer, list_of, number, one_of

RATIO = (3 / 4, 4 / 3)  # width / height, as torchvision's RandomResizedCrop
LOG_RATIO = (math.log(RATIO[0]), math.log(RATIO[1]))
MAX_DRAWS = 10
PAIR_BLOCK = 512
MAX_PAIR_BLOCKS = 16


_SCALE = list_of(number(0, 1, "of the image", open_low=True), 2, rising=True)
view = partial(declare, read_by="Pretraining")
view("VIEWS.LARGE_SIZE", 160, "Size of anchor and large positive, px; 224 in two-crop runs.", PIXELS, paper=160)
view("VIEWS.LARGE_SCALE", (0.2, 1.0), "Their share of the image's area.", _SCALE, paper=(0.2, 1.0))
view("VIEWS.NUM_SMALL", 4, "N, small positives of an image; 0 is two-crop.", integer(0, 64), paper=4)
view("VIEWS.SMALL_SIZE", 96, "Size of a small positive, px.", PIXELS, paper=96)
view("VIEWS.SMALL_SCALE", (0.05, 0.14), "Its share of the image's area.", _SCALE, paper=(0.05, 0.14))
view(
    "VIEWS.MIN_OVERLAP",
    0.2,
    "Constrained multi-crop: the least share of a small crop's own area that lies inside the anchor; 0 switches the "
    "constraint off. The authors' code has 0.1.",
    SHARE,
    paper=0.2,
)
view(
    "VIEWS.MAX_IOU",
    1.0,
    "The largest IoU of anchor and large positive, of the study of crops; 1 sets no limit, 0 keeps them disjoint.",
    SHARE,
)
view(
    "VIEWS.RESAMPLING",
    "area",
    "How crops are resized. area: halved by means of 2 x 2 pixels, then bilinear, the faster one. antialias: PIL's "
    "bilinear filter, as in the authors' code.",
    one_of("area", "antialias"),
)


class CropBoxes(NamedTuple):
    """Boxes of one image's views."""

    anchor: np.ndarray  # (4,) int64
    positive: np.ndarray  # (4,) int64, the large positive
    small: np.ndarray  # (N, 4) int64, the small positives
    num_fallbacks: int  # crops that never met their constraint


def random_resized_crop(height: int, width: int, scale: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """One (4,) int64 box of random area, a share of the image's in ``scale``, and ratio, as torchvision's.

    RandomResizedCrop is its distribution. When ten draws do not fit, it is the largest centred box of a valid ratio.
    """
    for _ in range(MAX_DRAWS):
        area = height * width * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(*LOG_RATIO))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            y0, x0 = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
            return np.array([x0, y0, x0 + w, y0 + h])
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    x0, y0 = (width - w) // 2, (height - h) // 2
    return np.array([x0, y0, x0 + w, y0 + h])


def overlap_share(box: np.ndarray, reference: np.ndarray) -> float:
    """Area of ``box`` inside ``reference``, as a share of the area of ``box`` itself, in [0, 1]."""
    w = min(box[2], reference[2]) - max(box[0], reference[0])
    h = min(box[3], reference[3]) - max(box[1], reference[1])
    if w <= 0 or h <= 0:
        return 0.0
    return float(w * h) / float((box[2] - box[0]) * (box[3] - box[1]))


def intersection_over_union(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IoU of (..., 4) boxes with the others in the same places, (...) float64 in [0, 1]."""
    sides = np.minimum(boxes[..., 2:], others[..., 2:]) - np.maximum(boxes[..., :2], others[..., :2])
    shared = np.prod(np.maximum(sides, 0), axis=-1)
    areas = sum(np.prod(b[..., 2:] - b[..., :2], axis=-1) for b in (boxes, others))
    return shared / (areas - shared)


def draw_distant_pair(
    height: int, width: int, scale: tuple[float, float], max_iou: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Two random resized crops, drawn again together while their IoU is above ``max_iou`` (paper, Section 3.1).

    Of the pairs of scale (0.2, 1) in a 640 x 480 image 7 % have an IoU of at most 0.2 and 0.4 % none at all,
    so they are drawn PAIR_BLOCK at a time, up to MAX_PAIR_BLOCKS times.

    Returns:
        The two (4,) int64 boxes, and whether they meet the limit: otherwise the closest to it that were drawn.
    """
    best, least = None, math.inf
    for _ in range(MAX_PAIR_BLOCKS):
        pairs = _fitting_crops(height, width, scale, 2 * PAIR_BLOCK, rng)
        pairs = pairs[: len(pairs) // 2 * 2].reshape(-1, 2, 4)
        if not len(pairs):
            continue
        iou = intersection_over_union(pairs[:, 0], pairs[:, 1])
        first = int(np.argmax(iou <= max_iou)) if (iou <= max_iou).any() else int(np.argmin(iou))
        if iou[first] < least:
            best, least = pairs[first], iou[first]
        if least <= max_iou:
            return best[0], best[1], True
    if best is None:  # an image too elongated for any crop of this ratio
        best = [random_resized_crop(height, width, scale, rng) for _ in range(2)]
    return best[0], best[1], False


def _fitting_crops(
    height: int, width: int, scale: tuple[float, float], count: int, rng: np.random.Generator
) -> np.ndarray:
    """Those of ``count`` draws of random_resized_crop that fit the image, (n, 4) int64."""
    area = height * width * rng.uniform(*scale, size=count)
    ratio = np.exp(rng.uniform(*LOG_RATIO, size=count))
    size = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], axis=1))).astype(np.int64)  # w, h
    size = size[((size > 0) & (size <= (width, height))).all(axis=1)]
    corner = rng.integers(0, np.array([width, height]) - size + 1)
    return np.concatenate([corner, corner + size], axis=1)


@dataclass(frozen=True)
class ConstrainedMultiCrop:
    """Anchor, large positive and N small positives, the small ones tied to the anchor (paper, Section 4).

    A small crop is drawn again while less than ``min_overlap`` of *its own* area lies inside the anchor;
    after MAX_DRAWS draws the last one stands and is counted. ``min_overlap=0`` is plain multi-crop,
    ``num_small=0`` two crops.

    ``max_iou`` < 1 forces anchor and large positive apart (``draw_distant_pair``); a pair that stays above it
    counts as a fallback.
    """

    large_scale: tuple[float, float] = (0.2, 1.0)
    small_scale: tuple[float, float] = (0.05, 0.14)
    num_small: int = 4
    min_overlap: float = 0.2
    max_iou: float = 1.0

    def __call__(self, height: int, width: int, rng: np.random.Generator) -> CropBoxes:
        """Draw the boxes of one image of ``height`` x ``width`` px."""
        if self.max_iou < 1:
            anchor, positive, satisfied = draw_distant_pair(height, width, self.large_scale, self.max_iou, rng)
        else:
            anchor, positive = (random_resized_crop(height, width, self.large_scale, rng) for _ in range(2))
            satisfied = True
        small = np.empty((self.num_small, 4), dtype=np.int64)
        num_fallbacks = int(not satisfied)
        for n in range(self.num_small):
            for _ in range(MAX_DRAWS):
                small[n] = random_resized_crop(height, width, self.small_scale, rng)
                if overlap_share(small[n], anchor) >= self.min_overlap:
                    break
            else:
                num_fallbacks += 1
        return CropBoxes(anchor, positive, small, num_fallbacks)


def crop_and_resize(image: np.ndarray, box: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Cut ``box`` from an (H, W, 3) uint8 image and resize it to (size, size, 3), written into ``out`` if given.

    Bilinear with antialiasing, on uint8: PIL's filter, which the paper's code uses. Both round after each axis, so each
    lies within about one grey level of the exact values.
    """
    x0, y0, x1, y1 = box
    # A crop whose strides are those of a channels-last batch is neither taken apart into channels nor put together.
    crop = torch.from_numpy(image)[None, y0:y1, x0:x1].permute(0, 3, 1, 2)
    resized = F.interpolate(crop, size=(size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    if out is None:
        return np.ascontiguousarray(resized)
    out[...] = resized
    return out


def crop_and_reduce(image: np.ndarray, box: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """As ``crop_and_resize``, by a cheaper filter.

    The crop is halved, every 2 x 2 pixels by their mean, until the root of its area is below 1.5 ``size``. Pixels that
    the halvings do not divide are left out on both sides alike. What is left is bilinear without antialiasing.
    """
    x0, y0, x1, y1 = box.tolist()
    width, height, block = x1 - x0, y1 - y0, 1
    while width * height >= (1.5 * size) ** 2 and min(width, height) > 1:
        width, height, block = width // 2, height // 2, 2 * block
    x0, y0 = x0 + (x1 - x0) % block // 2, y0 + (y1 - y0) % block // 2
    crop = image[y0 : y0 + block * height, x0 : x0 + block * width]
    while block > 1:
        block //= 2
        # Of all blocks OpenCV has vector instructions for those of 2 x 2 alone.
        crop = cv2.resize(crop, (block * width, block * height), interpolation=cv2.INTER_AREA)
    return cv2.resize(crop, (size, size), out, interpolation=cv2.INTER_LINEAR)


RESAMPLERS = {"area": crop_and_reduce, "antialias": crop_and_resize}  # VIEWS.RESAMPLING
