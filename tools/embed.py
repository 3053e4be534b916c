#!/usr/bin/env python
"""Embed images, or boxes in them, by the frozen features of any start: a table with a row of numbers for each.

    python tools/embed.py --weights imagenet:efficientnet_lite0 --images folder:/data/photos --output output/rows
    python tools/embed.py --weights output/own/detection/model_final.pth --box-head \\
        --boxes coco:/data/photos:/data/boxes.json --output output/rows

Writes embeddings.npz (files, boxes, classes, rows of length 1, and what they are of), which tools/similar.py,
tools/atlas.py and tools/curate.py read. The same command continues where it was interrupted.
"""

import argparse

from projects.Predict.command_line import add_overrides
from revisit.engine.command import natural, parse_with_pairs, run_command, whole
from revisit.errors import expect
from revisit.files import make_folder, output_path
from revisit.jobs.options import add_runner_options, runner_of

FORMATS = ("npz", "csv", "parquet")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--weights", required=True, metavar="FILE", help="a converted backbone, a run's checkpoint, or a name")
    add("--images", default="", metavar="NAME", help="a row for each image of a data set, such as folder:/data/photos")
    boxes = "a row for each box of a data set, such as coco:IMAGES:FILE, or of a predictions.json of tools/predict.py"
    add("--boxes", default="", metavar="NAME", help=f"{boxes}; with --images of those images alone")
    add("--output", required=True, type=output_path, metavar="DIR")
    add("--size", type=natural, default=224, metavar="PX", help=f"of the middle of an image {default}")
    add("--short-side", type=natural, default=480, metavar="PX", help=f"of an image with boxes {default}")
    add("--stride", type=int, default=8, choices=(4, 8, 16, 32), help=f"of the finest map for boxes {default}")
    add("--pyramid", action="store_true", help="boxes: maps of the pyramid (FPN) in the weights")
    add("--box-head", action="store_true", help="boxes: by the box head of a finetuned detector")
    add("--format", nargs="+", default=["npz"], choices=FORMATS, help=f"files to write next to npz {default}")
    add("--readers", type=whole, default=2, metavar="N", help=f"processes that read images for each network {default}")
    add("--device", default="", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")
    add("--config-file", default="", metavar="FILE", help="with --box-head, for weights that hold no config")
    add_runner_options(parser)
    add_overrides(parser)
    return parse_with_pairs(parser)


def main() -> None:
    args = parse_args()
    expect(bool(args.images or args.boxes), "nothing to embed: expected --images, or --boxes")
    expect(bool(args.boxes) or not args.box_head, "--box-head makes rows of boxes: expected --boxes, too")
    from projects.Rows.embedders import embedder_of
    from projects.Rows.embedding import embed
    from projects.Rows.regions import boxes_of, whole_images
    from projects.Rows.row_table import save_csv, save_parquet
    from revisit.engine.freed_memory import keep_freed_memory

    runner = runner_of(args)
    embedder = embedder_of(args)
    keep_freed_memory(args.device or "cpu")
    places = boxes_of(args.boxes, args.images) if args.boxes else whole_images(args.images)
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
