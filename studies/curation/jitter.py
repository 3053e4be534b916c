"""Small changes of an image, by which near-duplicates differ."""

from pathlib import Path

import cv2
import numpy as np

SIDES, LIGHT, QUALITY = (0.9, 1.0), (0.7, 1.3), (30, 96)
BEST = 98  # JPEG's quality of the first copy


def jittered(image: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """A part of an (H, W, 3) uint8 image with other brightness, and the quality of its JPEG."""
    height, width = (max(1, round(side * rng.uniform(*SIDES))) for side in image.shape[:2])
    top = rng.integers(image.shape[0] - height + 1)
    left = rng.integers(image.shape[1] - width + 1)
    part = image[top : top + height, left : left + width]
    bright = (part * rng.uniform(*LIGHT)).round().clip(0, 255)
    return bright.astype(np.uint8), int(rng.integers(*QUALITY))


def save_jpeg(path: Path, image: np.ndarray, quality: int) -> None:
    """Of an (H, W, 3) uint8 RGB image."""
    cv2.imwrite(str(path), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
