"""What images there are: DatasetCatalog entries of the pretraining and evaluation data sets.

A data set is a list of dicts with ``file_name`` (or ``image``, an (H, W, 3) uint8 RGB array, where the
original download holds no files) and, if it is labelled, ``label``. Besides the fixed names below,
``KIND:PATH`` names any data on disk:

    folder:/data/photos              every image below a folder, no labels needed
    list:/data/train.txt             a text file of image paths, relative ones seen from the file's folder
    class_folders:/data/birds        one sub-folder per class
    shards:/data/train_shards        tar files made by tools/make_shards.py, here or at a URL
    voc:/data/VOC2007:trainval       a tree in the layout of Pascal VOC, with its 20 classes, and a split
    voc_segmentation:/data/VOC2012:val, nyud_segmentation:..., nyud_depth:..., cityscapes:...
                                     a tree and a split with labels or depth per pixel: see dense_catalog
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from projects.ToyScenes import CLASS_NAMES as TOY_CLASSES
from revisit.data.classification_datasets import CLASSIFICATION_SETS
from revisit.data.pixel_datasets import DENSE_KINDS, DENSE_SETS, DenseSet
from revisit.data.reader import SUFFIXES
from revisit.data.shards import load_shards
from revisit.errors import UserError, first_line

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.coco import load_coco_json
from detectron2.data.datasets.pascal_voc import CLASS_NAMES as VOC_CLASSES
from detectron2.data.datasets.pascal_voc import load_voc_instances

Records = list[dict]
KINDS = ("folder", "list", "class_folders", "shards", "voc", "coco", *DENSE_KINDS)
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


# Subsets of the paper's data-bias study, one list of image paths each, which scripts in datasets/ write, and how many
# images they have. The paper prints thousands; "BDD100K 90K" is train 70K + test 20K (inferred).
SUBSETS = {
    "imagenet_118k": 118000, "imagenet_236k": 236000, "imagenet_472k": 472000, "imagenet_944k": 944000,
    "imagenet_118k_lt": 118090,
    "openimages_118k": 118000, "openimages_236k": 236000, "openimages_472k": 472000, "openimages_944k": 944000,
    "bdd100k_90k": 90000,
}  # fmt: skip


# Published sizes of data sets that are unpacked into class folders.
CLASS_FOLDER_SIZES = {
    "imagenet": {"train": 1281167, "val": 50000}, "places365": {"train": 1803460, "val": 36500},
}  # fmt: skip

# Detectron2's names of the detection sets, and their published sizes.
DETECTION_SETS = {
    "voc_2007_trainval": 5011, "voc_2012_trainval": 11540, "voc_2007_test": 4952,
    "coco_2017_train": 118287, "coco_2017_val": 5000,
}  # fmt: skip


def datasets_root() -> Path:
    """The folder of all data sets: $DETECTRON2_DATASETS, or ./datasets as in Detectron2."""
    return Path(os.environ.get("DETECTRON2_DATASETS", "datasets")).expanduser()


def load_folder(path: Path) -> Records:
    """Every image file below ``path``, in sorted order."""
    files = _image_files(path)
    if not files:
        raise UserError(f"no images in {path}: expected files ending in {', '.join(sorted(SUFFIXES))}")
    return [{"file_name": file} for file in files]


def load_class_folders(path: Path, classes: tuple[str, ...] = ()) -> Records:
    """Images in one sub-folder per class; ``label`` counts ``classes``, or the sorted folder names."""
    _check_folder(path)
    classes = classes or _class_names(path)
    if not classes:
        raise UserError(f"no class folders in {path}: expected one sub-folder of images per class")
    return [
        {"file_name": record["file_name"], "label": label}
        for label, name in enumerate(classes)
        for record in load_folder(path / name)
    ]


def load_list(path: Path) -> Records:
    """Images named by a text file, one path a line; empty lines and lines that start with # are skipped."""
    if not path.is_file():
        raise UserError(f"list of images {path} not found: expected a text file with one image path a line")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"list of images {path} is not a text file in UTF-8") from error
    names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise UserError(f"list of images {path} names no image: expected one path a line")
    missing = next((name for name in names if not (path.parent / name).is_file()), None)
    if missing:
        raise UserError(f"{path} names {missing}, which is not a file (seen from {path.parent})")
    return [{"file_name": str(path.parent / name)} for name in names]


def load_cifar10(root: Path, train: bool) -> Records:
    """CIFAR-10 under ``root``: class folders cifar10/{train,test}, or the original cifar-10-batches-py."""
    folder = root / "cifar10" / ("train" if train else "test")
    if folder.is_dir():
        return load_class_folders(folder, CIFAR10_CLASSES)
    if not (root / "cifar-10-batches-py").is_dir():
        raise _missing_dataset("cifar10", folder, f"{folder} or {root / 'cifar-10-batches-py'}")
    from torchvision.datasets import CIFAR10

    try:
        data = CIFAR10(root, train=train)
    except RuntimeError as error:  # a file that is missing or has another checksum
        raise UserError(f"{root / 'cifar-10-batches-py'} is not the complete CIFAR-10: download it again") from error
    return [{"image": image, "label": label} for image, label in zip(data.data, data.targets, strict=True)]


def load_voc(path: Path, split: str, classes: tuple[str, ...]) -> Records:
    """Boxes of a tree in Pascal VOC's layout, as Detectron2 reads it."""
    split_file = path / "ImageSets" / "Main" / f"{split}.txt"
    if not split_file.is_file():
        raise _missing_dataset(f"VOC split {split}", path, str(split_file))
    if len(split_file.read_text().split()) < 2:
        raise UserError(f"{split_file} names fewer than two images: Detectron2 reads splits of two and more")
    try:
        return load_voc_instances(str(path), split, classes)
    except ValueError as error:
        raise UserError(f"{path}: {_unknown_class(path, classes)}, expected one of {', '.join(classes)}") from error


def _unknown_class(path: Path, classes: tuple[str, ...]) -> str:
    """The first annotation with an object of none of ``classes``, in words."""
    for file in sorted((path / "Annotations").glob("*.xml")):
        for name in ElementTree.parse(file).iterfind("object/name"):
            if name.text not in classes:
                return f"Annotations/{file.name} names an object of the class {name.text!r}"
    return "an annotation cannot be read"


def register(name: str) -> None:
    """Make sure that ``name`` is in DatasetCatalog, adding a ``KIND:PATH`` entry where it is not.

    Raises:
        UserError: a name that is neither registered nor of a known kind.
    """
    if name in DatasetCatalog.list():
        return
    kind, _, rest = name.partition(":")
    if kind not in KINDS or not rest:
        known = ", ".join(sorted(n for n in DatasetCatalog.list() if MetadataCatalog.get(n).get("by_revisit")))
        raise UserError(
            f"unknown data set {name!r}: expected one that Detectron2 registers, one of {known}, "
            f"or KIND:PATH with KIND one of {', '.join(KINDS)}"
        )
    if kind == "coco":
        images, _, annotations = rest.rpartition(":")
        if not images or not annotations:
            raise UserError(f"data set {name!r}: expected coco:FOLDER_OF_IMAGES:ANNOTATIONS.json")
        _register_coco(name, Path(images).expanduser(), Path(annotations).expanduser())
    elif kind == "voc" or kind in DENSE_KINDS:
        folder, _, split = rest.rpartition(":")
        if not folder or not split:
            raise UserError(f"data set {name!r} names no split: expected {kind}:FOLDER:SPLIT")
        path = Path(folder).expanduser()
        if kind == "voc":
            _register_voc(name, lambda: path, split, tuple(VOC_CLASSES))
        else:
            _register(name, partial(DENSE_KINDS[kind].load, path, split), **DENSE_KINDS[kind].metadata)
    elif kind == "shards":
        _register(name, partial(load_shards, rest))
    else:
        path = Path(rest).expanduser()
        load = {"folder": load_folder, "list": load_list, "class_folders": load_class_folders}[kind]
        classes = _class_names(path) if kind == "class_folders" and path.is_dir() else ()
        _register(name, partial(load, path), classes)


def get_records(name: str) -> Records:
    """The records of a data set by name, registered first where needed. At least one record.

    Raises:
        UserError: unknown name, missing folder, or a data set without images.
    """
    register(name)
    try:
        records = DatasetCatalog.get(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing_dataset(name, error.filename, error.filename) from error
    if not records:
        raise UserError(f"data set {name!r} is empty")
    return records


def _missing_dataset(name: str, folder: object, expected: str) -> UserError:
    where = f"DETECTRON2_DATASETS={os.environ.get('DETECTRON2_DATASETS', '(unset, so ./datasets)')}"
    return UserError(
        f"data set {name!r} not found: looked for {expected} ({where}). Put it there (datasets/README.md), "
        "or try the drawn world instead: python projects/ToyScenes/make_toy_scenes.py --output "
        "$DETECTRON2_DATASETS/toy_scenes, then --config-file configs/toy/pretrain.yaml"
    )


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise UserError(f"folder of images {path} not found")


def _class_names(path: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir()))


def _image_files(path: Path) -> list[str]:
    _check_folder(path)
    files, visited = [], set()
    for folder, subfolders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:  # a loop of links
            subfolders.clear()
            continue
        visited.add(real)
        subfolders.sort()  # which of two links to one folder counts must not depend on the file system
        files += [os.path.join(folder, n) for n in names if os.path.splitext(n)[1].lower() in SUFFIXES]
    return sorted(files)


def _register(name: str, load: Callable[[], Records], classes: tuple[str, ...] = (), **metadata: object) -> None:
    DatasetCatalog.register(name, load)
    if classes:
        metadata["thing_classes"] = list(classes)
    MetadataCatalog.get(name).set(by_revisit=True, **metadata)


def _register_voc(name: str, root: Callable[[], Path], split: str, classes: tuple[str, ...]) -> None:
    # PascalVOCDetectionEvaluator knows two years, which differ in how AP is integrated; 2007 means 11 points.
    _register(name, lambda: load_voc(root(), split, classes), classes)
    MetadataCatalog.get(name).set(dirname=str(root()), split=split, year=2007, evaluator_type="pascal_voc")


def _register_coco(name: str, images: Path, annotations: Path) -> None:
    _register(name, partial(load_coco, images, annotations, name))
    files = {"image_root": str(images), "json_file": str(annotations)}
    MetadataCatalog.get(name).set(evaluator_type="coco", **files)


def load_coco(images: Path, annotations: Path, name: str) -> Records:
    """Boxes and masks of a file in COCO's format; its classes become those of the data set ``name``.

    Raises:
        UserError: the file is none of COCO's, or an image that it names is not there.
    """
    for path in (images, annotations):
        if not path.exists():
            raise UserError(f"data set {name!r}: {path} not found")
    try:
        records = load_coco_json(str(annotations), str(images), name)
    except (AssertionError, KeyError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{annotations} holds no annotations in COCO's format ({first_line(error)})") from error
    missing = next((record["file_name"] for record in records if not Path(record["file_name"]).is_file()), None)
    if missing:
        raise UserError(f"{annotations} names {missing}, which is not there: expected its images in {images}")
    return records


def _under_root(
    name: str,
    where: str,
    load: Callable[[Path], Records],
    *,
    made_by: str = "",
    read_classes: Callable[[Path], Sequence[str]] | None = None,
    **metadata: object,
) -> None:
    """Register a data set that lies ``where`` under datasets_root(), looked up when it is loaded, classes and all."""

    def load_checked() -> Records:
        path = datasets_root() / where
        if not path.exists():
            raise _missing_dataset(name, path, f"{path}, which {made_by} completes" if made_by else str(path))
        records = load(path)
        if read_classes is not None:
            MetadataCatalog.get(name).set(thing_classes=list(read_classes(path)))
        return records

    _register(name, load_checked, **metadata)


def _register_dense(name: str, dense: DenseSet) -> None:
    # Cityscapes' names are Detectron2's already; its loader asserts, under a root that was looked up at its import.
    if name in DatasetCatalog.list():
        DatasetCatalog.remove(name)
    _under_root(name, dense.where, dense.load, made_by=dense.made_by, **dense.metadata)


def register_all() -> None:
    """Register every fixed name; the folders are looked up when a data set is loaded, not before."""
    _under_root("coco_2017_train_images", "coco/train2017", load_folder, expected_images=118287)
    for name, size in SUBSETS.items():
        _under_root(name, f"subsets/{name}.txt", load_list, expected_images=size)
    for train, split in ((True, "train"), (False, "test")):
        size = 50000 if train else 10000
        _register(
            f"cifar10_{split}",
            lambda train=train: load_cifar10(datasets_root(), train),
            CIFAR10_CLASSES,
            expected_images=size,
        )
    _under_root("toy_scenes_train", "toy_scenes/coco/train2017", load_folder)
    for split in ("train", "heldout"):
        _under_root(
            f"toy_objects_{split}",
            f"toy_scenes/object_centric/{split}",
            partial(load_class_folders, classes=TOY_CLASSES),
            classes=TOY_CLASSES,
        )
    for split in ("trainval", "test"):
        _register_voc(f"toy_voc_{split}", lambda: datasets_root() / "toy_scenes/VOC2007", split, TOY_CLASSES)
    for name, dense in DENSE_SETS.items():
        _register_dense(name, dense)
    for name, found in CLASSIFICATION_SETS.items():
        for split, size in found.num_images.items():
            load = partial(found.load, split=split)
            expected = {"expected_images": size} if size else {}
            _under_root(f"{name}_{split}", found.where, load, read_classes=found.classes, **expected)
    for name, where in (("imagenet", "imagenet"), ("places365", "places365_standard")):
        for split, size in CLASS_FOLDER_SIZES[name].items():
            _under_root(
                f"{name}_{split}",
                f"{where}/{split}",
                load_class_folders,
                read_classes=_class_names,
                expected_images=size,
            )
    for name, size in DETECTION_SETS.items():
        MetadataCatalog.get(name).set(expected_images=size)
