#!/usr/bin/env python
"""Find labels that are wrong: swapped classes, missing boxes, boxes next to their objects, boxes of an odd size.

    python tools/check_labels.py --weights imagenet:efficientnet_lite0 --labels coco:/data/photos:/data/boxes.json \\
        --config-file configs/own_images/detection_fpn_lite0.yaml --output output/suspects
    python tools/check_labels.py --accept accepted.csv --output output/suspects

The first call writes suspects.csv, .json, .png and .html, most suspicious first. With --config-file it trains two
detectors, each on half of the images, which look at the other half; --detections takes what others have found. Without
either no box is missing or shifted. The same command continues where it was interrupted.

Keep the rows of suspects.csv that are right in a file of your own, with other suggestions where you know better. The
second call writes corrected.json of them, a data set coco:IMAGES:FILE; it changes no other file.
"""

import argparse
from pathlib import Path

from revisit.engine.command import natural, parse_with_pairs, run_command, whole
from revisit.errors import expect
from revisit.files import make_folder, output_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--weights", default="", metavar="FILE", help="a converted backbone, a run's checkpoint, or a name")
    kinds = "a data set: coco:IMAGES:FILE, yolo:IMAGES:LABELS, voc_xml:IMAGES:LABELS, class_folders:PATH"
    add("--labels", default="", metavar="NAME", help=kinds)
    add("--output", required=True, type=output_path, metavar="DIR")
    seen = "predictions.json of tools/predict.py, or folders of runs, of detectors that have not learned these images"
    add("--detections", nargs="+", default=[], type=Path, metavar="FILE|DIR", help=seen)
    add("--config-file", default="", metavar="FILE", help="recipe of detectors to train on halves of the images")
    add("--count", type=natural, default=200, metavar="N", help=f"the most suspects of each kind {default}")
    add("--accept", type=Path, metavar="CSV", help="rows of DIR/suspects.csv: write DIR/corrected.json, and no more")
    add("--short-side", type=natural, default=480, metavar="PX", help=f"of an image with boxes {default}")
    add("--stride", type=int, default=8, choices=(4, 8, 16, 32), help=f"of the finest map for boxes {default}")
    add("--size", type=natural, default=224, metavar="PX", help=f"of the middle of an image with a class {default}")
    add("--workers", type=whole, default=2, metavar="N", help=f"processes that read images {default}")
    add("--device", default="", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")
    add("--opts", nargs=argparse.REMAINDER, help="KEY VALUE pairs over --config-file come last, after --opts or not")
    args = parse_with_pairs(parser)
    expect(bool(args.accept) or bool(args.labels and args.weights), "expected --labels and --weights, or --accept")
    either = "--detections and --config-file: expected one of them"
    expect(not (args.detections and args.config_file), either)
    return args


def main() -> None:
    args = parse_args()
    make_folder(args.output, "--output")
    if args.accept:
        from projects.Labels.accepting import accept

        count, path = accept(args.accept, args.output)
        print(f"{count} corrections are in {path}; the labels themselves are as they were")
        return
    from projects.Labels.checking import check
    from revisit.engine.freed_memory import keep_freed_memory

    keep_freed_memory(args.device or "cpu")
    counts = check(args)
    for kind, count in counts.items():
        print(f"{kind}: {count} suspects")
    print(f"suspects.html, .csv, .json and .png are in {args.output}")


if __name__ == "__main__":
    run_command(main)
