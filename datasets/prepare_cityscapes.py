#!/usr/bin/env python
"""Write Cityscapes' masks of train ids, *_gtFine_labelTrainIds.png, beside the *_gtFine_labelIds.png they come from.

Train ids count the 19 classes that are trained and scored; every other pixel becomes 255. Detectron2 and Revisit
read these files for the data sets cityscapes_fine_sem_seg_train and _val. First, from cityscapes-dataset.com, unpack
leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip into one folder, then:

    python datasets/prepare_cityscapes.py --cityscapes $DETECTRON2_DATASETS/cityscapes

Masks that are there already stay as they are, so a second call continues where the first one ended.
"""

import numpy as np
from folder_arguments import folder_parser
from tqdm import tqdm

from revisit.data.sources.image_folders import is_visible
from revisit.data.sources.labels import VOID, read_labels, write_labels
from revisit.engine.command import run_command
from revisit.errors import expect

LABEL_IDS, TRAIN_IDS = "_gtFine_labelIds.png", "_gtFine_labelTrainIds.png"
NUM_LABEL_IDS = 34
# Cityscapes' own label id of each train id, road to bicycle.
TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)

TRAIN_ID = np.full(256, VOID, np.uint8)
TRAIN_ID[list(TRAINED)] = np.arange(len(TRAINED))


def main(argv: list[str] | None = None) -> None:
    what = f"folder that holds gtFine/SPLIT/CITY/*{LABEL_IDS}"
    root = folder_parser(__doc__, cityscapes=("cityscapes", what)).parse_args(argv).cityscapes
    sources = [file for file in sorted(root.glob(f"gtFine/*/*/*{LABEL_IDS}")) if is_visible(file.name)]
    way_out = "unpack gtFine_trainvaltest.zip there, or name another folder with --cityscapes"
    expect(sources, f"no masks in {root}: expected gtFine/SPLIT/CITY/*{LABEL_IDS}; {way_out}")
    targets = [file.with_name(file.name.replace(LABEL_IDS, TRAIN_IDS)) for file in sources]
    todo = [pair for pair in zip(sources, targets, strict=True) if not pair[1].exists()]
    for source, target in tqdm(todo, unit="mask", desc="writing train ids"):
        write_labels(target, TRAIN_ID[read_labels(source, NUM_LABEL_IDS)])
    print(f"{root}: wrote {len(todo)} masks of train ids, {len(sources) - len(todo)} were there already")


if __name__ == "__main__":
    run_command(main)
