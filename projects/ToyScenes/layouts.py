"""The layouts of real data sets: class folders, COCO instances, Pascal VOC 2007 detection."""

import json
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pycocotools.mask

from projects.ToyScenes.classes import CLASS_NAMES
from projects.ToyScenes.plan import OBJECTS_PER_SCENE
from projects.ToyScenes.scene import Scene
from projects.ToyScenes.splits import Split, object_classes

JPEG_QUALITY = 92

OBJECT_FOLDERS = {
    Split.OBJECT_TRAIN: "object_centric/train",
    Split.OBJECT_HELDOUT: "object_centric/heldout",
}
OBJECT_LISTS = "object_centric"
VAL_SHARE = 5  # one of this many train images of a class is in the val list
COCO_NAMES = {Split.SCENE_TRAIN: "train2017", Split.SCENE_HELDOUT: "val2017"}
VOC_NAMES = {Split.SCENE_TRAIN: "trainval", Split.SCENE_HELDOUT: "test"}
VOC_IMAGES, VOC_ANNOTATIONS, VOC_SETS = (f"VOC2007/{name}" for name in ("JPEGImages", "Annotations", "ImageSets/Main"))
COCO_ANNOTATIONS = "coco/annotations"


def make_folders(root: Path) -> None:
    """Makes every folder of the layouts under ``root``, one per class even if no image falls into it."""
    classes = [f"{folder}/{name}" for folder in OBJECT_FOLDERS.values() for name in CLASS_NAMES]
    coco = [COCO_ANNOTATIONS, *(f"coco/{name}" for name in COCO_NAMES.values())]
    for folder in (*classes, *coco, VOC_IMAGES, VOC_ANNOTATIONS, VOC_SETS):
        (root / folder).mkdir(parents=True)


def file_counts(num_train: int) -> dict[str, int]:
    """Images in each folder that belongs to one set."""
    folders = OBJECT_FOLDERS | {split: f"coco/{name}" for split, name in COCO_NAMES.items()}
    return {folder: split.num_images(num_train) for split, folder in folders.items()}


def image_id(split: Split, index: int, num_train: int) -> int:
    """The number of a scene-centric image in every layout: train images from 1, held-out ones after them."""
    return index + 1 + (num_train if split.is_heldout else 0)


def write_object_image(root: Path, split: Split, index: int, scene: Scene) -> None:
    """Writes an object-centric image into the folder of its class."""
    (class_id,) = scene.class_ids
    folder = root / OBJECT_FOLDERS[split] / CLASS_NAMES[class_id]
    (folder / f"{index + 1:06d}.jpg").write_bytes(encode_jpeg(scene.image))


def write_object_lists(root: Path, num_train: int, long_tailed: bool) -> None:
    """Writes train, val and test lists of the object-centric images; val is the last fifth of each class of train."""
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for split, folder in OBJECT_FOLDERS.items():
        classes = object_classes(split, num_train, long_tailed)
        for class_id, name in enumerate(CLASS_NAMES):
            files = [f"{Path(folder).name}/{name}/{n + 1:06d}.jpg" for n in np.flatnonzero(classes == class_id)]
            held = len(files) // VAL_SHARE
            if split.is_heldout:
                lists["test"] += files
            else:
                lists["train"] += files[: len(files) - held]
                lists["val"] += files[len(files) - held :]
    for name, files in lists.items():
        (root / OBJECT_LISTS / f"{name}.txt").write_text("".join(f"{file}\n" for file in files))


def write_scene_image(root: Path, split: Split, number: int, scene: Scene, jpeg: bytes) -> list[dict]:
    """Writes a scene-centric image and its VOC annotation; returns its COCO annotations.

    Args:
        root: the data set's folder, as made by ``make_folders``.
        split: a scene-centric set.
        number: the ``image_id``.
        scene: what was drawn.
        jpeg: ``scene.image``, encoded.
    """
    (root / "coco" / COCO_NAMES[split] / f"{number:012d}.jpg").write_bytes(jpeg)
    (root / VOC_IMAGES / f"{number:06d}.jpg").write_bytes(jpeg)
    (root / VOC_ANNOTATIONS / f"{number:06d}.xml").write_bytes(_voc_xml(number, scene))
    return _coco_annotations(number, scene)


def write_coco_json(root: Path, split: Split, numbers: list[int], size: int, annotations: list[dict]) -> None:
    """Writes the instances file of one COCO set, whose images are ``numbers``."""
    contents = {
        "info": {"description": "ToyScenes", "version": "1", "year": 2017},
        "licenses": [{"id": 1, "name": "drawn by a program", "url": ""}],
        "images": [
            {"id": n, "file_name": f"{n:012d}.jpg", "height": size, "width": size, "license": 1} for n in numbers
        ],
        "annotations": annotations,
        "categories": [
            {"id": class_id + 1, "name": name, "supercategory": name.split("_")[1]}
            for class_id, name in enumerate(CLASS_NAMES)
        ],
    }
    path = root / COCO_ANNOTATIONS / f"instances_{COCO_NAMES[split]}.json"
    path.write_text(json.dumps(contents) + "\n")


def write_voc_set(root: Path, split: Split, numbers: list[int]) -> None:
    """Writes the list of the images of one VOC set."""
    lines = "".join(f"{number:06d}\n" for number in numbers)
    (root / VOC_SETS / f"{VOC_NAMES[split]}.txt").write_text(lines)


def encode_jpeg(image: np.ndarray) -> bytes:
    """A JPEG file with the picture ``image``, uint8 (H, W, 3) RGB."""
    encoded, data = cv2.imencode(".jpg", image[:, :, ::-1], (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))
    assert encoded
    return data.tobytes()


def _coco_annotations(number: int, scene: Scene) -> list[dict]:
    masks = np.asfortranarray(scene.masks.transpose(1, 2, 0).astype(np.uint8))
    most = OBJECTS_PER_SCENE[1]
    annotations = []
    found = zip(pycocotools.mask.encode(masks), scene.class_ids, scene.boxes.tolist(), strict=True)
    for place, (rle, class_id, (x0, y0, x1, y1)) in enumerate(found):
        annotations.append(
            {
                "id": number * most + place,
                "image_id": number,
                "category_id": class_id + 1,
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": int(pycocotools.mask.area(rle)),
                "segmentation": {"size": rle["size"], "counts": rle["counts"].decode("ascii")},
                "iscrowd": 0,
            }
        )
    return annotations


def _voc_xml(number: int, scene: Scene) -> bytes:
    height, width, channels = scene.image.shape
    root = ElementTree.Element("annotation")
    _fill(root, folder="VOC2007", filename=f"{number:06d}.jpg")
    _fill(ElementTree.SubElement(root, "source"), database="ToyScenes")
    _fill(ElementTree.SubElement(root, "size"), width=width, height=height, depth=channels)
    _fill(root, segmented=0)
    for class_id, (x0, y0, x1, y1) in zip(scene.class_ids, scene.boxes.tolist(), strict=True):
        item = ElementTree.SubElement(root, "object")
        cut = x0 == 0 or y0 == 0 or x1 == width or y1 == height
        _fill(item, name=CLASS_NAMES[class_id], pose="Unspecified", truncated=int(cut), difficult=0)
        # VOC counts pixels from 1 and includes the last one.
        _fill(ElementTree.SubElement(item, "bndbox"), xmin=x0 + 1, ymin=y0 + 1, xmax=x1, ymax=y1)
    ElementTree.indent(root, "\t")
    return ElementTree.tostring(root) + b"\n"


def _fill(parent: ElementTree.Element, **texts: str | int) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(parent, tag).text = str(text)
