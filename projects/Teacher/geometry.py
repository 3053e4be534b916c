"""Boxes in one look of an image, as they are in another look of the same image."""

import numpy as np
import torch
from torch import Tensor

from revisit.data.views.looks import Look

from detectron2.structures import Boxes, Instances

SMALLEST = 1.0  # px, of a side that is left inside of the image


def look_at_image(image: np.ndarray, look: Look) -> tuple[np.ndarray, np.ndarray]:
    """An (H, W, C) uint8 image with a look, which is made for squares, in the same size.

    The image lies in the middle of a square of its mean, and is cut out of the square again. Also returned:
    (3, 3) float64, to which point (x, y, 1) of the new image a point of the old one has moved.
    """
    height, width = image.shape[:2]
    size = max(height, width)
    top, left = (size - height) // 2, (size - width) // 2
    mean = image.mean(axis=(0, 1)).round()
    square = np.full((size, size, image.shape[2]), mean, np.uint8)
    rows = slice(top, top + height)
    columns = slice(left, left + width)
    square[rows, columns] = image
    changed = look.apply(square)[rows, columns]
    to_square = np.eye(3)
    to_square[:2, 2] = left, top
    moves = np.linalg.inv(look.source_points(size))
    return np.ascontiguousarray(changed), np.linalg.inv(to_square) @ moves @ to_square


def moved_boxes(boxes: Tensor, moves: Tensor) -> Tensor:
    """Boxes (N, 4), x0 y0 x1 y1 in px, around where an affine map (3, 3) moves what is in them.

    Each is taken for the ellipse that touches its sides, because the box around the moved corners would be too large
    for most things (arXiv 2109.13488). Exact for flips, shifts and scales.
    """
    moves = moves.to(boxes)
    linear = moves[:2, :2]
    shift = moves[:2, 2]
    low = boxes[:, :2]
    high = boxes[:, 2:]
    centres = (low + high) / 2
    radii = (high - low) / 2
    moved_centres = centres @ linear.T + shift
    moved_radii = (radii.square() @ linear.square().T).sqrt()
    corners = [moved_centres - moved_radii, moved_centres + moved_radii]
    return torch.cat(corners, dim=1)


def as_labels(boxes: Instances, moves: Tensor) -> Instances:
    """A teacher's boxes in an image as labels of its other look, as far as that shows them."""
    moved = Boxes(moved_boxes(boxes.pred_boxes.tensor, moves))
    moved.clip(boxes.image_size)
    shown = moved.nonempty(SMALLEST)
    labels = Instances(boxes.image_size)
    labels.gt_boxes = moved[shown]
    labels.gt_classes = boxes.pred_classes[shown]
    return labels
