"""J and F of DAVIS 2017, semi-supervised: how well the masks of a video's objects were followed (Perazzi et al., 2016).

J is the region's intersection over union, F the F-measure of its boundary. Both are means over objects, not over
sequences; the first frame, which is given, and the last one do not count.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from revisit.data.labels import VOID
from revisit.files import written_whole

BOUNDARY_SHARE = 0.008  # of the image's diagonal: how far apart two boundaries may be and still agree
RECALL_THRESHOLD = 0.5
QUARTERS = 4
GLOBAL_COLUMNS = ("J&F-Mean", "J-Mean", "J-Recall", "J-Decay", "F-Mean", "F-Recall", "F-Decay")


def region_similarity(mask: np.ndarray, truth: np.ndarray) -> float:
    """J: intersection over union of two (H, W) bool masks, in [0, 1]; 1 if both are empty."""
    union = np.count_nonzero(mask | truth)
    return np.count_nonzero(mask & truth) / union if union else 1.0


def boundary_accuracy(mask: np.ndarray, truth: np.ndarray) -> float:
    """F: harmonic mean of precision and recall of the boundary of two (H, W) bool masks, in [0, 1].

    A boundary pixel is right if the other mask has one within ``ceil(0.008 * diagonal)`` px of it. Two masks without
    boundary agree fully, one without does not agree at all.
    """
    found, wanted = boundary(mask), boundary(truth)
    num_found, num_wanted = np.count_nonzero(found), np.count_nonzero(wanted)
    if not num_found or not num_wanted:
        return float(num_found == num_wanted)
    reach = int(np.ceil(BOUNDARY_SHARE * np.hypot(*mask.shape)))
    precision = np.count_nonzero(found & _grow(wanted, reach)) / num_found
    recall = np.count_nonzero(wanted & _grow(found, reach)) / num_wanted
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def boundary(mask: np.ndarray) -> np.ndarray:
    """Pixels of an (H, W) bool mask that differ from their right, lower or lower right neighbour inside the image."""
    around = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    return (mask != around[:-1, 1:]) | (mask != around[1:, :-1]) | (mask != around[1:, 1:])


def _grow(mask: np.ndarray, radius: int) -> np.ndarray:
    """Pixels at most ``radius`` px from a pixel of the (H, W) bool mask."""
    steps = np.arange(-radius, radius + 1)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.uint8)
    return cv2.dilate(mask.astype(np.uint8), disk).astype(bool)


@dataclass(frozen=True)
class ObjectScore:
    """One object of one sequence: J and F of each frame that counts, (T - 2,) float64 in [0, 1]."""

    sequence: str
    number: int  # the object's id in the masks, from 1
    region: np.ndarray
    boundary: np.ndarray


def score_sequence(sequence: str, masks: np.ndarray, truth: np.ndarray) -> list[ObjectScore]:
    """J and F of every object of a video.

    Args:
        masks, truth: (T, H, W) uint8 ids of objects, 0 where there is none; VOID pixels of the truth count in neither.

    Raises:
        ValueError: shapes that differ, fewer than three frames, or no object in the first frame.
    """
    if masks.shape != truth.shape or len(truth) < 3:
        raise ValueError(f"{sequence}: masks {masks.shape}, truth {truth.shape}: expected the same, 3 frames or more")
    first = truth[0][truth[0] != VOID]
    if not first.any():
        raise ValueError(f"{sequence}: no object in the first frame")
    valid = truth != VOID
    scores = []
    for number in range(1, int(first.max()) + 1):
        pairs = [((m == number) & v, t == number) for m, t, v in list(zip(masks, truth, valid, strict=True))[1:-1]]
        region = np.array([region_similarity(*pair) for pair in pairs])
        contour = np.array([boundary_accuracy(*pair) for pair in pairs])
        scores.append(ObjectScore(sequence, number, region, contour))
    return scores


def statistics(values: np.ndarray) -> tuple[float, float, float]:
    """(mean, recall, decay) of an object's scores over frames, (T,) in [0, 1].

    Recall is the share of frames above 0.5; decay is the mean of the first quarter less that of the last, whose
    ends are round(linspace(1, T, 5)), both included. (The official tool counts in uint8 and goes wrong beyond 256
    frames; this does not.)
    """
    ends = np.round(np.linspace(1, len(values), QUARTERS + 1) + 1e-10).astype(int) - 1
    quarters = [values[start : end + 1] for start, end in zip(ends[:-1], ends[1:], strict=True)]
    return (
        float(values.mean()),
        float((values > RECALL_THRESHOLD).mean()),
        float(quarters[0].mean() - quarters[-1].mean()),
    )


def summarize(scores: list[ObjectScore]) -> dict[str, float]:
    """GLOBAL_COLUMNS, each in [0, 1] (decay in [-1, 1]), over all objects of all sequences."""
    j_mean, j_recall, j_decay = np.mean([statistics(score.region) for score in scores], axis=0).tolist()
    f_mean, f_recall, f_decay = np.mean([statistics(score.boundary) for score in scores], axis=0).tolist()
    values = ((j_mean + f_mean) / 2, j_mean, j_recall, j_decay, f_mean, f_recall, f_decay)
    return dict(zip(GLOBAL_COLUMNS, values, strict=True))


def write_csvs(folder: Path, scores: list[ObjectScore], split: str = "val") -> None:
    """global_results-SPLIT.csv and per-sequence_results-SPLIT.csv, in the form of DAVIS's official tool."""
    totals = summarize(scores)
    rows = [(f"{s.sequence}_{s.number}", f"{s.region.mean():.3f}", f"{s.boundary.mean():.3f}") for s in scores]
    _write_csv(folder / f"global_results-{split}.csv", GLOBAL_COLUMNS, [[f"{v:.3f}" for v in totals.values()]])
    _write_csv(folder / f"per-sequence_results-{split}.csv", ("Sequence", "J-Mean", "F-Mean"), rows)


def _write_csv(path: Path, header: tuple[str, ...], rows: list) -> None:
    with written_whole(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
