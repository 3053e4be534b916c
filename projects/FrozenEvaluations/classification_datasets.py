"""Readers of whole-image labels, in the layouts of the original downloads.

A record is ``file_name`` (or ``image``, an (H, W, 3) uint8 RGB array, where the download holds no files) and ``label``,
or ``labels`` where an image shows several classes (Pascal VOC): a tuple with 1, -1 or, where every object of the class
is difficult, 0 for each class.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from revisit.data.sources.image_folders import load_class_folders, require_files
from revisit.data.sources.records import ABSENT, DIFFICULT, PRESENT, Records
from revisit.data.sources.split_files import image_of, read_split
from revisit.data.sources.voc_boxes import VOC_CLASSES, read_voc_annotation
from revisit.errors import translated

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(path: Path, split: str) -> Records:
    """CIFAR-10 in class folders, or as downloaded: cifar-10-batches-py."""
    if path.name != "cifar-10-batches-py":
        return load_class_folders(path, CIFAR10_CLASSES)
    from torchvision.datasets import CIFAR10

    data = CIFAR10(path.parent, train=split == "train")
    return [{"image": image, "label": label} for image, label in zip(data.data, data.targets, strict=True)]


def load_food101(path: Path, split: str) -> Records:
    """Food-101: meta/{classes,train,test}.txt and images/CLASS/NUMBER.jpg."""
    names = read_split(path / "meta" / f"{split}.txt")
    files = [(f"{name}.jpg", name.partition("/")[0]) for name in names]
    return labelled_by_class(path / "images", files, food101_classes(path))


def food101_classes(path: Path) -> list[str]:
    """The 101 names, in the order of meta/classes.txt."""
    return read_split(path / "meta" / "classes.txt")


def load_cars(path: Path, split: str) -> Records:
    """Stanford Cars: cars_{train,test}/*.jpg, devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat."""
    annotations = "devkit/cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat"
    rows = _mat_rows(path / annotations, "annotations", lambda entry: (str(entry["fname"]), int(entry["class"])))
    images = path / f"cars_{split}"
    return require_files([{"file_name": str(images / name), "label": number - 1} for name, number in rows])


def cars_classes(path: Path) -> list[str]:
    """The 196 names of devkit/cars_meta.mat; none without that file, which labels do not need."""
    names = path / "devkit" / "cars_meta.mat"
    return _mat_rows(names, "class_names", str) if names.is_file() else []


def _mat_rows(path: Path, key: str, row: Callable[[object], object]) -> list:
    """``row`` of every entry of a variable in a MATLAB file."""
    from scipy.io import loadmat  # 0.1 s

    with translated(f"reading {path}", content=True):
        return [row(entry) for entry in loadmat(path, squeeze_me=True)[key]]


def load_pets(path: Path, split: str) -> Records:
    """Oxford-IIIT Pets: images/*.jpg, annotations/{trainval,test}.txt: lines of name, class from 1, species, breed."""
    images = path / "images"
    labels = _pets_labels(path, split)
    return require_files([{"file_name": str(images / f"{name}.jpg"), "label": label} for name, label in labels])


def pets_classes(path: Path) -> list[str]:
    """The 37 breeds: an image is called BREED_NUMBER."""
    names = {label: name.rpartition("_")[0] for name, label in _pets_labels(path, "trainval")}
    return [names[label] for label in sorted(names)]


def _pets_labels(path: Path, split: str) -> list[tuple[str, int]]:
    file = path / "annotations" / f"{split}.txt"
    rows = [line.split() for line in read_split(file) if not line.startswith("#")]
    with translated(f"reading {file}", content=True):
        return [(name, int(label) - 1) for name, label, _, _ in rows]


def load_sun397(path: Path, split: str) -> Records:
    """SUN397, first partition: ClassName.txt, Partitions/{Training,Testing}_01.txt, a/abbey/sun_*.jpg."""
    part = {"train": "Training_01", "test": "Testing_01"}[split]
    names = read_split(path / "Partitions" / f"{part}.txt")
    files = [(name, name.rpartition("/")[0]) for name in names]
    return labelled_by_class(path, files, sun397_classes(path))


def sun397_classes(path: Path) -> list[str]:
    """The 397 names, some of two levels (c/church/indoor)."""
    return read_split(path / "Partitions" / "ClassName.txt")


def load_voc_labels(path: Path, split: str, classes: tuple[str, ...] = VOC_CLASSES) -> Records:
    """Which classes an image of Pascal VOC shows, by its boxes: what ImageSets/Main/CLASS_SPLIT.txt says too."""
    records = []
    for name in read_split(path / "ImageSets" / "Main" / f"{split}.txt"):
        image = image_of(path / "JPEGImages" / name)
        labels = [ABSENT] * len(classes)
        _, objects = read_voc_annotation(path / "Annotations" / f"{name}.xml", image, classes)
        for thing in objects:
            index = classes.index(thing.label)
            presence = DIFFICULT if thing.is_difficult else PRESENT
            labels[index] = max(labels[index], presence)
        records.append({"file_name": str(image), "labels": tuple(labels)})
    return require_files(records)


def labelled_by_class(folder: Path, files: list[tuple[str, str]], classes: Sequence[str]) -> Records:
    """Records of (file in ``folder``, name of its class), all there and of ``classes``, or a UserError."""
    index_of = {name: index for index, name in enumerate(classes)}
    with translated(f"{folder}, images of the classes that are listed", content=True):
        labelled = [(file, index_of[name]) for file, name in files]
    return require_files([{"file_name": str(folder / file), "label": label} for file, label in labelled])
