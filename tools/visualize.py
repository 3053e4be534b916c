#!/usr/bin/env python
"""Draw what a finetuned model predicts on a data set: input, truth and prediction side by side.

    python tools/visualize.py --weights output/own/detection/model_final.pth --output output/sheets

A run's checkpoint knows its network, classes, input and test sets; KEY VALUE pairs change what concerns the test.
Works for detection (boxes), semantic segmentation (classes, void left unpainted) and depth (metres). The images are
spread evenly over the data set, the same ones in every call.

To check a new data set by eye, without any model:

    python tools/visualize.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml --truth-only \\
        --dataset voc:/data/my_boxes:trainval --output output/sheets
"""

import argparse
import re
from pathlib import Path

from projects.Predict.command_line import add_network_options
from revisit.engine.command import natural, parse_with_pairs, run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_network_options(parser, "detection: draw boxes")
    add("--output", required=True, type=output_path, metavar="DIR", help="folder for the sheets, created if needed")
    add("--dataset", metavar="NAME", help="data set to draw (default: the first of DATASETS.TEST)")
    add("--num-images", type=natural, default=8, metavar="N", help="images in all (default: %(default)s)")
    add("--rows", type=natural, default=4, metavar="N", help="images per sheet (default: %(default)s)")
    add("--truth-only", action="store_true", help="draw input and truth without any model")
    add("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="override the config: pairs, after --opts or not")
    return parse_with_pairs(parser)


def main() -> None:
    args = parse_args()
    from projects.Pictures.tiles import save_sheet
    from projects.Predict.predictions import TASKS, finetuned_config, make_rows, set_score_threshold
    from revisit.keys import DETECTORS

    cfg = finetuned_config(args)
    architecture = cfg.MODEL.META_ARCHITECTURE
    expect(bool(args.dataset or cfg.DATASETS.TEST), "no data to draw: give --dataset NAME, or set DATASETS.TEST")
    dataset = args.dataset or cfg.DATASETS.TEST[0]
    threshold = set_score_threshold(cfg, args)
    rows = make_rows(cfg, dataset, args.num_images, args.truth_only)
    headers, subtitle = ["input", TASKS[architecture][1]], "truth only"
    if not args.truth_only:
        scores = f" (scores of at least {threshold:g})" if architecture in DETECTORS else ""
        headers, subtitle = [*headers, f"prediction{scores}"], f"weights {cfg.MODEL.WEIGHTS}"
    make_folder(args.output, "--output")
    # The ends of all paths: a test set may differ from its training set in its folder of images alone.
    name = "_".join(Path(part).stem for part in dataset.split(":")[1:]) or dataset
    for page, start in enumerate(range(0, len(rows), args.rows), start=1):
        path = args.output / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}_{page:02d}.png"
        save_sheet(path, rows[start : start + args.rows], headers, title=dataset, subtitle=subtitle)
        print(path)


if __name__ == "__main__":
    run_command(main)
