#!/usr/bin/env python
"""Planted objects, what an exact and a noisy detector see of them in windows, and what becomes of that when it is
merged: by this project, and by sahi and supervision where they import.

    pip install sahi supervision
    python studies/tiles/merging.py

Prints a table for each overlap, means over the seeds. Merging alone is measured: nothing is trained.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable

import numpy as np

from projects.Tiles.merging import Found, merged
from revisit.engine.command import natural, run_command
from revisit.markdown import markdown_table
from studies.tiles.planted import Scan, detect, judge, plant, with_reduced

OVERLAPS = (0, 64, 128, 256)  # px of windows of 1,024
NOISE = 0.02  # of a side, of the noisy detector's edges
THRESHOLD = 0.5
COLUMNS = ("detector", "merged by", "recall inside (%)", "on seams (%)", "doubles", "merged neighbours", "seconds")

Merging = Callable[[Found, Scan], np.ndarray]  # the boxes that are left, best first


def by_borders(found: Found, scan: Scan) -> np.ndarray:
    return merged(found, scan.windows, scan.side, scan.side).boxes


def by_sahi(name: str, metric: str) -> Merging:
    """``name``: of a class of sahi's; ``metric``: IOU, or IOS, the share of the smaller box."""

    def merge(found: Found, scan: Scan) -> np.ndarray:
        from sahi.postprocess import combine
        from sahi.prediction import ObjectPrediction

        columns = (found.boxes.tolist(), found.scores.tolist(), found.classes.tolist())
        given = [ObjectPrediction(bbox=box, score=score, category_id=n) for box, score, n in zip(*columns, strict=True)]
        left = getattr(combine, name)(THRESHOLD, metric, class_agnostic=False)(given)
        left.sort(key=lambda each: -each.score.value)
        return np.array([each.bbox.to_xyxy() for each in left], float)

    return merge


def by_supervision(name: str, metric: str) -> Merging:
    """``name``: of a method of supervision's Detections, which its InferenceSlicer calls."""

    def merge(found: Found, scan: Scan) -> np.ndarray:
        from supervision import Detections, OverlapMetric

        given = Detections(xyxy=found.boxes, confidence=found.scores, class_id=found.classes)
        left = getattr(given, name)(THRESHOLD, overlap_metric=OverlapMetric[metric])
        return left.xyxy[np.argsort(-left.confidence)]

    return merge


MERGINGS: dict[str, Merging] = {
    "revisit": by_borders,
    "sahi NMS, IoU": by_sahi("NMSPostprocess", "IOU"),
    "sahi NMM, IoS": by_sahi("NMMPostprocess", "IOS"),
    "sahi GREEDYNMM, IoS": by_sahi("GreedyNMMPostprocess", "IOS"),
    "supervision NMS, IoU": by_supervision("with_nms", "IOU"),
    "supervision NMM, IoU": by_supervision("with_nmm", "IOU"),
    "supervision NMM, IoS": by_supervision("with_nmm", "IOS"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tile", type=natural, default=1024, metavar="PX", help="side of a window (default: %(default)s)")
    add("--count", type=natural, default=1000, metavar="N", help="objects, 30 %% on seams (default: %(default)s)")
    add("--seeds", type=natural, default=3, metavar="N", help="scans of each kind (default: %(default)s)")
    args = parser.parse_args()
    installed = ["revisit", *(name for name in ("sahi", "supervision") if importlib.util.find_spec(name))]
    mergings = {name: merge for name, merge in MERGINGS.items() if name.split()[0] in installed}
    for overlap in OVERLAPS:
        pixels = overlap * args.tile // OVERLAPS[-1] // 4
        print(f"\nOverlap {pixels} px:\n\n{table(args.tile, pixels, args.count, args.seeds, mergings)}", flush=True)


def table(tile: int, overlap: int, count: int, seeds: int, mergings: dict[str, Merging]) -> str:
    rows: dict[tuple[str, str], list] = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        scan = plant(tile, overlap, count, 3 * count // 10, rng)
        both = with_reduced(scan)
        detectors = {
            "exact": (scan, 0.0),
            "noisy": (scan, NOISE),
            "exact, and reduced": (both, 0.0),
            "noisy, and reduced": (both, NOISE),
        }
        for detector, (seen, noise) in detectors.items():
            found = detect(seen, rng, noise)
            for name, merge in mergings.items():
                rows.setdefault((detector, name), []).append(timed(merge, found, seen))
    means = ((*names, np.mean(values, axis=0)) for names, values in rows.items())
    return markdown_table(COLUMNS, [(detector, name, *formatted(mean)) for detector, name, mean in means])


def timed(merge: Merging, found: Found, scan: Scan) -> tuple[float, ...]:
    """The verdict, and seconds."""
    start = time.perf_counter()
    boxes = merge(found, scan)
    seconds = time.perf_counter() - start
    return (*judge(scan, boxes), seconds)


def formatted(mean: np.ndarray) -> list[str]:
    inside, on_seams, doubles, joined, seconds = mean
    return [f"{100 * inside:.1f}", f"{100 * on_seams:.1f}", f"{doubles:.0f}", f"{joined:.0f}", f"{seconds:.2f}"]


if __name__ == "__main__":
    run_command(main)
