#!/usr/bin/env python
"""Rearrange images of NYU Depth v2 with masks and depth maps of any layout into NYUD_MT, which Revisit reads.

NYUD_MT/{images/NAME.jpg, segmentation/NAME.png, depth/NAME.npy, gt_sets/SPLIT.txt}: masks hold 0 for void and 1 to 40
for the classes, depth maps float32 metres with 0 where the depth is missing. Say where the files lie by patterns, in
which {name} stands for the name of an image; folders may have wildcards, which need the quotes:

    python datasets/prepare_nyud.py --output $DETECTRON2_DATASETS/NYUD_MT --split val \\
        --images "nyud/*/rgb/{name}.png" --masks "nyud/*/labels/{name}_mask.png" --mask-ids zero_based \\
        --depths "nyud/*/depth/{name}.png" --depth-scale 5000

Without --names the split is every image that has a mask or a depth map; the official one has 795 (train) or 654 (val)
images. Masks or depth maps may be left out: then only the data sets nyud_depth_* or nyud_segmentation_* can be read.
Images in another format than JPEG are stored as JPEG of quality 100.
"""

import argparse
import filecmp
import glob
import os
import shutil
from pathlib import Path

import numpy as np
from folder_arguments import folder_parser
from PIL import Image
from tqdm import tqdm

from revisit.data.images.opening import open_image
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import require_record
from revisit.data.sources.image_folders import is_visible
from revisit.data.sources.labels import VOID, check_size, read_depth, read_labels, write_depth, write_labels
from revisit.data.sources.pixel_datasets import NYUD_CLASSES
from revisit.data.sources.split_files import check_split, read_split, write_split
from revisit.engine.command import run_command
from revisit.errors import UserError, expect, translated
from revisit.files import written_whole

OFFSETS = {"zero_based": 0, "one_based": 1}  # as read_labels counts
NAME = "{name}"


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    files = {kind: find(kind, vars(args)[kind]) for kind in ("images", "masks", "depths") if vars(args)[kind]}
    labelled = set().union(*(paths for kind, paths in files.items() if kind != "images"))
    names = read_split(args.names) if args.names else sorted(labelled)
    for kind, paths in files.items():
        missing = [name for name in names if name not in paths]
        if missing:
            place = vars(args)[kind].replace(NAME, missing[0])
            raise UserError(f"--{kind}: {len(missing)} of {len(names)} files not found, the first is {place}")
    split_file = args.output / "gt_sets" / f"{args.split}.txt"
    check_split(split_file, names)
    for folder in ("images", "segmentation", "depth", "gt_sets"):
        (args.output / folder).mkdir(parents=True, exist_ok=True)
    others = names_of_others(split_file)
    for name in tqdm(names, unit="image", desc="writing NYUD_MT"):
        rearrange(args, name, {kind: paths[name] for kind, paths in files.items()}, others.get(name))
    write_split(split_file, names)
    print(f"{split_file}: {len(names)} images with {' and '.join(kind for kind in files if kind != 'images')}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = folder_parser(__doc__, output=("NYUD_MT", "folder to fill"))
    add = parser.add_argument
    add("--split", required=True, metavar="NAME", help="train or val; the images are added to what DIR holds")
    add("--images", required=True, metavar="PATTERN", help="where the photographs are")
    add("--masks", metavar="PATTERN", help="where the masks are: grey or palette PNGs of ids")
    counts = "zero_based: masks hold 0 to 39, and 255 for void; one_based: 1 to 40, and 0 for void, as in NYUD_MT"
    add("--mask-ids", choices=OFFSETS, help=counts)
    add("--depths", metavar="PATTERN", help="where the depth maps are: 16-bit PNGs, or .npy files in metres")
    unit = "metres = value / X in depth PNGs, where 0 is missing: 1000 for millimetres, 5000 is common too"
    add("--depth-scale", type=float, metavar="X", help=unit)
    add("--names", type=Path, metavar="FILE", help="the names of the split, one a line")
    args = parser.parse_args(argv)
    expect(args.masks or args.depths, "expected --masks or --depths, or both")
    expect(not args.masks or args.mask_ids, f"--masks needs --mask-ids, one of {', '.join(OFFSETS)}")
    scaled = not args.depths or args.depths.endswith(".npy") or (args.depth_scale or 0) > 0
    expect(scaled, "--depths of PNGs needs a positive --depth-scale")
    expect(args.split and args.split == os.path.basename(args.split), f"--split {args.split!r}: expected a name")
    return args


def find(kind: str, pattern: str) -> dict[str, Path]:
    """The files that fit a pattern, by the name in it."""
    folder, last = os.path.split(os.path.expanduser(pattern))
    start, placeholder, end = last.partition(NAME)
    once = placeholder and NAME not in folder + end
    expect(once, f"--{kind} {pattern}: expected {NAME} once, in the last part of the path")
    files: dict[str, Path] = {}
    for path in map(Path, sorted(glob.glob(os.path.join(folder, "*")))):
        name = path.name[len(start) : len(path.name) - len(end)]
        if name and path.name == f"{start}{name}{end}":
            if name in files:
                raise UserError(f"--{kind} {pattern} finds {name} twice: {files[name]} and {path}; expected it once")
            files[name] = path
    expect(files, f"--{kind} {pattern}: no such file")
    return files


def names_of_others(split_file: Path) -> dict[str, str]:
    """The images of all other splits in its folder, each with one that has it."""
    others = (file for file in split_file.parent.glob("*.txt") if file != split_file and is_visible(file.name))
    return {name: other.stem for other in others for name in read_split(other)}


def rearrange(args: argparse.Namespace, name: str, files: dict[str, Path], other: str | None) -> None:
    """Write the photograph, mask and depth map of one image, all checked before. Raises UserError for another
    photograph than that of this name in an ``other`` split."""
    image = require_record({"file_name": files["images"]}, PHOTOGRAPHS)
    maps = {}
    if "masks" in files:
        train_ids = read_labels(files["masks"], len(NYUD_CLASSES), OFFSETS[args.mask_ids])
        maps["masks"] = np.where(train_ids == VOID, np.uint8(0), train_ids + np.uint8(1))
    if "depths" in files:
        maps["depths"] = read_any_depth(files["depths"], args.depth_scale)
    for kind, pixels in maps.items():
        check_size(files[kind], pixels, files["images"], image.shape[:2])
    target = args.output / "images" / f"{name}.jpg"
    with written_whole(target) as temporary:
        if files["images"].suffix.lower() in (".jpg", ".jpeg"):
            shutil.copyfile(files["images"], temporary)
        else:
            Image.fromarray(image).save(temporary, format="JPEG", quality=100, subsampling=0)
        is_same = not (other and target.is_file()) or filecmp.cmp(temporary, target, shallow=False)
        problem = f"{files['images']} is another image than {target}, which is in the split {other}"
        expect(is_same, f"{problem}: expected names that differ, so rename its files, or choose another --output")
    if "masks" in maps:
        write_labels(args.output / "segmentation" / f"{name}.png", maps["masks"])
    if "depths" in maps:
        write_depth(args.output / "depth" / f"{name}.npy", maps["depths"])


def read_any_depth(path: Path, scale: float | None) -> np.ndarray:
    """Float32 (H, W) metres from .npy, or from a 16-bit PNG of metres times ``scale``."""
    if path.suffix == ".npy":
        return read_depth(path)
    with translated(f"reading depth map {path}"), open_image(path) as image:
        mode, values = image.mode, np.asarray(image)
    expect(mode.startswith("I"), f"depth map {path} is an image in mode {mode}: expected 16 bits of grey")
    return (values / scale).astype(np.float32)


if __name__ == "__main__":
    run_command(main)
