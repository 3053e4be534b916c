"""Whether found boxes are worth learning, by one number and before a training."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Discover.ranking import best
from revisit.boxes.boxes import IOU, iou

LIKELY_OBJECTS = "likely objects"
JUDGED = 15  # best boxes of an image by either ranking
LIKELY, DOUBTFUL = 0.4, 0.3  # agreement from which on the boxes are called so; by chance it is a third
_HEAD = re.compile(r'\{"info": \{"found": "(doubtful|background)", "agreement": ([\d.]+)\}')


class Verdict(NamedTuple):
    """What is said of the boxes of a data set."""

    found: str  # likely objects, doubtful, background
    agreement: float  # from 0 to 1

    def __str__(self) -> str:
        scale = f"from {LIKELY} on likely objects, below {DOUBTFUL} background"
        return f"{self.found} (agreement {self.agreement:.2f}; {scale})"


def agreement(boxes: np.ndarray, of_image: np.ndarray, recurs: np.ndarray) -> float:
    """The share, from 0 to 1, of an image's best JUDGED boxes by its own scores that are also among the best JUDGED by
    recurrence in other images, at IoU 0.5. Neither ranking knows the other, so what both find is hardly by chance.

    Args:
        boxes: (n, 4).
        of_image: (n,) scores of the image alone.
        recurs: (n,) recurrence.
    """
    rankings = [boxes[best(boxes, scores, JUDGED)] for scores in (of_image, recurs)]
    nearest = iou(*rankings).max(axis=1, initial=0)
    return float((nearest >= IOU).mean()) if len(nearest) else 0.0


def verdict(agreements: Sequence[float]) -> Verdict:
    """By the mean over all images, at least one."""
    mean = round(float(np.mean(agreements)), 3)
    found = LIKELY_OBJECTS if mean >= LIKELY else "doubtful" if mean >= DOUBTFUL else "background"
    return Verdict(found, mean)


def doubt_of(data_set: Path) -> str:
    """What the info at the beginning of a COCO file says against its boxes; "" where it says nothing."""
    if not data_set.is_file():
        return ""
    with data_set.open(encoding="utf-8", errors="replace") as file:
        told = _HEAD.match(file.read(200))
    return f"{told[1]} (agreement {told[2]})" if told else ""
