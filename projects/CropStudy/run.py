#!/usr/bin/env python
"""How much do two random crops of an image share, and does pretraining change if they may share less?

    python projects/CropStudy/run.py --config-file projects/CropStudy/configs/coco.yaml --output output/crops

draws pairs of crops as pretraining does, for each limit of CROP_STUDY.MAX_IOUS: DIR/iou_histogram.png. With
pretraining runs in CROP_STUDY.RUNS, DIR/runs.png shows their losses, and their scores against the limit.
"""

from pathlib import Path

import numpy as np

from projects.common.entry import expect_positive, load_project, write_results
from projects.CropStudy.config import add_crop_study_config
from projects.CropStudy.limited_runs import plot_runs, read_runs
from projects.CropStudy.overlap import draw_overlaps, plot_overlaps
from revisit.engine.command import run_command
from revisit.errors import expect

from detectron2.config import CfgNode


def main() -> None:
    cfg = load_project(__doc__, add_crop_study_config, network=False)
    check(cfg)
    options, output = cfg.CROP_STUDY, Path(cfg.OUTPUT_DIR)
    (height, width), (low, high) = options.IMAGE_SIZE, cfg.VIEWS.LARGE_SCALE
    runs = read_runs(options.RUNS, options.EVALUATIONS, options.SCORE)
    overlaps = [
        draw_overlaps((height, width), (low, high), limit, options.NUM_PAIRS, cfg.SEED) for limit in options.MAX_IOUS
    ]
    protocol = f"{options.NUM_PAIRS} pairs of crops, {low:g} to {high:g} of an image of {width} x {height} px"
    plot_overlaps(overlaps, protocol, output / "iou_histogram.png")
    rows = [
        {
            "max_iou": drawn.max_iou,
            "mean_iou": round(float(drawn.iou.mean()), 4),
            "disjoint_percent": round(100 * float(np.mean(drawn.iou == 0)), 2),
            "above_limit": int((drawn.iou > drawn.max_iou).sum()),
            "fallbacks": drawn.num_fallbacks,
        }
        for drawn in overlaps
    ]
    scores = [{"max_iou": run.max_iou, options.SCORE: run.score} for run in runs]
    write_results(cfg, protocol, {"overlaps": rows, "runs": scores}, network=False)
    for row in rows:
        print(
            f"limit {row['max_iou']:g}: mean IoU {row['mean_iou']:.3f}, {row['disjoint_percent']:.1f} % share nothing, "
            f"{row['above_limit']} pairs above the limit"
        )
    if runs:
        plot_runs(runs, options.SCORE, output / "runs.png")
    print(f"written to {output}: results.json and pictures")


def check(cfg: CfgNode) -> None:
    """Raises UserError for options that mean nothing."""
    size, scale, limits = (
        tuple(v) for v in (cfg.CROP_STUDY.IMAGE_SIZE, cfg.VIEWS.LARGE_SCALE, cfg.CROP_STUDY.MAX_IOUS)
    )
    ordered = len(scale) == 2 and 0 < scale[0] <= scale[1] <= 1
    expect(ordered, f"VIEWS.LARGE_SCALE {scale}: expected 0 < low <= high <= 1")
    expect(len(size) == 2 and min(size) >= 1, f"CROP_STUDY.IMAGE_SIZE {size}: expected height and width in px")
    expect_positive(cfg, "CROP_STUDY.NUM_PAIRS")
    inside = bool(limits) and 0 <= min(limits) <= max(limits) <= 1
    expect(inside, f"CROP_STUDY.MAX_IOUS {limits}: expected limits between 0 and 1")


if __name__ == "__main__":
    run_command(main)
