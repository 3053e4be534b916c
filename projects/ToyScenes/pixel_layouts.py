"""Layouts of data sets with a label or a depth per pixel: Pascal VOC segmentation, Cityscapes, NYUD_MT.

They hold the scene-centric images alone. With ``Scene.semantic`` being 0 for background and 1 to 10 for objects,

- VOC's masks hold it, with the id 255 on ``Scene.borders``;
- Cityscapes takes it for train ids, on every pixel;
- NYUD_MT's labels are one more than it, with 0 on borders, where its depth in metres is missing (0) too.
"""

import json
from pathlib import Path

import cv2
import numpy as np

from projects.common.label_maps import palette_image
from projects.ToyScenes.classes import CLASS_NAMES
from projects.ToyScenes.scene import Scene
from projects.ToyScenes.splits import Split

from detectron2.data.datasets.builtin_meta import CITYSCAPES_CATEGORIES

VOC_VOID = 255
NYUD_VOID = 0

VOC_MASKS, VOC_SETS = "VOC2007/SegmentationClass", "VOC2007/ImageSets/Segmentation"
VOC_NAMES = {Split.SCENE_TRAIN: "train_aug", Split.SCENE_HELDOUT: "val"}

CITYSCAPES_IMAGES, CITYSCAPES_LABELS = "cityscapes/leftImg8bit", "cityscapes/gtFine"
CITYSCAPES_NAMES = {Split.SCENE_TRAIN: "train", Split.SCENE_HELDOUT: "val"}
_CITY = "toy"
_FRAME = "000019"  # the one that is labelled in Cityscapes' snippets

NYUD_IMAGES, NYUD_LABELS, NYUD_DEPTH, NYUD_SETS = (
    f"NYUD_MT/{name}" for name in ("images", "segmentation", "depth", "gt_sets")
)
NYUD_NAMES = {Split.SCENE_TRAIN: "train", Split.SCENE_HELDOUT: "val"}

# Background is train id 0, class k is train id k + 1. Cityscapes tells no instances apart in these eleven.
_BY_TRAIN_ID = {category["trainId"]: category for category in CITYSCAPES_CATEGORIES}
_CITYSCAPES_CLASSES = [_BY_TRAIN_ID[train_id] for train_id in range(len(CLASS_NAMES) + 1)]
_LABEL_IDS = np.array([category["id"] for category in _CITYSCAPES_CLASSES], np.uint8)


def make_folders(root: Path) -> None:
    """Makes every folder of the layouts under ``root``."""
    cities = [
        f"{folder}/{name}/{_CITY}"
        for folder in (CITYSCAPES_IMAGES, CITYSCAPES_LABELS)
        for name in CITYSCAPES_NAMES.values()
    ]
    for folder in (VOC_MASKS, VOC_SETS, *cities, NYUD_IMAGES, NYUD_LABELS, NYUD_DEPTH, NYUD_SETS):
        (root / folder).mkdir(parents=True)


def file_counts(num_train: int) -> dict[str, int]:
    """Images, label maps and depth maps in each folder of the layouts."""
    sizes = {split: split.num_images(num_train) for split in VOC_NAMES}
    images = {f"{CITYSCAPES_IMAGES}/{name}": sizes[split] for split, name in CITYSCAPES_NAMES.items()}
    labels = {f"{CITYSCAPES_LABELS}/{name}": 3 * sizes[split] for split, name in CITYSCAPES_NAMES.items()}
    of_both_sets = dict.fromkeys((VOC_MASKS, NYUD_IMAGES, NYUD_LABELS, NYUD_DEPTH), sum(sizes.values()))
    return images | labels | of_both_sets


def write_scene(root: Path, split: Split, number: int, scene: Scene, jpeg: bytes) -> None:
    """Writes a scene-centric image with its labels and its depth.

    Args:
        root: the data set's folder, as made by ``make_folders``.
        split: a scene-centric set.
        number: the ``image_id``.
        scene: what was drawn.
        jpeg: ``scene.image``, encoded.
    """
    borders, semantic = scene.borders, scene.semantic
    voc = palette_image(np.where(borders, np.uint8(VOC_VOID), semantic))
    voc.save(root / VOC_MASKS / f"{number:06d}.png", compress_level=1)

    _write_cityscapes(root, CITYSCAPES_NAMES[split], number, scene)

    (root / NYUD_IMAGES / f"{number:06d}.jpg").write_bytes(jpeg)
    _write_png(root / NYUD_LABELS / f"{number:06d}.png", np.where(borders, np.uint8(NYUD_VOID), semantic + 1))
    np.save(root / NYUD_DEPTH / f"{number:06d}.npy", np.where(borders, np.float32(0), scene.depth))


def write_sets(root: Path, split: Split, numbers: list[int]) -> None:
    """Writes VOC's and NYUD_MT's lists of the images of one set; Cityscapes has none."""
    lines = "".join(f"{number:06d}\n" for number in numbers)
    (root / VOC_SETS / f"{VOC_NAMES[split]}.txt").write_text(lines)
    (root / NYUD_SETS / f"{NYUD_NAMES[split]}.txt").write_text(lines)


def _write_cityscapes(root: Path, name: str, number: int, scene: Scene) -> None:
    stem = f"{_CITY}_{number:06d}_{_FRAME}"
    labels = root / CITYSCAPES_LABELS / name / _CITY
    train_ids = scene.semantic
    label_ids = _LABEL_IDS[train_ids]
    _write_png(root / CITYSCAPES_IMAGES / name / _CITY / f"{stem}_leftImg8bit.png", scene.image[:, :, ::-1])
    _write_png(labels / f"{stem}_gtFine_labelIds.png", label_ids)
    _write_png(labels / f"{stem}_gtFine_labelTrainIds.png", train_ids)
    _write_png(labels / f"{stem}_gtFine_instanceIds.png", label_ids.astype(np.uint16))
    height, width = train_ids.shape
    contents = {"imgHeight": height, "imgWidth": width, "objects": _polygons(scene)}
    (labels / f"{stem}_gtFine_polygons.json").write_text(json.dumps(contents) + "\n")


def _polygons(scene: Scene) -> list[dict]:
    """Cityscapes' objects, which give the label map when filled one over the other."""
    bottom, right = (length - 1 for length in scene.instances.shape)
    objects = [_object(0, [[0, 0], [right, 0], [right, bottom], [0, bottom]])]
    masks = scene.masks
    visible = [(scene.depth[mask].max(), place) for place, mask in enumerate(masks) if mask.any()]
    for _, place in sorted(visible, reverse=True):
        # Outer contours include what nearer objects hide inside them, and those are filled later.
        contours, _ = cv2.findContours(masks[place].astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        objects += [_object(scene.class_ids[place] + 1, contour[:, 0].tolist()) for contour in contours]
    return objects


def _object(train_id: int, points: list[list[int]]) -> dict:
    # Readers of polygons want three points; a fragment of one or two pixels has fewer corners.
    points += points[-1:] * (3 - len(points))
    return {"label": _CITYSCAPES_CLASSES[train_id]["name"], "polygon": points}


def _write_png(path: Path, pixels: np.ndarray) -> None:
    # OpenCV's defaults are its fastest compression.
    encoded, data = cv2.imencode(".png", pixels)
    assert encoded
    path.write_bytes(data.tobytes())
