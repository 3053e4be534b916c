"""Readers of trees with a label or a depth per pixel.

A record is ``file_name``, ``image_id`` (the stem of it) and ``sem_seg_file_name`` or
``depth_file_name``; ``revisit.data.sources.labels`` reads those two.
"""

import logging
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from revisit.data.sources.label_files import files_with_suffix, label_files
from revisit.data.sources.labels import VOID, read_labels
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout
from revisit.data.sources.records import Records, ask_each
from revisit.data.sources.split_files import NAMES_IN_LABELS, image_of, read_class_names, read_split
from revisit.data.sources.voc_boxes import VOC_CLASSES
from revisit.errors import expect, translated

from detectron2.data import MetadataCatalog
from detectron2.data.datasets.cityscapes import load_cityscapes_semantic

logger = logging.getLogger(__name__)

_MASKS = (".png", ".tif", ".tiff")
VOC_PIXEL_CLASSES = ("background", *VOC_CLASSES)
# The 40 classes of Gupta et al. 2013, in the order of their ids 1 to 40.
NYUD_CLASSES = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf",
    "picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror", "floor mat",
    "clothes", "ceiling", "books", "refrigerator", "television", "paper", "towel", "shower curtain", "box",
    "whiteboard", "person", "night stand", "toilet", "sink", "lamp", "bathtub", "bag",
    "other structure", "other furniture", "other prop",
)  # fmt: skip
CITYSCAPES_CLASSES = tuple(MetadataCatalog.get("cityscapes_fine_sem_seg_val").stuff_classes)


def load_voc_segmentation(path: Path, split: str) -> Records:
    """Masks of a tree in Pascal VOC's layout, by ImageSets/Segmentation/SPLIT.txt.

    Where SegmentationClassAug (the masks of SBD) and SegmentationClass (VOC's own) both have an image, a split
    whose name ends in "_aug" takes the first. Others take the second: SBD knows images of val too, without void.
    """
    split_file = path / "ImageSets" / "Segmentation" / f"{split}.txt"
    augmented = split.endswith("_aug")
    folders = [path / "SegmentationClass", path / "SegmentationClassAug"]

    def files(name: str) -> tuple[Path, Path]:
        masks = [folder / f"{name}.png" for folder in folders]
        mask = next(filter(Path.is_file, reversed(masks) if augmented else masks), masks[0])
        return image_of(path / "JPEGImages" / name), mask

    return _listed(split_file, "sem_seg_file_name", files)


def load_nyud(path: Path, split: str, task: str) -> Records:
    """Masks ("segmentation") or maps of "depth", the ``task``, of a tree in NYUD_MT's layout, by gt_sets/SPLIT.txt."""
    key, suffix = {"segmentation": ("sem_seg_file_name", ".png"), "depth": ("depth_file_name", ".npy")}[task]

    def files(name: str) -> tuple[Path, Path]:
        return image_of(path / "images" / name), path / task / f"{name}{suffix}"

    return _listed(path / "gt_sets" / f"{split}.txt", key, files)


def load_cityscapes(path: Path, split: str) -> Records:
    """Masks of train ids in Cityscapes' layout, as Detectron2 reads it (with ``height`` and ``width``), sorted.

    Raises:
        UserError: a folder or file that is not there, or one that does not belong there.
    """
    prepare = f"python datasets/prepare_cityscapes.py --cityscapes {path}"
    with translated(f"reading leftImg8bit/{split} and gtFine/{split} of {path} as Cityscapes, completed by {prepare}"):
        records = load_cityscapes_semantic(str(path / "leftImg8bit" / split), str(path / "gtFine" / split))
        missing = [file for record in records if not os.path.isfile(file := record["sem_seg_file_name"])]
        if missing:
            raise FileNotFoundError(f"{len(missing)} of {len(records)} masks are missing, the first is {missing[0]}")
    records = [{**record, "image_id": Path(record["file_name"]).stem} for record in records]
    return sorted(records, key=lambda record: record["file_name"])


def load_masks(images: Path, masks: Path, names: Path | None = None) -> Records:
    """Every image below ``images`` that has a PNG or TIFF at its place below ``masks``: class ids from 0 on, 255 for
    void.

    Raises:
        UserError: see label_files.
    """
    expect(masks.resolve() != images.resolve(), f"{images} holds images and masks: expected a folder for each")
    mask_of = label_files(images, masks, *_MASKS)
    if lacking := [image for image, mask in mask_of.items() if not mask]:
        total = f"{len(lacking)} of {len(mask_of)} images below {images}"
        logger.warning(f"{total} have no mask below {masks}: left out, such as {lacking[0]}")
    return [
        {"file_name": image, "image_id": Path(image).stem, "sem_seg_file_name": str(mask)}
        for image, mask in mask_of.items()
        if mask
    ]


def masks_metadata(images: Path, masks: Path, names: Path | None = None) -> dict:
    """Classes by the file ``names``, else by classes.txt among or next to the masks, else by the highest id in them."""
    candidates = [names] if names else [masks / NAMES_IN_LABELS, masks.parent / NAMES_IN_LABELS]
    file = next(filter(Path.is_file, candidates), names)
    if file:
        classes = tuple(read_class_names(file))
        expect(len(classes) <= VOID, f"{file} has {len(classes)} classes: expected at most {VOID}, as {VOID} is void")
        return segmentation_metadata(classes)
    return segmentation_metadata(tuple(f"class {n}" for n in range(_highest_id(masks) + 1)) if masks.is_dir() else ())


@cache
def _highest_id(masks: Path) -> int:
    """The highest class id, void aside, in all masks below a folder; -1 without a mask."""

    def highest(record: dict) -> int:
        labels = read_labels(record["file_name"], 255)
        return int(labels[labels != VOID].max(initial=0))

    files = [{"file_name": str(file)} for file in files_with_suffix(masks, *_MASKS)]
    return max(ask_each(highest, files, "reading masks"), default=-1)


def _listed(split_file: Path, key: str, files: Callable[[str], tuple[Path, Path]]) -> Records:
    """Records of a split's names: ``files`` gives a photograph and its mask or depth map, which goes to ``key``."""
    records = []
    for name in read_split(split_file):
        image, target = files(name)
        for path in (image, target):
            expect(path.is_file(), f"{split_file} names {name}, but {path} is not there")
        records.append({"file_name": str(image), "image_id": name, key: str(target)})
    return records


def segmentation_metadata(classes: tuple[str, ...], label_offset: int = 0) -> dict:
    """Metadata of a data set whose masks hold the ids ``label_offset``, ``label_offset`` + 1, ... of ``classes``."""
    ids = {"ignore_label": VOID, "label_offset": label_offset}
    return {"evaluator_type": "sem_seg", "stuff_classes": list(classes), **ids}


MASKS = LabelLayout("masks", "FOLDER_OF_IMAGES:FOLDER_OF_MASKS[:FILE_OF_NAMES]", load_masks, masks_metadata)
VOC_SEGMENTATION = LabelLayout(
    "voc_segmentation", "FOLDER:SPLIT", load_voc_segmentation, segmentation_metadata(VOC_PIXEL_CLASSES)
)
NYUD_SEGMENTATION = LabelLayout(
    "nyud_segmentation",
    "FOLDER:SPLIT",
    partial(load_nyud, task="segmentation"),
    segmentation_metadata(NYUD_CLASSES, label_offset=1),
)
NYUD_DEPTH = LabelLayout("nyud_depth", "FOLDER:SPLIT", partial(load_nyud, task="depth"), {"evaluator_type": "depth"})
CITYSCAPES = LabelLayout("cityscapes", "FOLDER:SPLIT", load_cityscapes, segmentation_metadata(CITYSCAPES_CLASSES))
for _layout in (MASKS, VOC_SEGMENTATION, NYUD_SEGMENTATION, NYUD_DEPTH, CITYSCAPES):
    LABEL_LAYOUT_REGISTRY.register(_layout)
