#!/usr/bin/env python
"""Draw what a finetuned model predicts on a data set: input, truth and prediction side by side.

    python tools/visualize.py --weights output/own/detection/model_final.pth --output output/sheets

A run's checkpoint knows its network, classes, input and test sets; KEY VALUE pairs change what concerns the test.
Works for detection (boxes), semantic segmentation (classes, void left unpainted) and depth (metres). The images are
spread evenly over the data set, the same ones in every call. Of tiles:SIZE:NAME they are windows, of which as many show
no objects as do.

To check a new data set by eye, without any model:

    python tools/visualize.py --config-file configs/detection/voc_faster_rcnn_R50_C5.yaml --how truth \\
        --data voc:/data/my_boxes:trainval --output output/sheets
"""

import argparse
import re
from pathlib import Path

from projects.Predict.command_line import add_network_options
from revisit.command.options import DEFAULT, add, named, parse, parser_of
from revisit.engine.command import natural, run_command
from revisit.errors import expect
from revisit.files import make_folder


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add_network_options(parser, "detection: draw boxes")
    add(parser, "output", required=True, help="folder for the sheets, created if needed")
    add(parser, "data", help="data set to draw (default: the first of DATASETS.TEST)")
    add(parser, "count", default=8, help=f"images in all {DEFAULT}")
    add(parser, "rule", type=named({"rows": natural}), help="rows=N: images per sheet (default: 4)")
    truth = f"predictions next to the truth, or input and truth without any model {DEFAULT}"
    add(parser, "how", choices=("predictions", "truth"), default="predictions", help=truth)
    add(parser, "opts")
    return parse(parser)


def main() -> None:
    args = parse_args()
    from projects.Pictures.tiles import save_sheet
    from projects.Predict.predictions import TASKS, finetuned_config, make_rows, set_score_threshold
    from revisit.data.images.deep_images import pixel_format
    from revisit.keys import DETECTORS

    cfg = finetuned_config(args)
    architecture = cfg.MODEL.META_ARCHITECTURE
    expect(bool(args.data or cfg.DATASETS.TEST), "no data to draw: give --data NAME, or set DATASETS.TEST")
    dataset = args.data or cfg.DATASETS.TEST[0]
    threshold = set_score_threshold(cfg, args)
    truth_only, on_sheet = args.how == "truth", dict(args.rule).get("rows", 4)
    rows = make_rows(cfg, dataset, args.count, truth_only)
    headers, subtitle = ["input", TASKS[architecture][1]], "truth only"
    if not truth_only:
        scores = f" (scores of at least {threshold:g})" if architecture in DETECTORS else ""
        headers, subtitle = [*headers, f"prediction{scores}"], f"weights {cfg.MODEL.WEIGHTS}"
    subtitle = pixel_format(cfg).caption(subtitle)
    make_folder(args.output, "--output")
    # The ends of all paths: a test set may differ from its training set in its folder of images alone.
    name = "_".join(Path(part).stem for part in dataset.split(":")[1:]) or dataset
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
    for earlier in args.output.glob(f"{stem}_[0-9][0-9].png"):  # of more rows, perhaps by other weights
        earlier.unlink()
    for page, start in enumerate(range(0, len(rows), on_sheet), start=1):
        path = args.output / f"{stem}_{page:02d}.png"
        save_sheet(path, rows[start : start + on_sheet], headers, title=dataset, subtitle=subtitle)
        print(path)


if __name__ == "__main__":
    run_command(main)
