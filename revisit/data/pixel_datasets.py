"""Data sets with a label or a depth per pixel: how their trees are read, and which have a fixed name.

A record is ``file_name``, ``image_id`` (the stem of it) and ``sem_seg_file_name`` or ``depth_file_name``;
``revisit.data.labels`` reads those two. ``revisit.data.catalog`` registers what this module describes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from projects.ToyScenes import CLASS_NAMES as TOY_CLASSES
from revisit.data.labels import VOID
from revisit.errors import UserError
from revisit.files import written_whole

from detectron2.data import MetadataCatalog
from detectron2.data.datasets.cityscapes import load_cityscapes_semantic
from detectron2.data.datasets.pascal_voc import CLASS_NAMES as VOC_THINGS

VOC_CLASSES = ("background", *VOC_THINGS)
# The 40 classes of Gupta et al. 2013, in the order of their ids 1 to 40.
NYUD_CLASSES = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf",
    "picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror", "floor mat",
    "clothes", "ceiling", "books", "refrigerator", "television", "paper", "towel", "shower curtain", "box",
    "whiteboard", "person", "night stand", "toilet", "sink", "lamp", "bathtub", "bag",
    "other structure", "other furniture", "other prop",
)  # fmt: skip
TOY_VOC_CLASSES = ("background", *TOY_CLASSES)
# Toy masks have NYUD's 40 ids, so that models of both have one shape.
TOY_NYUD_CLASSES = (*TOY_VOC_CLASSES, *(f"unused {n}" for n in range(len(TOY_VOC_CLASSES) + 1, 41)))
CITYSCAPES_CLASSES = tuple(MetadataCatalog.get("cityscapes_fine_sem_seg_val").stuff_classes)

TASKS = {"segmentation": ("segmentation", ".png", "sem_seg_file_name"), "depth": ("depth", ".npy", "depth_file_name")}


def read_split(path: Path) -> list[str]:
    """Names of images, one a line; blanks around them, empty lines and the kind of line end mean nothing.

    Raises:
        UserError: a file that is missing, is no text, names nothing, or names an image twice.
    """
    if not path.is_file():
        raise UserError(f"split file {path} not found: expected one image name a line (datasets/README.md)")
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"split file {path} is not a text file in UTF-8") from error
    if not names:
        raise UserError(f"split file {path} is empty: expected one image name a line")
    if len(set(names)) < len(names):
        (name, count), *_ = Counter(names).most_common(1)
        raise UserError(f"split file {path} names {name} {count} times: expected every image once")
    return names


def check_split(path: Path, names: list[str]) -> None:
    """Raises UserError if there is a split file already and it names other images."""
    if path.exists() and set(read_split(path)) != set(names):
        raise UserError(
            f"split file {path} is there already and names other images than the {len(names)} to be written: "
            "move it away, or choose another split"
        )


def write_split(path: Path, names: list[str]) -> None:
    """Write a split, sorted, whole or not at all; see check_split."""
    check_split(path, names)
    with written_whole(path) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in sorted(names)))


def load_voc_segmentation(path: Path, split: str) -> list[dict]:
    """Masks of a tree in Pascal VOC's layout, by ImageSets/Segmentation/SPLIT.txt.

    Where SegmentationClassAug (the masks of SBD) and SegmentationClass (VOC's own) both have an image, a split
    whose name ends in "_aug" takes the first. Others take the second: SBD knows images of val too, without void.

    Raises:
        UserError: see read_split; an image or a mask that is not there.
    """
    split_file = path / "ImageSets" / "Segmentation" / f"{split}.txt"
    if split.endswith("_aug") and not split_file.is_file():
        raise UserError(
            f"split file {split_file} not found: datasets/prepare_voc_train_aug.py writes it, and "
            "projects/ToyScenes/make_toy_scenes.py that of ToyScenes"
        )
    folders = ["SegmentationClass", "SegmentationClassAug"]
    if split.endswith("_aug"):
        folders.reverse()
    records = []
    for name in read_split(split_file):
        masks = {folder: str(path / folder / f"{name}.png") for folder in folders}
        records.append(
            {
                "file_name": str(path / "JPEGImages" / f"{name}.jpg"),
                "image_id": name,
                "sem_seg_file_name": next(filter(os.path.isfile, masks.values()), masks["SegmentationClass"]),
            }
        )
    _check_files(split_file, records)
    return records


def load_nyud(path: Path, split: str, task: str) -> list[dict]:
    """Masks or depth maps of a tree in the layout of NYUD_MT, by gt_sets/SPLIT.txt.

    Args:
        task: "segmentation" or "depth".

    Raises:
        UserError: see read_split; an image, a mask or a depth map that is not there.
    """
    folder, suffix, field_name = TASKS[task]
    split_file = path / "gt_sets" / f"{split}.txt"
    records = [
        {
            "file_name": str(path / "images" / f"{name}.jpg"),
            "image_id": name,
            field_name: str(path / folder / f"{name}{suffix}"),
        }
        for name in read_split(split_file)
    ]
    _check_files(split_file, records)
    return records


def load_cityscapes(path: Path, split: str) -> list[dict]:
    """Masks of train ids in Cityscapes' layout, as Detectron2 reads it (with ``height`` and ``width``), sorted.

    Raises:
        UserError: a folder or file that is not there, or one that does not belong there.
    """
    images, labels = path / "leftImg8bit" / split, path / "gtFine" / split
    prepare = f"python datasets/prepare_cityscapes.py --cityscapes {path}"
    for folder in (images, labels):
        if not folder.is_dir():
            raise UserError(
                f"Cityscapes' folder {folder} not found: unpack leftImg8bit and gtFine into {path}, then {prepare}"
            )
    photographs = sorted(images.glob("*/*leftImg8bit.png"))
    for ending in ("labelTrainIds.png", "polygons.json"):
        name = f"gtFine_{ending}"
        files = [labels / file.parent.name / file.name.replace("leftImg8bit.png", name) for file in photographs]
        missing = [file for file in files if not file.is_file()]
        if missing:
            remedy = f"run {prepare}" if ending == "labelTrainIds.png" else f"unpack gtFine into {path} again"
            raise UserError(f"{len(missing)} of {len(files)} files not found, the first is {missing[0]}: {remedy}")
    try:
        records = load_cityscapes_semantic(str(images), str(labels))
    except (AssertionError, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read as Cityscapes ({error}): expected leftImg8bit/{split}/CITY/*_leftImg8bit.png, "
            f"gtFine/{split}/CITY/*_gtFine_*, and nothing else there; then {prepare}"
        ) from error
    records = [{**record, "image_id": Path(record["file_name"]).stem} for record in records]
    return sorted(records, key=lambda record: record["file_name"])


def _check_files(split_file: Path, records: list[dict]) -> None:
    for record in records:
        for key in ("file_name", "sem_seg_file_name", "depth_file_name"):
            if key in record and not os.path.isfile(record[key]):
                raise UserError(f"{split_file} names {record['image_id']}, but {record[key]} is not there")


def _of_segmentation(classes: tuple[str, ...], label_offset: int = 0) -> dict:
    return {
        "evaluator_type": "sem_seg",
        "stuff_classes": list(classes),
        "ignore_label": VOID,
        "label_offset": label_offset,
    }


@dataclass(frozen=True)
class DenseKind:
    """One layout of files: its loader, from folder and split to records, and the metadata of its data sets."""

    load: Callable[[Path, str], list[dict]]
    metadata: dict


DENSE_KINDS = {
    "voc_segmentation": DenseKind(load_voc_segmentation, _of_segmentation(VOC_CLASSES)),
    "nyud_segmentation": DenseKind(
        partial(load_nyud, task="segmentation"), _of_segmentation(NYUD_CLASSES, label_offset=1)
    ),
    "nyud_depth": DenseKind(partial(load_nyud, task="depth"), {"evaluator_type": "depth"}),
    "cityscapes": DenseKind(load_cityscapes, _of_segmentation(CITYSCAPES_CLASSES)),
}


@dataclass(frozen=True)
class DenseSet:
    """A data set with a fixed name: what its tree is, and what of its metadata is not its kind's."""

    kind: str
    where: str  # under datasets_root()
    split: str
    made_by: str  # the script that makes the tree complete
    own_metadata: dict = field(default_factory=dict)

    def load(self, path: Path) -> list[dict]:
        """The records of the tree at ``path``."""
        return DENSE_KINDS[self.kind].load(path, self.split)

    @property
    def metadata(self) -> dict:
        """All of it."""
        return {**DENSE_KINDS[self.kind].metadata, **self.own_metadata}


def _dense_sets() -> Iterator[tuple[str, DenseSet]]:
    draw = "projects/ToyScenes/make_toy_scenes.py"
    voc_toy = {"stuff_classes": list(TOY_VOC_CLASSES)}
    for split, size in (("train_aug", 10582), ("val", 1449)):
        prepare = "datasets/prepare_voc_train_aug.py"
        yield (
            f"voc_2012_sem_seg_{split}",
            DenseSet("voc_segmentation", "VOC2012", split, prepare, {"expected_images": size}),
        )
        yield f"toy_voc_sem_seg_{split}", DenseSet("voc_segmentation", "toy_scenes/VOC2007", split, draw, voc_toy)
    for split, nyud, cityscapes in (("train", 795, 2975), ("val", 654, 500)):
        for task in TASKS:
            kind, prepare = f"nyud_{task}", "datasets/prepare_nyud.py"
            toy = {"stuff_classes": list(TOY_NYUD_CLASSES)} if task == "segmentation" else {}
            yield f"nyud_{task}_{split}", DenseSet(kind, "NYUD_MT", split, prepare, {"expected_images": nyud})
            yield f"toy_nyud_{task}_{split}", DenseSet(kind, "toy_scenes/NYUD_MT", split, draw, toy)
        own = {"expected_images": cityscapes, "evaluator_type": "cityscapes_sem_seg"}  # as Detectron2 registers it
        name, prepare = f"cityscapes_fine_sem_seg_{split}", "datasets/prepare_cityscapes.py"
        yield name, DenseSet("cityscapes", "cityscapes", split, prepare, own)
        yield f"toy_cityscapes_{split}", DenseSet("cityscapes", "toy_scenes/cityscapes", split, draw)


DENSE_SETS = dict(_dense_sets())
