#!/usr/bin/env python
"""Copy images with small changes, to measure what tools/curate.py finds: others' crops, brightness and JPEG quality.

    python projects/Curation/make_copies.py --images folder:/data/photos --output output/copies

Of each image there are --copies: the first as it is, the others with 90 to 100 % of each side, 0.7 to 1.3 times as
bright, in JPEG's qualities 30 to 95. OUTPUT/truth.csv says in groups.csv's format which are of one image. The same
seed gives the same bytes.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from revisit.engine.command import natural, run_command
from revisit.files import make_folder, output_path, write_whole

SIDES, LIGHT, QUALITY = (0.9, 1.0), (0.7, 1.3), (30, 96)
BEST = 98  # JPEG's quality of the first copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--images", required=True, metavar="NAME", help="a data set, such as folder:/data/photos")
    add("--output", required=True, type=output_path, metavar="DIR")
    add("--copies", type=natural, default=10, metavar="N", help=f"of each image {default}")
    add("--first", type=natural, metavar="N", help="so many images, evenly spread (default: all)")
    add("--seed", type=int, default=0, help=f"of the changes {default}")
    args = parser.parse_args()
    from projects.common.tables import csv_table
    from revisit.data.images.reader import require_record
    from revisit.data.sources.catalog import get_records
    from revisit.data.sources.records import sample

    records = list(get_records(args.images))
    records = sample(records, args.first) if args.first else records
    make_folder(args.output, "--output")
    rng = np.random.default_rng(args.seed)
    lines = []
    for number, record in enumerate(tqdm(records, desc="copying", unit="image")):
        image = require_record(record)
        for copy in range(args.copies):
            name = f"{number:05d}_{copy:02d}.jpg"
            changed, quality = jittered(image, rng) if copy else (image, BEST)
            save_jpeg(args.output / name, changed, quality)
            lines.append((name, number))
    write_whole(args.output / "truth.csv", csv_table(("file_name", "group"), lines))
    print(f"{len(lines)} copies of {len(records)} images: {args.output}")


def jittered(image: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """A part of an (H, W, 3) uint8 image with other brightness, and the quality of its JPEG."""
    height, width = (max(1, round(side * rng.uniform(*SIDES))) for side in image.shape[:2])
    top = rng.integers(image.shape[0] - height + 1)
    left = rng.integers(image.shape[1] - width + 1)
    part = image[top : top + height, left : left + width]
    bright = (part * rng.uniform(*LIGHT)).round().clip(0, 255)
    return bright.astype(np.uint8), int(rng.integers(*QUALITY))


def save_jpeg(path: Path, image: np.ndarray, quality: int) -> None:
    """Of an (H, W, 3) uint8 RGB image."""
    cv2.imwrite(str(path), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])


if __name__ == "__main__":
    run_command(main)
