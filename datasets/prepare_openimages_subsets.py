#!/usr/bin/env python
"""Write the lists of OpenImages' subsets of the data-bias study.

    python datasets/prepare_openimages_subsets.py --openimages $DETECTRON2_DATASETS/openimages

openimages_118k is a random subset of the 1,743,042 training images that have boxes (inferred: the paper prints 8.4
objects an image, which those have), openimages_236k, _472k and _944k are two, four and eight times as many, each with
all of the one before. DIR has train-annotations-bbox.csv, or another of OpenImages' files of training images with
a column ImageID, named by --boxes, and the images as train/ID.jpg. The same file and seed give the same lists
anywhere, whatever images are there: a list is written once all of its images are, and the ids of those that are missing
go to NAME.missing.txt as OpenImages' own downloader.py reads them.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from folder_arguments import seeded_parser
from image_subsets import MULTIPLES, seeded_order, thousands, write_list
from tqdm import tqdm

from revisit.engine.command import run_command
from revisit.errors import expect, translated
from revisit.files import written_whole

NUM_BOXABLE = 1743042


def main(argv: list[str] | None = None) -> None:
    parser = seeded_parser(__doc__, openimages=("openimages", "with train/ and train-annotations-bbox.csv"))
    parser.add_argument("--boxes", type=Path, metavar="FILE", help="(default: DIR/train-annotations-bbox.csv)")
    args = parser.parse_args(argv)
    ids = count_boxes(args.boxes or args.openimages / "train-annotations-bbox.csv")
    order = seeded_order(ids, args.seed)
    sizes = [args.count * multiple for multiple in MULTIPLES if args.count * multiple <= len(order)]
    expect(sizes, f"{len(order):,} images are in the file: {args.count:,} are asked for")
    complete = [write_subset(args, order, size) for size in sizes]
    if len(order) != NUM_BOXABLE:
        print(f"note: {len(order):,} images are in the file, OpenImages' training set has {NUM_BOXABLE:,} with boxes")
    expect(any(complete), f"no list has all of its images in {args.openimages / 'train'}: download the missing ones")


def count_boxes(path: Path) -> Counter[str]:
    """Lines by image of a CSV file with the column ImageID."""
    with translated(f"reading OpenImages' boxes {path}"), open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        column = next(rows, []).index("ImageID")
        return Counter(row[column] for row in tqdm(rows, unit="row", unit_scale=True, desc=path.name, disable=None))


def write_subset(args: argparse.Namespace, order: list[str], size: int) -> bool:
    """Write one list, or the ids that keep it from being complete; returns whether it is."""
    name, folder = f"openimages_{thousands(size)}", args.openimages / "train"
    chosen = sorted(order[:size])
    missing = [image for image in chosen if not (folder / f"{image}.jpg").is_file()]
    missing_file = args.output / f"{name}.missing.txt"
    if missing:
        args.output.mkdir(parents=True, exist_ok=True)
        with written_whole(missing_file) as temporary:
            temporary.write_text("".join(f"train/{image}\n" for image in missing))
        print(f"{name}: {len(missing):,} of {size:,} images are not in {folder}; {missing_file} names them")
        return False
    missing_file.unlink(missing_ok=True)
    images = [f"{image}.jpg" for image in chosen]
    write_list(args.output / f"{name}.txt", images, folder, f"{size} images with boxes, seed {args.seed}")
    print(f"{args.output / name}.txt: {size:,} images")
    return True


if __name__ == "__main__":
    run_command(main)
