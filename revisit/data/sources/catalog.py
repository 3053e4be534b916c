"""What images there are, by name: fixed names of data sets, and KIND:PATH for any data on disk.

A data set is a list of records, dicts with ``file_name`` and what its reader adds. ``named_sets`` has the kinds, which
are registered when they are asked for, and the core's fixed names; ``register_source`` adds others.
``subset:50:1:NAME`` are 50 labelled images of any data set, drawn by seed 1; subset:200:1:NAME has them too.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelledSet
from revisit.data.sources.named_sets import DETECTION_SIZES, SOURCES, DataSource
from revisit.data.sources.records import Records
from revisit.errors import UserError, did_you_mean, expect, translated
from revisit.plugins import load_plugins

from detectron2.data import DatasetCatalog, MetadataCatalog

SUBSET = "subset"
ADD_TOY_SCENES = "add IMPORTS \"('projects.ToyScenes',)\" to know ToyScenes' own"


class MissingDataError(UserError):
    """A data set that is known, but not on disk."""


def datasets_root() -> Path:
    """The folder of all data sets: $DETECTRON2_DATASETS, or ./datasets as in Detectron2."""
    return Path(os.environ.get("DETECTRON2_DATASETS", "datasets")).expanduser()


def register_all() -> None:
    """Register the core's fixed names."""
    for name, source in SOURCES.items():
        register_source(name, source)
    for name, size in DETECTION_SIZES.items():
        MetadataCatalog.get(name).set(expected_images=size)


def register_source(name: str, source: DataSource) -> None:
    """Register a fixed name, in the place of Detectron2's own if it has one.

    Folders are looked up when the data set is loaded, not before, and so are classes that are read from them.
    """

    def load() -> Records | LabelledSet:
        folders = (source.where,) if isinstance(source.where, str) else source.where
        paths = [datasets_root() / folder for folder in folders]
        path = next(filter(Path.exists, paths), None)
        if path is None:
            completed = f", which {source.made_by} completes" if source.made_by else ""
            raise _missing(name, " or ".join(map(str, paths)) + completed)
        loaded = source.load(path)
        if callable(source.classes):
            return LabelledSet(loaded, {"thing_classes": list(source.classes(path))})
        return loaded

    metadata = dict(source.metadata)
    if source.num_images:
        metadata["expected_images"] = source.num_images
    if source.classes and not callable(source.classes):
        metadata["thing_classes"] = list(source.classes)
    if name in DatasetCatalog.list():  # Cityscapes: Detectron2's loader asserts, under the root of its import
        DatasetCatalog.remove(name)
    _register(name, load, metadata)


def register(name: str) -> None:
    """Make sure that ``name`` is in DatasetCatalog, adding a ``KIND:PATH`` entry where it is not.

    Raises:
        UserError: a name that is neither registered nor of a known kind.
    """
    if name in DatasetCatalog.list():
        return
    kind, _, rest = name.partition(":")
    if kind == SUBSET:
        _register_subset(name, rest)
        return
    load_plugins()
    if kind not in LABEL_LAYOUT_REGISTRY or not rest:
        raise _unknown(name, kind, rest)
    layout = LABEL_LAYOUT_REGISTRY.get(kind)
    parts = layout.parts_of(name)
    _register(name, partial(layout.load, *parts), layout.metadata_of(parts))


def _unknown(name: str, kind: str, rest: str) -> UserError:
    found = f"unknown data set {name!r}"
    if os.sep in kind or (name and Path(name).is_dir()):
        return UserError(f"{found}: for a folder of images write \"('folder:{name}',)\"")
    if name.startswith("toy_"):
        return UserError(f"{found}: {ADD_TOY_SCENES}")
    kinds = [*(known for known, _ in LABEL_LAYOUT_REGISTRY), SUBSET]
    expected = f"KIND:PATH with KIND one of {', '.join(kinds)}, or a name of datasets/README.md or Detectron2"
    meant = did_you_mean(kind, kinds if rest else DatasetCatalog.list())
    return UserError(f"{found}: expected {expected}{meant}")


def get_records(name: str) -> Records:
    """The records of a data set by name, registered first where needed. At least one record.

    Raises:
        UserError: unknown name, missing folder, or a data set without images.
    """
    register(name)
    with translated(f"reading data set {name!r}"):
        try:
            records = DatasetCatalog.get(name)
        except (FileNotFoundError, NotADirectoryError) as error:  # by Detectron2's own readers
            raise _missing(name, error.filename) from error
    expect(records, f"data set {name!r} is empty")
    return records


def subset_name(name: str, count: int, seed: int) -> str:
    """The name of a nested subset of a data set: see nested_subset."""
    return f"{SUBSET}:{count}:{seed}:{name}"


def _register_subset(name: str, rest: str) -> None:
    count, seed, whole = (*rest.split(":", 2), "", "")[:3]
    sound = (count + seed).isascii() and count.isdecimal() and int(count) > 0 and seed.isdecimal() and bool(whole)
    expect(sound, f"data set {name!r}: expected {SUBSET}:N:SEED:NAME, N labelled images of the data set NAME")
    register(whole)
    load_whole = DatasetCatalog[whole]  # not as it may be registered later: following the classes of this subset
    # Classes that are read with the records come after loading; MetadataCatalog's set() refuses changes.
    metadata, source = vars(MetadataCatalog.get(name)), vars(MetadataCatalog.get(whole))

    def describe() -> None:
        metadata.update(source | {"name": name, "subset_of": whole, "expected_images": int(count)})

    def load() -> Records:
        records = nested_subset(load_whole(), int(count), int(seed), whole)
        describe()
        return records

    _register(name, load, {})
    describe()


def nested_subset(records: Records, count: int, seed: int, name: str) -> Records:
    """``count`` of the labelled records, in their order: the first of one order that depends on ``seed`` alone.

    A subset therefore contains all smaller ones of its seed. Where images have one class each, every class has its
    share of every subset, up to one image. An image without a box to learn from is not labelled.

    Raises:
        UserError: fewer labelled records; the message calls the data set ``name``.
    """
    labelled = [place for place, record in enumerate(records) if is_labelled(record)]
    if count > len(labelled):
        message = f"data set {name!r} has {len(labelled):,} labelled images"
        raise UserError(f"{message}: expected at most as many, not {count:,}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(labelled)
    if all("label" in record for record in records):
        # In each class the images are spread evenly over 0 to 1, in their drawn order.
        classes = np.array([records[place]["label"] for place in order])
        spread = np.empty(len(order))
        for label in np.unique(classes):
            members = np.flatnonzero(classes == label)
            spread[members] = (np.arange(len(members)) + rng.random()) / len(members)
        order = order[np.argsort(spread, kind="stable")]
    return [records[place] for place in sorted(order[:count].tolist())]


def is_labelled(record: dict) -> bool:
    """Whether there is something to learn from: of boxes, one that is not of a crowd."""
    boxes = record.get("annotations")
    return record.get("label", 0) >= 0 if boxes is None else any(not box.get("iscrowd", 0) for box in boxes)


def _register(name: str, load: Callable[[], Records | LabelledSet], metadata: dict) -> None:
    def load_and_describe() -> Records:
        loaded = load()
        if not isinstance(loaded, LabelledSet):
            return loaded
        vars(MetadataCatalog.get(name)).update(loaded.metadata)  # its set() refuses changes
        return loaded.records

    DatasetCatalog.register(name, load_and_describe)
    MetadataCatalog.get(name).set(**metadata)


def _missing(name: str, expected: object) -> MissingDataError:
    where = f"DETECTRON2_DATASETS={os.environ.get('DETECTRON2_DATASETS', '(unset, so ./datasets)')}"
    return MissingDataError(
        f"data set {name!r} not found: looked for {expected} ({where}). Put it there (datasets/README.md), "
        "or try the drawn world instead: python projects/ToyScenes/make_toy_scenes.py --output "
        "$DETECTRON2_DATASETS/toy_scenes, then --config-file configs/toy/pretrain.yaml"
    )
