#!/usr/bin/env python
"""Embed images, or boxes in them, by the frozen features of any start: a table with a row of numbers for each.

    python tools/embed.py --weights imagenet:efficientnet_lite0 --data folder:/data/photos --output output/rows
    python tools/embed.py --weights output/own/detection/model_final.pth --features box-head \\
        --boxes coco:/data/photos:/data/boxes.json --output output/rows

Writes embeddings.npz (files, boxes, classes, rows of length 1, and what they are of), which tools/similar.py,
tools/atlas.py and tools/curate.py read. The same command continues where it was interrupted.
"""

import argparse

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder
from revisit.jobs.options import add_runner_options, runner_of

FORMATS = ("npz", "csv", "parquet")


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "weights", required=True)
    add(parser, "data", help="a row for each image of a data set, such as folder:/data/photos")
    boxes = "a row for each box of a data set, such as coco:IMAGES:FILE, or of a predictions.json of tools/predict.py"
    add(parser, "boxes", help=f"{boxes}; with --data of those images alone")
    add(parser, "output", required=True)
    add(parser, "size", default=224, help=f"of the middle of an image {DEFAULT}")
    add(parser, "short-side", default=480, help=f"of an image with boxes {DEFAULT}")
    add(parser, "stride")
    maps = "boxes: maps of the backbone, of the pyramid (FPN) in the weights, or the box head of a finetuned detector"
    add(parser, "features", choices=("backbone", "pyramid", "box-head"), help=f"{maps} {DEFAULT}")
    add(parser, "format", nargs="+", default=["npz"], choices=FORMATS, help=f"files to write next to npz {DEFAULT}")
    add(parser, "readers", "device")
    add(parser, "config-file", help="with --features box-head, for weights that hold no config")
    add_runner_options(parser)
    add(parser, "opts")
    args = parse(parser)
    args.pyramid, args.box_head = (args.features == maps for maps in ("pyramid", "box-head"))
    return args


def main() -> None:
    args = parse_args()
    expect(bool(args.data or args.boxes), "nothing to embed: expected --data, or --boxes")
    expect(bool(args.boxes) or not args.box_head, "--features box-head makes rows of boxes: expected --boxes, too")
    from projects.Rows.embedders import embedder_of
    from projects.Rows.embedding import embed
    from projects.Rows.regions import boxes_of, whole_images
    from projects.Rows.row_table import NEEDS_PYARROW, save_csv, save_parquet
    from revisit.engine.freed_memory import keep_freed_memory
    from revisit.plugins import require_package

    if "parquet" in args.format:
        require_package("pyarrow", NEEDS_PYARROW)

    runner = runner_of(args)
    places = boxes_of(args.boxes, args.data) if args.boxes else whole_images(args.data)
    embedder = embedder_of(args, [each.record for each in places])
    keep_freed_memory(args.device or "cpu")
    make_folder(args.output, "--output")
    table = embed(places, embedder, args.output, args.readers, runner, args.device)
    if "csv" in args.format:
        save_csv(args.output / "embeddings.csv", table)
    if "parquet" in args.format:
        save_parquet(args.output / "embeddings.parquet", table)
    for problem in table.about["left out"]:
        print(f"left out: {problem}")
    print(f"{len(table.rows)} rows of {table.rows.shape[1]} numbers, of {len(places)} images: {args.output}")


if __name__ == "__main__":
    run_command(main)
