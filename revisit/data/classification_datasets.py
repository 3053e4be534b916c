"""Data sets of whole-image labels for linear classification, in the layouts of their original downloads.

A record is ``file_name`` and ``label``, or ``labels`` where an image shows several classes (Pascal VOC): a tuple with
1, -1 or, where every object of the class is difficult, 0 for each class. ``revisit.data.catalog`` registers what this
module describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from scipy.io import loadmat

from projects.ToyScenes import CLASS_NAMES as TOY_CLASSES
from revisit.data.pixel_datasets import read_split
from revisit.errors import UserError

from detectron2.data.datasets.pascal_voc import CLASS_NAMES as VOC_CLASSES

Records = list[dict]
ABSENT, DIFFICULT, PRESENT = -1, 0, 1


def load_food101(path: Path, split: str) -> Records:
    """Food-101: meta/{classes,train,test}.txt and images/CLASS/NUMBER.jpg."""
    names = read_split(path / "meta" / f"{split}.txt")
    files = [(f"{name}.jpg", name.partition("/")[0]) for name in names]
    return _by_class(path / "images", files, food101_classes(path))


def food101_classes(path: Path) -> list[str]:
    """The 101 names, in the order of meta/classes.txt."""
    return read_split(path / "meta" / "classes.txt")


def load_cars(path: Path, split: str) -> Records:
    """Stanford Cars: cars_{train,test}/*.jpg, devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat."""
    annotations = path / ("devkit/cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat")
    if not annotations.is_file():
        raise UserError(f"{annotations} not found: expected the labels of Stanford Cars (datasets/README.md)")
    with _mat_file(annotations):
        entries = loadmat(annotations, squeeze_me=True)["annotations"]
        found = [(str(entry["fname"]), int(entry["class"]) - 1) for entry in entries]
    return _existing([{"file_name": str(path / f"cars_{split}" / name), "label": label} for name, label in found])


def cars_classes(path: Path) -> list[str]:
    """The 196 names of devkit/cars_meta.mat; none without that file, which labels do not need."""
    names = path / "devkit" / "cars_meta.mat"
    if not names.is_file():
        return []
    with _mat_file(names):
        return [str(name) for name in loadmat(names, squeeze_me=True)["class_names"]]


@contextmanager
def _mat_file(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # damaged files raise whatever their bytes happen to trip
        raise UserError(f"{path} cannot be read ({type(error).__name__}): expected the download's own file") from error


def load_pets(path: Path, split: str) -> Records:
    """Oxford-IIIT Pets: images/*.jpg, annotations/{trainval,test}.txt: lines of name, class from 1, species, breed."""
    labels = _pets_labels(path, split)
    return _existing([{"file_name": str(path / "images" / f"{name}.jpg"), "label": label} for name, label in labels])


def pets_classes(path: Path) -> list[str]:
    """The 37 breeds: an image is called BREED_NUMBER."""
    names = {label: name.rpartition("_")[0] for name, label in _pets_labels(path, "trainval")}
    return [names[label] for label in sorted(names)]


def _pets_labels(path: Path, split: str) -> list[tuple[str, int]]:
    file = path / "annotations" / f"{split}.txt"
    rows = [line.split() for line in read_split(file) if not line.startswith("#")]
    if any(len(row) != 4 or not row[1].isdecimal() for row in rows):
        raise UserError(f"{file} has other lines than NAME CLASS SPECIES BREED: expected Oxford-IIIT Pets' own file")
    return [(row[0], int(row[1]) - 1) for row in rows]


def load_sun397(path: Path, split: str) -> Records:
    """SUN397, first partition: ClassName.txt, Partitions/{Training,Testing}_01.txt, a/abbey/sun_*.jpg."""
    part = {"train": "Training_01", "test": "Testing_01"}[split]
    names = [name.lstrip("/") for name in read_split(path / "Partitions" / f"{part}.txt")]
    return _by_class(path, [(name, name.rpartition("/")[0]) for name in names], sun397_classes(path))


def sun397_classes(path: Path) -> list[str]:
    """The 397 names, some of two levels (c/church/indoor)."""
    return [name.lstrip("/") for name in read_split(path / "Partitions" / "ClassName.txt")]


def load_voc_labels(path: Path, split: str, classes: tuple[str, ...] = tuple(VOC_CLASSES)) -> Records:
    """Which classes an image of Pascal VOC shows, by its boxes: what ImageSets/Main/CLASS_SPLIT.txt says too."""
    records = []
    for name in read_split(path / "ImageSets" / "Main" / f"{split}.txt"):
        annotation = path / "Annotations" / f"{name}.xml"
        if not annotation.is_file():
            raise UserError(f"{annotation} not found, but the split {split} names {name}")
        labels = [ABSENT] * len(classes)
        try:
            things = ElementTree.parse(annotation).findall("object")
        except ElementTree.ParseError as error:
            raise UserError(
                f"{annotation} cannot be read ({error}): expected one of Pascal VOC's annotations"
            ) from error
        for thing in things:
            if thing.findtext("name") not in classes:
                raise UserError(f"{annotation} names an object of the class {thing.findtext('name')!r}")
            place = classes.index(thing.findtext("name"))
            labels[place] = max(labels[place], DIFFICULT if thing.findtext("difficult") == "1" else PRESENT)
        records.append({"file_name": str(path / "JPEGImages" / f"{name}.jpg"), "labels": tuple(labels)})
    return _existing(records)


def _by_class(folder: Path, files: list[tuple[str, str]], classes: list[str]) -> Records:
    places = {name: place for place, name in enumerate(classes)}
    unknown = next((name for _, name in files if name not in places), None)
    if unknown is not None:
        raise UserError(f"{folder}: an image of the class {unknown!r}, which the list of classes does not have")
    return _existing([{"file_name": str(folder / file), "label": places[name]} for file, name in files])


def _existing(records: Records) -> Records:
    missing = [record["file_name"] for record in records if not Path(record["file_name"]).is_file()]
    if missing:
        raise UserError(f"{len(missing)} of {len(records)} images not found, the first is {missing[0]}")
    return records


def load_toy_classification(path: Path, split: str) -> Records:
    """ToyScenes' object-centric images by {train,val,test}.txt, lines of FOLDER/CLASS/FILE."""
    names = read_split(path / f"{split}.txt")
    return _by_class(path, [(name, Path(name).parent.name) for name in names], list(TOY_CLASSES))


class ClassificationSet(NamedTuple):
    """A family of data sets with fixed names, NAME_SPLIT."""

    where: str  # under datasets_root()
    load: Callable[[Path, str], Records]
    classes: Callable[[Path], Sequence[str]]  # their names, in the order of the labels
    num_images: dict[str, int | None]  # published, by split


CLASSIFICATION_SETS = {
    "food101": ClassificationSet("food-101", load_food101, food101_classes, {"train": 75750, "test": 25250}),
    "cars": ClassificationSet("stanford_cars", load_cars, cars_classes, {"train": 8144, "test": 8041}),
    "pets": ClassificationSet("oxford-iiit-pet", load_pets, pets_classes, {"trainval": 3680, "test": 3669}),
    "sun397": ClassificationSet("SUN397", load_sun397, sun397_classes, {"train": 19850, "test": 19850}),
    "voc_2007_labels": ClassificationSet(
        "VOC2007",
        load_voc_labels,
        lambda path: VOC_CLASSES,
        {"train": 2501, "val": 2510, "trainval": 5011, "test": 4952},
    ),
    "toy_classification": ClassificationSet(
        "toy_scenes/object_centric",
        load_toy_classification,
        lambda path: TOY_CLASSES,
        {"train": None, "val": None, "test": None},
    ),
    "toy_voc_labels": ClassificationSet(
        "toy_scenes/VOC2007",
        partial(load_voc_labels, classes=TOY_CLASSES),
        lambda path: TOY_CLASSES,
        {"trainval": None, "test": None},
    ),
}
