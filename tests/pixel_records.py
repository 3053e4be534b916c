"""Records with a label or a depth per pixel, and the mappers of such records."""

import numpy as np
import torch
from PIL import Image

from revisit.config import add_revisit_config
from revisit.data.finetuning.pixel_mapper import pixel_mapper_of

from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog

# A colour for each id; ids that lie side by side in COARSE differ strongly.
COLORS = np.array([(20, 40, 60), (200, 30, 30), (30, 220, 40), (40, 40, 230), (240, 240, 10)], np.uint8)
COARSE = np.array([[0, 1, 2], [3, 4, 0]])


def set_of(name, **metadata):
    """A registered data set without records, for its metadata."""
    if name not in DatasetCatalog.list():
        DatasetCatalog.register(name, list)
        MetadataCatalog.get(name).set(**metadata)
    return name


FIVE = set_of("mapper_five", stuff_classes=list("abcde"), ignore_label=255)
FIVE_FROM_ONE = set_of("mapper_five_from_one", stuff_classes=list("abcde"), ignore_label=255, label_offset=1)
FIVE_AGAIN = set_of("mapper_five_again", stuff_classes=list("abcde"))
IGNORES_0 = set_of("mapper_ignores_0", stuff_classes=["a"], ignore_label=0)
DEPTH = set_of("mapper_depth", evaluator_type="depth")


def make_mapper(scale=(1.0, 1.0), crop=None, flip="none", train=(FIVE,), is_train=True, options=()):
    """The mapper that reads a config with these values."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.INPUT.FORMAT = "RGB"
    cfg.INPUT.RANDOM_FLIP = flip
    cfg.INPUT.RANDOM_SCALE = scale
    if crop:
        cfg.INPUT.CROP.ENABLED, cfg.INPUT.CROP.TYPE, cfg.INPUT.CROP.SIZE = True, "absolute", list(crop)
    cfg.MODEL.PIXEL_MEAN = [123.675, 116.28, 103.53]
    cfg.DATASETS.TRAIN = train
    cfg.merge_from_list(list(options))
    return pixel_mapper_of(cfg)(cfg, is_train)


def write_record(folder, labels=None, depth=None, image=None, file="a.png"):
    """Save what is given; without an image, each pixel has the colour of its label."""
    image = COLORS[np.where(labels == 255, 0, labels)] if image is None else image
    folder.mkdir(exist_ok=True)
    Image.fromarray(image).save(folder / file)
    record = {"file_name": str(folder / file), "image_id": "a"}
    if labels is not None:
        Image.fromarray(labels.astype(np.uint8)).save(folder / "labels.png")
        record["sem_seg_file_name"] = str(folder / "labels.png")
    if depth is not None:
        np.save(folder / "depth.npy", np.float32(depth))
        record["depth_file_name"] = str(folder / "depth.npy")
    return record


def pixels_of(sample):
    """(H, W, 3)."""
    assert sample["image"].dtype == torch.uint8 and sample["image"].is_contiguous()
    return sample["image"].permute(1, 2, 0).numpy()
