#!/usr/bin/env python
"""Write the lists of ImageNet's subsets of the data-bias study.

    python datasets/prepare_imagenet_subsets.py --imagenet $DETECTRON2_DATASETS/imagenet/train

imagenet_118k has 118 images of each of the 1,000 classes (the paper prints 118K images; uniform over classes is
inferred from it), imagenet_236k, _472k and _944k twice, four and eight times as many, each with all of the one
before. 944 images a class do not exist, so there every class gives what it has up to one level. imagenet_118k_lt is
long-tailed: 118,090 images, 1,280 to 5 a class, by a Pareto distribution of alpha 6 (datasets/image_subsets.py says
where it comes from); which class is large is drawn by --seed. The same images and seed give the same lists anywhere.
imagenet_classes.png shows how the images spread over the classes.
"""

import os
from pathlib import Path

from count_classes import plot_classes
from folder_arguments import seeded_parser
from image_subsets import MULTIPLES, assign_counts, choose, long_tailed_counts, thousands, uniform_counts, write_list
from tqdm import tqdm

from revisit.data.images.opening import SUFFIXES
from revisit.data.sources.image_folders import class_folders, is_visible
from revisit.engine.command import natural, run_command
from revisit.errors import expect

NUM_CLASSES, NUM_IMAGES = 1000, 1281167
Files = dict[str, list[str]]


def main(argv: list[str] | None = None) -> None:
    parser = seeded_parser(__doc__, imagenet=("imagenet/train", "with one folder of images a class"))
    what = "images a class of the long-tailed list; a scale of 555 fits ImageNet-LT itself (default: 5 1280 567)"
    numbers = {"default": (5, 1280, 567), "metavar": ("LEAST", "MOST", "SCALE")}
    parser.add_argument("--long-tail", type=natural, nargs=3, **numbers, help=what)
    args = parser.parse_args(argv)
    files = find_files(args.imagenet)
    counts = class_counts(files, args.count, args.long_tail, args.seed)
    for name, wanted in counts.items():
        images = choose(files, wanted, args.seed)
        comment = f"{len(images)} images of {len(wanted)} classes, seed {args.seed}"
        write_list(args.output / f"{name}.txt", images, args.imagenet, comment)
        per_class = f"{min(wanted.values())} to {max(wanted.values())} a class"
        print(f"{args.output / name}.txt: {len(images):,} images, {per_class}")
    plot_classes(counts, args.output / "imagenet_classes.png")
    if (len(files), number := sum(map(len, files.values()))) != (NUM_CLASSES, NUM_IMAGES):
        print(
            f"note: ImageNet's training set has {NUM_IMAGES:,} images of {NUM_CLASSES:,} classes, {args.imagenet} has "
            f"{number:,} of {len(files):,}: these are not the lists of the complete download"
        )


def find_files(root: Path) -> Files:
    """Names of the images in each folder of ``root``, by folder. Raises UserError where there are none."""
    expect(root.is_dir(), f"{root} not found: expected ImageNet's training images in one folder a class")
    folders, files = class_folders(root), {}
    expect(folders, f"{root} has no folders: expected one a class (n01440764/, ...), with images")
    for folder in tqdm(folders, unit="class", desc="looking for images", disable=None):
        names = filter(is_visible, os.listdir(root / folder))
        files[folder] = [name for name in names if os.path.splitext(name)[1].lower() in SUFFIXES]
        expect(bool(files[folder]), f"{root / folder} has no image: unpack that class, or remove the folder")
    return files


def class_counts(files: Files, size: int, long_tail: tuple[int, int, int], seed: int) -> dict[str, dict[str, int]]:
    """How many images of each class every list has, by the name of the list."""
    available = {name: len(images) for name, images in files.items()}
    counts = {f"imagenet_{thousands(size * n)}": uniform_counts(available, size * n, seed) for n in MULTIPLES}
    least, most, scale = long_tail
    tail = long_tailed_counts(len(available), least=least, most=most, scale=scale)
    counts[f"imagenet_{thousands(size)}_lt"] = assign_counts(available, tail, seed)
    return counts


if __name__ == "__main__":
    run_command(main)
