#!/usr/bin/env python
"""Write the list of BDD100K's images of the data-bias study.

    python datasets/prepare_bdd100k.py --bdd100k $DETECTRON2_DATASETS/bdd100k

The paper prints 90K images without saying which: train (70,000) and test (20,000) of the "100K images" are inferred
from that number. They are expected as DIR/images/100k/{train,test}/*.jpg, as the archive unpacks them.
"""

import os

from folder_arguments import LISTS, folder_parser
from image_subsets import write_list

from revisit.data.sources.image_folders import is_visible
from revisit.engine.command import run_command
from revisit.errors import expect

EXPECTED = {"train": 70000, "test": 20000}


def main(argv: list[str] | None = None) -> None:
    source = ("bdd100k", "with images/100k/train and images/100k/test")
    args = folder_parser(__doc__, bdd100k=source, output=LISTS).parse_args(argv)
    root = args.bdd100k / "images/100k"
    images, counts = [], {}
    for split in EXPECTED:
        place = root / split
        expect(place.is_dir(), f"{place} not found: unpack BDD100K's 100K images there (datasets/README.md)")
        names = [name for name in os.listdir(place) if name.endswith(".jpg") and is_visible(name)]
        images += [f"{split}/{name}" for name in names]
        counts[split] = len(names)
    expect(images, f"{root} has no image: expected train/*.jpg and test/*.jpg")
    path = args.output / "bdd100k_90k.txt"
    write_list(path, sorted(images), root, "train and test of BDD100K (inferred from the paper's 90K)")
    print(f"{path}: {len(images):,} images")
    if counts != EXPECTED:
        shares = ", ".join(f"{counts[split]:,} of {number:,} in {split}" for split, number in EXPECTED.items())
        print(f"note: this is not all of it: {shares}")


if __name__ == "__main__":
    run_command(main)
