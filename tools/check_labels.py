#!/usr/bin/env python
"""Find labels that are wrong: swapped classes, missing boxes, boxes next to their objects, boxes of an odd size.

    python tools/check_labels.py --weights imagenet:efficientnet_lite0 --data coco:/data/photos:/data/boxes.json \\
        --config-file configs/own_images/detection_fpn_lite0.yaml --output output/suspects
    python tools/check_labels.py --table accepted.csv --output output/suspects

The first call writes suspects.csv, .json, .png and .html, most suspicious first. With --config-file it trains two
detectors, each on half of the images, which look at the other half; --boxes takes what others have found. Without
either no box is missing or shifted. The same command continues where it was interrupted.

Keep the rows of suspects.csv that are right in a file of your own, with other suggestions where you know better. The
second call writes corrected.json of them, a data set coco:IMAGES:FILE; it changes no other file.
"""

import argparse
from pathlib import Path

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "weights")
    kinds = "labels: coco:IMAGES:FILE, yolo:IMAGES:LABELS, voc_xml:IMAGES:LABELS, class_folders:PATH"
    add(parser, "data", help=kinds)
    add(parser, "output", required=True)
    seen = "predictions.json of tools/predict.py, or folders of runs, of detectors that have not learned these images"
    add(parser, "boxes", nargs="+", default=[], type=Path, metavar="FILE|DIR", help=seen)
    add(parser, "config-file", help="recipe of detectors to train on halves of the images")
    add(parser, "count", default=200, help=f"the most suspects of each kind {DEFAULT}")
    add(parser, "table", metavar="CSV", help="rows of DIR/suspects.csv: write DIR/corrected.json, and no more")
    add(parser, "short-side", default=480, help=f"of an image with boxes {DEFAULT}")
    add(parser, "stride")
    add(parser, "size", default=224, help=f"of the middle of an image with a class {DEFAULT}")
    add(parser, "readers", "device", "opts")
    args = parse(parser)
    expect(bool(args.table) or bool(args.data and args.weights), "expected --data and --weights, or --table")
    either = "--boxes and --config-file: expected one of them"
    expect(not (args.boxes and args.config_file), either)
    return args


def main() -> None:
    args = parse_args()
    make_folder(args.output, "--output")
    if args.table:
        from projects.Labels.accepting import accept

        count, path = accept(args.table, args.output)
        print(f"{count} corrections are in {path}; the labels themselves are as they were")
        return
    from projects.Labels.checking import check
    from revisit.engine.freed_memory import keep_freed_memory

    keep_freed_memory(args.device or "cpu")
    counts = check(args)
    for kind, count in counts.items():
        print(f"{kind}: {count} suspects")
    files = (
        "suspects.html, .csv, .json and .png" if any(counts.values()) else "no suspects: suspects.html, .csv and .json"
    )
    print(f"{files} are in {args.output}")


if __name__ == "__main__":
    run_command(main)
