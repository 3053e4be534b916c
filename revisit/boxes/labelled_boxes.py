"""What the records of boxes say, however their files do: corners, the sizes of images, how much boxes overlap."""

import os

import numpy as np
import torch
from torchvision.ops import box_iou

from revisit.data.images.reader import read_size

from detectron2.structures import BoxMode


def corners_of(annotation: dict) -> list[float]:
    """x0, y0, x1, y1 px of a record's annotation, in any of Detectron2's modes."""
    return BoxMode.convert(list(annotation["bbox"]), annotation["bbox_mode"], BoxMode.XYXY_ABS)


def size_of(record: dict) -> tuple[int, int]:
    """Height and width of a record's image, px, from its file where the record does not have them."""
    size = record if "height" in record and "width" in record else read_size(record["file_name"])
    return size["height"], size["width"]


def with_whole_name(record: dict) -> dict[str, str]:
    """The ``file_name`` of a record's image, as it is found from any folder."""
    return {"file_name": os.path.abspath(record["file_name"])}


def iou(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(N, M) of boxes (N, 4) and (M, 4), x0, y0, x1, y1 px, of the same dtype."""
    return box_iou(torch.from_numpy(boxes), torch.from_numpy(others)).numpy()
