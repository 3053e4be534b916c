"""Label maps: from the pixels of an image to the cells of a feature map, and back; Pascal VOC's colours of ids."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F


def shrink_labels(ids: Tensor, num_labels: int, size: tuple[int, int], *, sampled: bool = False) -> Tensor:
    """(H, W) ids below ``num_labels`` -> (L, h, w) float32: the share of each label in a cell's pixels.

    ``sampled``: the share in the 2 x 2 pixels around the cell's centre instead, weighted bilinearly by their distance.
    """
    one_hot = F.one_hot(ids.long(), num_labels)
    one_hot = one_hot.permute(2, 0, 1).float()
    if sampled:
        return F.interpolate(one_hot[None], size=size, mode="bilinear", align_corners=False)[0]
    return F.adaptive_avg_pool2d(one_hot, size)


def enlarge_labels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """(L, h, w) soft labels -> (H, W) uint8: the strongest in each pixel, bilinear between cells."""
    of_pixels = F.interpolate(labels[None], size=size, mode="bilinear")[0]
    return of_pixels.argmax(dim=0).to(torch.uint8)


def enlarge_map(values: np.ndarray, seen: tuple[int, int], stride: int, size: tuple[int, int]) -> np.ndarray:
    """(h, w) float32 over an image that the network has ``seen`` at (H', W') px -> over its (H, W) px, bilinear.

    A cell is ``stride`` px of what was seen, also where that is no multiple of it and the last cells reach beyond it.
    """
    (height, width), (seen_height, seen_width) = size, seen
    num_rows, num_columns = values.shape
    rows = _between_cells(height, seen_height, num_rows, stride)
    columns = _between_cells(width, seen_width, num_columns, stride)
    return rows @ values @ columns.T


def _between_cells(count: int, pixels: int, cells: int, stride: int) -> np.ndarray:
    """(count, cells) float64: how much each cell counts at each of ``count`` places, evenly spread over the pixels."""
    places = (np.arange(count) + 0.5) * pixels / count / stride - 0.5
    centres = np.arange(cells)
    weights = [np.interp(places, centres, alone) for alone in np.eye(cells)]
    return np.stack(weights, axis=1)


def voc_colours() -> np.ndarray:
    """Pascal VOC's colour of each id, uint8 (256, 3) RGB, which DAVIS took over.

    The id's bits go to red, green and blue in turn, its lowest ones to the colours' highest.
    """
    ids = np.arange(256)[:, None, None]
    places = np.arange(8)[:, None]
    of_colour = 3 * places + np.arange(3)  # (8, 3), places of a colour's bits in the id
    bits = ids >> of_colour & 1  # (256, 8, 3)
    values = bits << (7 - places)
    return values.sum(axis=1).astype(np.uint8)


def palette_image(ids: np.ndarray) -> Image.Image:
    """A picture of (H, W) uint8 ids in these colours, which stores the ids themselves."""
    image = Image.fromarray(ids)
    image.putpalette(voc_colours().tobytes())
    return image
