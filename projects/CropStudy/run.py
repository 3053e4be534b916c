#!/usr/bin/env python
"""How much do two random crops share, and what if they may share less?

    python projects/CropStudy/run.py --config-file projects/CropStudy/configs/coco.yaml --output output/crops

draws pairs of crops as pretraining does, for each limit of CROP_STUDY.MAX_IOUS: DIR/iou_histogram.png. With
pretraining runs in CROP_STUDY.RUNS, DIR/runs.png shows their losses and what came of them against the limit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from projects.common.entry import load_study, parse_study_args, write_results
from projects.CropStudy.config import add_crop_study_config
from projects.CropStudy.overlap import draw_overlaps
from projects.CropStudy.plots import plot_overlaps, plot_runs
from projects.CropStudy.runs import read_runs
from revisit.engine.command import run_command
from revisit.errors import UserError

from detectron2.config import CfgNode


def main() -> None:
    args = parse_study_args(__doc__, weights=False)
    cfg = load_study(args, add_crop_study_config)
    check(cfg)
    options, scale = cfg.CROP_STUDY, tuple(cfg.VIEWS.LARGE_SCALE)
    runs = read_runs([Path(p) for p in options.RUNS], [Path(p) for p in options.EVALUATIONS], options.SCORE)
    overlaps = [
        draw_overlaps(tuple(options.IMAGE_SIZE), scale, limit, options.NUM_PAIRS, cfg.SEED)
        for limit in options.MAX_IOUS
    ]
    height, width = options.IMAGE_SIZE
    title = f"{options.NUM_PAIRS} pairs of crops, {scale[0]:g} to {scale[1]:g} of an image of {width} x {height} px"
    plot_overlaps(overlaps, title, args.output / "iou_histogram.png")
    results = {
        "protocol": title,
        "overlaps": [
            {
                "max_iou": drawn.max_iou,
                "mean_iou": round(float(drawn.iou.mean()), 4),
                "disjoint_percent": round(100 * float(np.mean(drawn.iou == 0)), 2),
                "above_limit": int((drawn.iou > drawn.max_iou).sum()),
                "fallbacks": drawn.num_fallbacks,
            }
            for drawn in overlaps
        ],
        "runs": [{"max_iou": run.max_iou, options.SCORE: run.score} for run in runs],
    }
    write_results(args.output, results)
    for row in results["overlaps"]:
        print(
            f"limit {row['max_iou']:g}: mean IoU {row['mean_iou']:.3f}, {row['disjoint_percent']:.1f} % share nothing, "
            f"{row['above_limit']} pairs above the limit"
        )
    if runs:
        plot_runs(runs, options.SCORE, args.output / "runs.png")
    print(f"written to {args.output}: results.json and pictures")


def check(cfg: CfgNode) -> None:
    """Raises UserError for options that mean nothing."""
    options, scale = cfg.CROP_STUDY, tuple(cfg.VIEWS.LARGE_SCALE)
    if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
        raise UserError(f"VIEWS.LARGE_SCALE {scale}: expected 0 < low <= high <= 1")
    if len(options.IMAGE_SIZE) != 2 or min(options.IMAGE_SIZE) < 1:
        raise UserError(f"CROP_STUDY.IMAGE_SIZE {tuple(options.IMAGE_SIZE)}: expected height and width in px")
    if options.NUM_PAIRS < 1:
        raise UserError(f"CROP_STUDY.NUM_PAIRS {options.NUM_PAIRS}: expected 1 or more")
    if not options.MAX_IOUS or min(options.MAX_IOUS) < 0 or max(options.MAX_IOUS) > 1:
        raise UserError(f"CROP_STUDY.MAX_IOUS {tuple(options.MAX_IOUS)}: expected limits between 0 and 1")


if __name__ == "__main__":
    run_command(main)
