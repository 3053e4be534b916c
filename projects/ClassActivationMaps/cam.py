"""The map itself (Zhou et al., 2016) and its picture."""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor

from revisit.errors import UserError, expect

MAP_SHARE = 0.5  # of the map's colour in the overlay


class LinearClassifier(NamedTuple):
    """classifier.pth of projects/LinearClassification."""

    weight: Tensor  # (classes, C)
    bias: Tensor  # (classes,)
    transform: str  # how it sees an image, a key of TRANSFORMS
    image_size: int  # px


def load_classifier(path: str, channels: int) -> LinearClassifier:
    """Read a classifier of C channels.

    Raises:
        UserError: a file that is missing, holds something else, or was made for another network.
    """
    writer = "projects/LinearClassification writes classifier.pth"
    expect(Path(path).is_file(), f"classifier {path or '(none)'} not found: {writer}")
    try:
        found = LinearClassifier(**torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # damaged files raise whatever their bytes happen to trip
        raise UserError(f"{path} is no classifier ({type(error).__name__}): {writer}") from error
    width = found.weight.shape[1]
    expect(width == channels, f"{path} is for {width} channels, but the network has {channels}: expected its own")
    return found


def activation_map(features: Tensor, weight: Tensor) -> Tensor:
    """(h, w) in [0, 1]: the evidence for a class in each place, without bias and without ReLU.

    Args:
        features: (C, h, w).
        weight: (C,), the classifier's row of the class.

    Returns:
        The map from its least value to its greatest; all 0 where it is flat.
    """
    evidence = torch.einsum("chw,c->hw", features, weight)
    low, high = evidence.min(), evidence.max()
    return torch.zeros_like(evidence) if high == low else (evidence - low) / (high - low)


def overlay(image: np.ndarray, cam: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 RGB image under its (h, w) map in colours from blue (0) to red (1)."""
    height, width = image.shape[:2]
    large = cv2.resize(cam.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    colors = cv2.applyColorMap(np.round(255 * large).astype(np.uint8), cv2.COLORMAP_JET)[..., ::-1]
    return np.round((1 - MAP_SHARE) * image + MAP_SHARE * colors).astype(np.uint8)
