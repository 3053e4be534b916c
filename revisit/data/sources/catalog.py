"""What images there are, by name: fixed names of data sets, and KIND:PATH for any data on disk.

A data set is a list of records, dicts with ``file_name`` and what its reader adds. ``layouts`` has the kinds,
whose data sets are registered when they are asked for, ``named_sets`` the core's fixed names; ``register_source`` adds
others.
``subset:50:1:NAME`` are 50 labelled images of any data set, drawn by seed 1; subset:200:1:NAME has them too.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from revisit.data.sources.class_names import (
    BY_NUMBER,
    ClassOrder,
    class_metadata,
    classes_of,
    counted_by,
    key_of_classes,
    let_metadata_say,
    order_of,
    own_metadata,
    set_class_metadata,
)
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelledSet
from revisit.data.sources.named_sets import DETECTION_SIZES, SOURCES, DataSource
from revisit.data.sources.records import Records
from revisit.data.sources.subsets import nested_subset
from revisit.errors import UserError, did_you_mean, expect, translated
from revisit.plugins import load_plugins

from detectron2.data import DatasetCatalog, MetadataCatalog

SUBSET = "subset"


# By name: records as the data set itself counts classes, and its class metadata; None while nothing is kept.
_KEPT: dict[str, LabelledSet] | None = None

logger = logging.getLogger(__name__)


class MissingDataError(UserError):
    """A data set that is known, but not on disk."""


@dataclass(frozen=True)
class _Catalogued:
    """An entry of DatasetCatalog, through which Detectron2's functions also get what ``get_records`` gives."""

    name: str
    load: Callable[[], Records | LabelledSet]  # classes counted as the data set does
    places: Callable[[], dict] = dict  # metadata that name files, which lie in the folder of all data sets

    def __call__(self) -> Records:
        return get_records(self.name)


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
    """Register a fixed name. It replaces Detectron2's own, if there is one.

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
    _register(name, load, metadata, source.places)


def register(name: str) -> None:
    """Make sure that ``name`` is in DatasetCatalog, adding a ``KIND:PATH`` entry where it is not.

    Of an entry that other code has registered, Detectron2's functions get from now on what ``get_records`` gives.

    Raises:
        UserError: a name that is neither registered nor of a known kind.
    """
    load_plugins()  # which register names and kinds
    if name in DatasetCatalog.list():
        entry = DatasetCatalog[name]
        if not isinstance(entry, _Catalogued):
            DatasetCatalog[name] = entry = _Catalogued(name, entry)
        vars(MetadataCatalog.get(name)).update(entry.places())  # its set() refuses another folder
        return
    kind, _, rest = name.partition(":")
    if kind == SUBSET:
        _register_subset(name, rest)
        return
    if kind not in LABEL_LAYOUT_REGISTRY or not rest:
        raise _unknown(name, kind, rest)
    layout = LABEL_LAYOUT_REGISTRY.get(kind)
    parts = layout.parts_of(name)
    _register(name, partial(layout.load, *parts), layout.metadata_of(parts))


def _unknown(name: str, kind: str, rest: str) -> UserError:
    problem = f"unknown data set {name!r}"
    if os.sep in kind or (name and Path(name).is_dir()):
        return UserError(f"{problem}: for a folder of images write \"('folder:{name}',)\"")
    kinds = [*(layout for layout, _ in LABEL_LAYOUT_REGISTRY), SUBSET]
    expected = f"KIND:PATH with KIND one of {', '.join(kinds)}, or a name of datasets/README.md or Detectron2"
    names = [known for known in DatasetCatalog.list() if ":" not in known]
    meant = did_you_mean(kind, kinds if rest else names)
    return UserError(f"{problem}: expected {expected}{meant}")


def get_records(name: str, class_names: Sequence[str] = ()) -> Records:
    """The records of a data set by name, registered first where needed. At least one record.

    Between ``keep_records`` and ``drop_records`` its files are read once.

    Args:
        class_names: count classes in this order, and let the metadata say so; (): as ``share_classes`` has said in this
            process, else as the data set does.

    Raises:
        UserError: unknown name, missing folder, a data set without images, or with other classes.
    """
    register(name)
    own = _own_set(name)
    order = ClassOrder("the names asked for", names=class_names) if class_names else order_of(name)
    counted = own
    if order and key_of_classes(own.records):
        counted = counted_by(own, _wanted(order, name, own), name, order.leader)
    let_metadata_say(name, counted.metadata, own.metadata)
    return counted.records[:]  # of a list a copy


def keep_records() -> None:
    """From now on read the files of each data set once in this process, and keep its records."""
    global _KEPT
    _KEPT = {} if _KEPT is None else _KEPT


def drop_records() -> None:
    """Forget what is kept, which takes memory, and from now on read the files whenever records are asked for."""
    global _KEPT
    _KEPT = None


def _own_set(name: str) -> LabelledSet:
    """The records of a registered data set as it counts its classes, and its class metadata."""
    if _KEPT is None:
        return _read(name)
    if name not in _KEPT:
        _KEPT[name] = _read(name)
    return _KEPT[name]


def _read(name: str) -> LabelledSet:
    counted = class_metadata(name)
    follows = counted != own_metadata(name)
    # Detectron2's readers refuse metadata that say something else than the files.
    set_class_metadata(name, own_metadata(name))
    with translated(f"reading data set {name!r}"):
        try:
            loaded = DatasetCatalog[name].load()
        except (FileNotFoundError, NotADirectoryError) as error:  # by Detectron2's own readers
            raise _missing(name, error.filename) from error
    if isinstance(loaded, LabelledSet):
        vars(MetadataCatalog.get(name)).update(loaded.metadata)  # its set() refuses changes
        loaded = loaded.records
    expect(loaded, f"data set {name!r} is empty")
    own = class_metadata(name)
    let_metadata_say(name, counted if follows else own, own)
    return LabelledSet(loaded, own)


def _wanted(order: ClassOrder, name: str, own: LabelledSet) -> list:
    """The classes of what a data set follows; none if nothing is compared."""
    if order.names:
        return list(order.names)
    try:
        wanted = own_metadata(order.leader).get(key_of_classes(own.records))
        if not wanted:
            register(order.leader)
            wanted = classes_of(_own_set(order.leader))
    except UserError as error:
        if order.num_classes is None:
            raise
        reason = str(error)
    else:
        if order.num_classes in (None, len(wanted)):
            return list(wanted)
        remedy = "set DATASETS.TRAIN to what it was trained on"
        reason = f"it has {len(wanted)}, but the model {order.num_classes}: {remedy}"
    logger.warning(f"classes of {name} are not compared with those of {order.leader}: {reason}")
    return []


def subset_name(name: str, count: int, seed: int) -> str:
    """The name of a nested subset of a data set: see nested_subset."""
    return f"{SUBSET}:{count}:{seed}:{name}"


def _register_subset(name: str, rest: str) -> None:
    count, seed, whole = (*rest.split(":", 2), "", "")[:3]
    are_numbers = (count + seed).isascii() and count.isdecimal() and seed.isdecimal()
    is_sound = are_numbers and int(count) > 0 and whole != ""
    expect(is_sound, f"data set {name!r}: expected {SUBSET}:N:SEED:NAME, N labelled images of the data set NAME")
    register(whole)

    def metadata() -> dict:
        of_whole = vars(MetadataCatalog.get(whole)) | {key: None for key in BY_NUMBER} | own_metadata(whole)
        stated = {key: value for key, value in of_whole.items() if value is not None}
        return stated | {"name": name, "subset_of": whole, "expected_images": int(count)}

    def load() -> LabelledSet:
        records = nested_subset(_own_set(whole).records, int(count), int(seed), whole)
        return LabelledSet(records, metadata())  # as it is now: some classes are read with the records

    _register(name, load, metadata())


def _register(
    name: str, load: Callable[[], Records | LabelledSet], metadata: dict, places: Callable[[], dict] = dict
) -> None:
    DatasetCatalog.register(name, _Catalogued(name, load, places))
    MetadataCatalog.get(name).set(**metadata)


def _missing(name: str, expected: object) -> MissingDataError:
    where = f"DETECTRON2_DATASETS={os.environ.get('DETECTRON2_DATASETS', '(unset, so ./datasets)')}"
    return MissingDataError(
        f"data set {name!r} not found: looked for {expected} ({where}). Put it there (datasets/README.md), "
        "or try the drawn world instead: python projects/ToyScenes/make_toy_scenes.py --output "
        "$DETECTRON2_DATASETS/toy_scenes, then --config-file configs/toy/pretrain.yaml"
    )
