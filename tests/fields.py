"""Images of channels with boxes, masks and classes and depth per pixel, as files of others."""

import json
from pathlib import Path

import numpy as np
import tifffile
from commands import TINY, run
from PIL import Image

SHAPE = (64, 80)  # px
NAMES = ("disc", "square")
LEAST = (
    "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 DATALOADER.NUM_WORKERS 0 SEED 1 "
    "SOLVER.IMS_PER_BATCH 4 SOLVER.MAX_ITER 2 SOLVER.PRECISION float32 TEST.PRECISE_BN.NUM_ITER 1"
)
DETECTOR = (
    f"{LEAST} MODEL.FPN.OUT_CHANNELS 8 MODEL.ROI_BOX_HEAD.FC_DIM 16 MODEL.ROI_MASK_HEAD.CONV_DIM 8 "
    "INPUT.MIN_SIZE_TRAIN (48,) INPUT.MIN_SIZE_TEST 48 TEST.EVAL_PERIOD 0 TEST.KEEP_BEST False "
    "MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.01 TEST.DETECTIONS_PER_IMAGE 5"
)


def write_fields(folder: Path, *, count: int = 8, channels: int = 5, seed: int = 0) -> str:
    """TIFFs of 16 bits, in each a bright square in two of the channels; the data set of their boxes and masks.

    The folder has also ``list.txt``, and of each image ``labels/N.png`` and ``depth/N.npy``.
    """
    rng = np.random.default_rng(seed)
    images, boxes, layout = [], [], {"planarconfig": "contig"} if channels > 1 else {}
    for name in ("labels", "depth"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        values = rng.uniform(100, 2000, (*SHAPE, channels)) * np.linspace(0.5, 1, channels)
        labels = np.zeros(SHAPE, np.uint8)
        for kind in range(len(NAMES)):
            left, top, side = (int(rng.integers(*ends)) for ends in ((0, 40), (0, 30), (16, 30)))
            part = (slice(top, top + side), slice(left, left + side))
            values[part][..., -1 - kind % channels] += 2000
            labels[part] = kind + 1
            box = {"bbox": [left, top, side, side], "area": side * side, "iscrowd": 0, "category_id": kind + 1}
            right, low = left + side, top + side
            outline = [[left, top, right, top, right, low, left, low]]
            boxes.append({"id": len(boxes) + 1, "image_id": number + 1, "segmentation": outline, **box})
        tifffile.imwrite(folder / f"{number}.tif", values.astype(np.uint16), photometric="minisblack", **layout)
        np.save(folder / "depth" / f"{number}.npy", np.float32(1 + labels))
        Image.fromarray(labels).save(folder / "labels" / f"{number}.png")
        images.append({"id": number + 1, "file_name": f"{number}.tif", "height": SHAPE[0], "width": SHAPE[1]})
    kinds = [{"id": number, "name": name} for number, name in enumerate(NAMES, start=1)]
    truth = {"images": images, "annotations": boxes, "categories": kinds}
    (folder / "boxes.json").write_text(json.dumps(truth))
    (folder / "list.txt").write_text("\n".join(str(folder / image["file_name"]) for image in images))
    return f"coco:{folder}:{folder / 'boxes.json'}"


def one(name: str) -> str:
    """The value of a key that lists names."""
    return f"\"('{name}',)\""


def learned(name: str) -> str:
    """Keys of a training on a data set, which is tested on the same."""
    return f"DATASETS.TRAIN {one(name)} DATASETS.TEST {one(name)}"


def boxes_of(root: Path) -> str:
    """The data set of what ``make_chain`` has written."""
    return f"coco:{root}/fields/images:{root}/fields/boxes.json"


def masks_of(root: Path) -> str:
    return f"masks:{root}/fields/images:{root}/fields/labels"


def make_chain(root: Path) -> None:
    """``fields``, a pretraining on them, its converted weights, and a detector of these."""
    write_fields(root / "fields/images", count=8)
    for name in ("labels", "depth", "boxes.json", "list.txt"):
        (root / "fields/images" / name).rename(root / "fields" / name)
    train = "python tools/train_net.py --config-file configs/own_images"
    pretrain = f"{TINY} {LEAST} NEIGHBORS.WEIGHT 0.0 DATASETS.TEST ()"
    images = one(f"folder:{root}/fields/images")
    run(f"{train}/pretrain.yaml DATASETS.TRAIN {images} OUTPUT_DIR {root}/pre {pretrain}", root)
    run(f"python tools/convert_to_d2.py {root}/pre/model_final.pth {root}/backbone.pth", root)
    start = f"MODEL.WEIGHTS {root}/backbone.pth OUTPUT_DIR {root}/detector"
    log = run(f"{train}/mask_rcnn.yaml {learned(boxes_of(root))} {start} {DETECTOR}", root)
    for key in ("INPUT.CHANNELS", "INPUT.RANGE", "MODEL.PIXEL_MEAN"):
        (line,) = [line for line in log.splitlines() if f"{key} [" in line]
        assert line.endswith(f"as {root}/backbone.pth was trained")
