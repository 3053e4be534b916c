"""Detection gets Detectron2's own pixels of 8-bit files, and our reader's of all others."""

import io

import numpy as np
import pytest
import torch
from deep import DEPTHS, photograph, shallow_picture, write_at
from PIL import Image
from tiny import tiny_config
from trees import refusal

from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.images.image_bytes import UnreadableImageError

from detectron2.data import DatasetMapper
from detectron2.structures import BoxMode

SAVED = {
    "colour.jpg": ("RGB", {"quality": 70}),
    "progressive.jpg": ("RGB", {"progressive": True, "subsampling": 0}),
    "grey.jpg": ("L", {}),
    "cmyk.jpg": ("CMYK", {}),
    "turned.jpg": ("RGB", {"exif": 6}),
    "mirrored.png": ("RGB", {"exif": 5}),
    "broken_exif.jpg": ("RGB", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"}),
    "palette.png": ("P", {}),
    "alpha.png": ("RGBA", {}),
    "1bit.png": ("1", {}),
    "colour.bmp": ("RGB", {}),
    "colour.tif": ("RGB", {}),
    "colour.webp": ("RGB", {}),
}


def config(*options):
    return tiny_config("MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "INPUT.MIN_SIZE_TRAIN", (40, 60), *options)


def record(path, **more):
    box = {"bbox": [3, 4, 20, 15], "bbox_mode": BoxMode.XYXY_ABS, "category_id": 0}
    return {"file_name": str(path), "image_id": 0, "annotations": [box], **more}


def mapped(mapper, sample):
    np.random.seed(0)
    return mapper(sample)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # by Detectron2's reading
@pytest.mark.parametrize("form", ["BGR", "RGB"])
def test_shallow_images_boxes_and_turns_are_detectron2s_bit_for_bit(tmp_path, form):
    cfg = config("INPUT.FORMAT", form)
    for name, (mode, options) in SAVED.items():
        if isinstance(orientation := options.get("exif"), int):
            options = {"exif": Image.Exif()}
            options["exif"][0x0112] = orientation
        Image.fromarray(shallow_picture()).convert(mode).save(tmp_path / name, **options)
        for is_train in (True, False):
            sample = record(tmp_path / name)
            ours, theirs = (mapped(kind(cfg, is_train), sample) for kind in (DetectionMapper, DatasetMapper))
            assert ours.keys() == theirs.keys() and "annotations" in sample, name
            assert torch.equal(ours["image"], theirs["image"]), name
            assert (ours["height"], ours["width"]) == (theirs["height"], theirs["width"])
            if is_train:
                assert torch.equal(ours["instances"].gt_boxes.tensor, theirs["instances"].gt_boxes.tensor)


@pytest.mark.parametrize("depth", DEPTHS)
def test_detection_sees_one_photograph_at_every_depth(tmp_path, depth):
    shallow = record(write_at("8", tmp_path / "shallow", photograph()))
    deep = record(write_at(depth, tmp_path / "deep", photograph()))
    for is_train in (True, False):
        mapper = DetectionMapper(config("INPUT.BIT_DEPTH", DEPTHS[depth]), is_train)
        one, other = (mapped(mapper, sample)["image"].int() for sample in (shallow, deep))
        assert (one - other).abs().max() <= 2 and one.float().std() > 20


def test_a_deep_or_thin_or_other_image_is_one_line_and_a_truncated_one_is_completed(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(shallow_picture()).save(buffer, "JPEG")
    (tmp_path / "cut.jpg").write_bytes(buffer.getvalue()[:-300])
    (tmp_path / "whole.jpg").write_bytes(buffer.getvalue())
    mapper = DetectionMapper(config(), False)
    other_size = record(tmp_path / "whole.jpg", width=33, height=50)
    thin = tmp_path / "thin.png"
    Image.fromarray(np.zeros((1, 4000, 3), np.uint8)).save(thin)  # 0.33 px of at most 1,333
    for wrong in (record(thin), record(write_at("12", tmp_path / "deep", photograph())), other_size):
        assert wrong["file_name"] in refusal(mapper, wrong)
    with pytest.raises(UnreadableImageError, match="4000 x 1 px are too thin"):  # another stands in for it
        DetectionMapper(config(), True)(record(thin))
    assert mapper(record(tmp_path / "cut.jpg"))["image"].float().std() > 5  # what is there, and grey


def test_boxes_that_are_ignored_come_along_and_crowds_do_not(tmp_path):
    Image.fromarray(shallow_picture()).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        width, height = image.size
    sample = record(tmp_path / "a.png")
    (thing,) = sample["annotations"]
    crowd = {**thing, "iscrowd": 1}
    ignored = {**crowd, "bbox": [1, 2, 8, 6], "bbox_mode": BoxMode.XYWH_ABS, "ignored": True}
    cfg = config("INPUT.MIN_SIZE_TRAIN", (2 * min(width, height),), "INPUT.RANDOM_FLIP", "none")
    mapper = DetectionMapper(cfg, is_train=True)
    plain = mapped(mapper, {**sample, "annotations": [thing, crowd]})["instances"]
    labels = mapped(mapper, {**sample, "annotations": [ignored, thing, crowd]})["instances"]
    assert type(plain).__name__ == "Instances" and len(plain) == len(labels) == 1
    assert torch.equal(labels.gt_boxes.tensor, plain.gt_boxes.tensor)
    assert labels.ignored.tolist() == [[2, 4, 18, 16]]
    (empty,) = [mapped(mapper, {**sample, "annotations": [ignored]})["instances"]]
    assert len(empty) == 0 and empty.ignored.tolist() == [[2, 4, 18, 16]]


def test_an_image_without_objects_has_no_masks_to_cut_around(tmp_path):
    Image.fromarray(shallow_picture()).save(tmp_path / "a.png")
    sample = record(tmp_path / "a.png")
    (thing,) = sample["annotations"]
    mapper = DetectionMapper(config("MODEL.MASK_ON", True, "INPUT.CROP.ENABLED", True), is_train=True)
    crowd = thing | {"iscrowd": 1}
    for annotations in ([], [crowd | {"ignored": True}], [crowd], [crowd, crowd | {"ignored": True}]):
        empty = mapped(mapper, {**sample, "annotations": annotations})
        assert len(empty["instances"]) == 0 and "annotations" not in empty
