"""Whether found boxes are worth learning, by one number and before a training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from projects.Discover.ranking import best
from revisit.boxes.boxes import IOU, iou

LIKELY_OBJECTS = "likely objects"
JUDGED = 15  # best boxes of an image by either ranking
AGREES = 0.09  # from which agreement on objects are likely
STANDS_OUT = 1.03  # from which contrast of the whole object, in shares of that of the best parts
DOUBTFUL = 0.85  # share of either, from which on they are not background


class Verdict(NamedTuple):
    """What to expect of the boxes of a data set."""

    verdict: str  # likely objects, doubtful, background
    evidence: float  # at least 0

    def __str__(self) -> str:
        return f"{self.verdict} (evidence {self.evidence:.2f}; from 1 on likely objects, below {DOUBTFUL} background)"


def agreement(boxes: np.ndarray, of_image: np.ndarray, recurs: np.ndarray) -> float:
    """How far two rankings agree that do not know each other: the share of an image's best JUDGED boxes by its own
    scores that are also among the best JUDGED by recurrence in other images, at IoU 0.5, less the share that are among
    as many of a random order; from -1 to 1.

    Args:
        boxes: (n, 4).
        of_image: (n,) scores of the image alone.
        recurs: (n,) recurrence.
    """
    by_chance = np.random.default_rng(0).permutation(recurs)
    own, others, random = (boxes[best(boxes, scores, JUDGED)] for scores in (of_image, recurs, by_chance))
    return float(_share(own, others) - _share(own, random)) if len(own) else 0.0


def _share(boxes: np.ndarray, others: np.ndarray) -> float:
    return (iou(boxes, others).max(axis=1) >= IOU).mean()


def verdict(images: Sequence[dict[str, Any]]) -> Verdict:
    """Of at least one image, by the higher of the mean ``agreement`` in shares of AGREES, and of the median of how far
    the whole object ``stands_out`` in shares of STANDS_OUT."""
    agrees = np.mean([image["agreement"] for image in images]) / AGREES
    stands_out = np.median([image["stands_out"] for image in images]) / STANDS_OUT
    evidence = round(float(max(agrees, stands_out)), 2)
    outcome = LIKELY_OBJECTS if evidence >= 1 else "doubtful" if evidence >= DOUBTFUL else "background"
    return Verdict(outcome, evidence)
