#!/usr/bin/env python
"""Make Pascal VOC's training set "train_aug" from VOC 2012 and the Semantic Boundaries Dataset (SBD).

SBD has masks for 11,355 images of VOC's challenge of 2011. train_aug is every image that SBD or VOC's own
segmentation train set knows, without those of VOC's val: 10,582 images. Unpack VOCtrainval_11-May-2012.tar, so that
there is VOC2012/JPEGImages, and SBD's benchmark.tgz, which holds benchmark_RELEASE/dataset, then:

    python datasets/prepare_voc_train_aug.py --sbd benchmark_RELEASE/dataset --voc $DETECTRON2_DATASETS/VOC2012

It writes SegmentationClassAug/NAME.png for the images that have no mask in VOC2012/SegmentationClass (VOC's own
masks, which have void borders, are kept) and then ImageSets/Segmentation/train_aug.txt. Masks that are there
already stay as they are.
"""

from pathlib import Path

import numpy as np
from folder_arguments import folder_parser
from scipy.io import loadmat
from tqdm import tqdm

from revisit.data.images.reader import read_size
from revisit.data.sources.labels import check_size, write_labels
from revisit.data.sources.pixel_datasets import VOC_PIXEL_CLASSES
from revisit.data.sources.split_files import check_split, read_split, write_split
from revisit.engine.command import run_command
from revisit.errors import expect, first_few, translated

EXPECTED = 10582


def main(argv: list[str] | None = None) -> None:
    parser = folder_parser(__doc__, voc=("VOC2012", "with JPEGImages, SegmentationClass and ImageSets"))
    parser.add_argument("--sbd", type=Path, required=True, metavar="DIR", help="with cls/*.mat, train.txt and val.txt")
    args = parser.parse_args(argv)
    names = train_aug(args.sbd, args.voc)
    split_file = args.voc / "ImageSets" / "Segmentation" / "train_aug.txt"
    check_split(split_file, names)
    written = write_masks(args.sbd, args.voc, names)
    write_split(split_file, names)
    print(f"{split_file}: {len(names)} images; wrote {written} masks to {args.voc / 'SegmentationClassAug'}")
    if len(names) != EXPECTED:
        print(f"note: the published train_aug has {EXPECTED} images, so these lists are not the complete downloads")


def train_aug(sbd: Path, voc: Path) -> list[str]:
    """The names in train_aug, sorted; all of them have a photograph."""
    splits = voc / "ImageSets" / "Segmentation"
    lists = [read_split(file) for file in (sbd / "train.txt", sbd / "val.txt", splits / "train.txt")]
    names = sorted(set().union(*lists) - set(read_split(splits / "val.txt")))
    missing = [name for name in names if not (voc / "JPEGImages" / f"{name}.jpg").is_file()]
    counts = f"{len(missing)} of {len(names)} images of train_aug are not in {voc / 'JPEGImages'}: {first_few(missing)}"
    expect(not missing, f"{counts}; unpack VOCtrainval_11-May-2012.tar, and name its VOC2012 with --voc")
    return names


def write_masks(sbd: Path, voc: Path, names: list[str]) -> int:
    """Write SBD's mask of every image that has none yet; returns how many."""
    target = voc / "SegmentationClassAug"
    known = [target, voc / "SegmentationClass"]
    todo = [name for name in names if not any((folder / f"{name}.png").is_file() for folder in known)]
    missing = [name for name in todo if not (sbd / "cls" / f"{name}.mat").is_file()]
    expect(
        not missing, f"{len(missing)} images of train_aug have no mask in {sbd / 'cls'} or {voc}: {first_few(missing)}"
    )
    target.mkdir(exist_ok=True)
    for name in tqdm(todo, unit="mask", desc="writing SegmentationClassAug"):
        mask_file, image_file = sbd / "cls" / f"{name}.mat", voc / "JPEGImages" / f"{name}.jpg"
        mask = read_sbd_mask(mask_file)
        size = read_size(image_file)
        check_size(mask_file, mask, image_file, (size["height"], size["width"]))
        write_labels(target / f"{name}.png", mask)
    return len(todo)


def read_sbd_mask(path: Path) -> np.ndarray:
    """The class of every pixel, uint8 (H, W), 0 to 20, from one of SBD's MATLAB files."""
    with translated(f"reading GTcls.Segmentation of {path}"):
        mask = loadmat(path, variable_names=["GTcls"])["GTcls"][0]["Segmentation"][0]
        if not np.isin(mask, range(len(VOC_PIXEL_CLASSES))).all():
            raise ValueError(
                f"values from {mask.min()} to {mask.max()}, expected ids of {len(VOC_PIXEL_CLASSES)} classes"
            )
    return mask.astype(np.uint8)


if __name__ == "__main__":
    run_command(main)
