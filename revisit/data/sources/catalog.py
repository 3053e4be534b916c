"""What images there are, by name: fixed names of data sets, and KIND:PATH for any data on disk.

A data set is a list of records, dicts with ``file_name`` and what its reader adds. ``layouts`` has the kinds,
whose data sets are registered when they are asked for, ``named_sets`` the core's fixed names; ``register_source`` adds
others.
``subset:50:1:NAME`` are 50 labelled images of any data set, drawn by seed 1; subset:200:1:NAME has them too.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from revisit.data.sources.class_names import (
    BY_NUMBER,
    ClassOrder,
    class_metadata,
    classes_of,
    counted_by,
    key_of_classes,
)
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelledSet
from revisit.data.sources.named_sets import DETECTION_SIZES, SOURCES, DataSource
from revisit.data.sources.records import Records, keeping_all
from revisit.data.sources.subsets import are_numbers, nested_subset
from revisit.errors import UserError, did_you_mean, expect, translated, typed_list
from revisit.plugins import load_plugins

from detectron2.data import DatasetCatalog, MetadataCatalog

SUBSET = "subset"
# Metadata that name files of a whole data set; evaluators that read them, and the one that scores records instead.
_OF_FILES = ("json_file", "image_root", "dirname", "split", "year", "year_is_known", "name", "expected_images")
_BY_RECORDS = {"pascal_voc": "coco"}

logger = logging.getLogger(__name__)


class MissingDataError(UserError):
    """A data set that is known, but not on disk."""


class DataSet:
    """An entry of DatasetCatalog, through which Detectron2's functions also get what ``get_records`` gives.

    Args:
        load: reads the records, classes counted as the data set does.
        places: metadata that name files, which lie in the folder of all data sets.

    Attributes:
        order: whose classes it counts by in this process; None: it counts by itself.
        kept: its own records while ``keeps``, where they have been read.
    """

    keeps = False  # whether the files of each data set are read once in this process

    def __init__(self, name: str, load: Callable[[], Records | LabelledSet], places: Callable[[], dict] = dict):
        self.name, self.load, self.places = name, load, places
        self.order: ClassOrder | None = None
        self.kept: LabelledSet | None = None
        self._counts_by: dict | None = None  # its own class metadata, while MetadataCatalog has those of another order

    def __call__(self) -> Records:
        return get_records(self.name)

    @property
    def metadata(self) -> dict:
        """Those of MetadataCatalog, whose ``set`` refuses changes."""
        return vars(MetadataCatalog.get(self.name))

    @property
    def own_classes(self) -> dict:
        """Its class metadata as it counts by itself."""
        return class_metadata(self.name) if self._counts_by is None else self._counts_by

    def let_metadata_say(self, counted: dict, own: dict) -> None:
        """Let MetadataCatalog have these class metadata, and no others; ``own`` are those of ``own_classes``."""
        self._counts_by = None if counted == own else own
        for key in BY_NUMBER:
            self.metadata.pop(key, None)
        self.metadata.update(counted)

    def own(self) -> LabelledSet:
        """Its records as it counts classes itself, and its class metadata."""
        own = self.kept or self._read()
        if self.keeps:
            self.kept = own
        return own

    def _read(self) -> LabelledSet:
        counted, own = class_metadata(self.name), self.own_classes
        follows = counted != own
        self.let_metadata_say(own, own)  # Detectron2's readers refuse metadata that say something else than the files
        with translated(f"reading data set {self.name!r}"), keeping_all():
            try:
                loaded = self.load()
            except (FileNotFoundError, NotADirectoryError) as error:  # by Detectron2's own readers
                raise _missing(self.name, error.filename) from error
        if isinstance(loaded, LabelledSet):
            self.metadata.update(loaded.metadata)
            loaded = loaded.records
        expect(loaded, f"data set {self.name!r} is empty")
        own = class_metadata(self.name)
        self.let_metadata_say(counted if follows else own, own)
        return LabelledSet(loaded, own)


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


def register(name: str) -> DataSet:
    """The data set of DatasetCatalog that is called ``name``, a ``KIND:PATH`` added where it is not there.

    Of an entry that other code has registered, Detectron2's functions get from now on what ``get_records`` gives.

    Raises:
        UserError: a name that is neither registered nor of a known kind.
    """
    load_plugins()  # which register names and kinds
    if name in DatasetCatalog.list():
        entry = DatasetCatalog[name]
        if not isinstance(entry, DataSet):
            DatasetCatalog[name] = entry = DataSet(name, entry)
        entry.metadata.update(entry.places())
        return entry
    kind, _, rest = name.partition(":")
    if kind == SUBSET:
        return _register_subset(name, rest)
    if kind not in LABEL_LAYOUT_REGISTRY or not rest:
        raise _unknown(name, kind, rest)
    layout = LABEL_LAYOUT_REGISTRY.get(kind)
    parts = layout.parts_of(name)
    return _register(name, partial(layout.load, *parts), layout.metadata_of(parts))


def _unknown(name: str, kind: str, rest: str) -> UserError:
    problem = f"unknown data set {name!r}"
    if name and Path(name).is_dir():
        return UserError(f"{problem}: for a folder of images write {typed_list([f'folder:{name}'])}")
    if os.sep in kind:
        state = "is a file" if Path(name).is_file() else "is not there"
        return UserError(f"{problem}, which {state}: expected a folder of images, \"('folder:/data/photos',)\"")
    kinds = [*(layout for layout, _ in LABEL_LAYOUT_REGISTRY), SUBSET]
    expected = f"KIND:PATH with KIND one of {', '.join(kinds)}, or a name of datasets/README.md or Detectron2"
    names = [known for known in DatasetCatalog.list() if ":" not in known]
    meant = did_you_mean(kind, kinds if rest else names)
    if name == f"{kind}:" and kind in kinds:
        problem = f"data set {name!r} has nothing after its colon"
    elif not rest:
        problem += ", and no folder of that name is there"
    return UserError(f"{problem}: expected {expected}{meant}")


def get_records(name: str, class_names: Sequence[str] = (), *, whose: str = "the names asked for") -> Records:
    """The records of a data set by name, registered first where needed. At least one record.

    Between ``keep_records`` and ``drop_records`` its files are read once.

    Args:
        class_names: count classes in this order, and let the metadata say so; (): as ``share_classes`` has said in this
            process, else as the data set does.
        whose: these names are, for a message.

    Raises:
        UserError: unknown name, missing folder, a data set without images, or with other classes.
    """
    data_set = register(name)
    own = data_set.own()
    order = ClassOrder(whose, names=class_names) if class_names else data_set.order
    counted = own
    if order and key_of_classes(own.records):
        counted = counted_by(own, _wanted(order, name, own), name, order.leader)
    data_set.let_metadata_say(counted.metadata, own.metadata)
    return counted.records[:]  # of a list a copy


def share_classes(
    leader: str, followers: Iterable[str], num_classes: int | None = None, *, names: Sequence[str] = ()
) -> None:
    """In this process, let all ``followers`` count their classes as ``leader`` does, from their next loading on.

    The same names in another order are mapped, in the records and in what Detectron2's evaluators use. Boxes and masks
    may lack some of the leader's classes. Other names are a UserError when the follower is loaded, and for masks, whose
    ids stand in files, so is another order. Data sets without names are compared by how many classes they have. If the
    leader is missing, or its number of classes is not ``num_classes``, nothing is compared.

    Args:
        leader: a data set, or with ``names``, its classes by their numbers, whatever has these, such as a checkpoint.

    Raises:
        UserError: the name of a data set that is neither registered nor of a known kind.
    """
    if not names:
        register(leader).order = None
    for name in followers:
        if name != leader:
            register(name).order = ClassOrder(leader, num_classes, tuple(names))


def keep_records() -> None:
    """From now on read the files of each data set once in this process, and keep its records."""
    DataSet.keeps = True


def drop_records() -> None:
    """Forget what is kept, which takes memory, and from now on read the files whenever records are asked for."""
    DataSet.keeps = False
    for entry in DatasetCatalog.values():
        if isinstance(entry, DataSet):
            entry.kept = None


def _wanted(order: ClassOrder, name: str, own: LabelledSet) -> list:
    """The classes of what a data set follows; none if nothing is compared."""
    if order.names:
        return list(order.names)
    try:
        leader = register(order.leader)
        wanted = leader.own_classes.get(key_of_classes(own.records)) or classes_of(leader.own())
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


def metadata_of_part(name: str, *_: str) -> dict:
    """Of a data set that is made of another one, ``name``, which may have any layout: Detectron2's of that one, without
    what names its files."""
    whole = register(name).metadata
    kept = {}
    for key, value in whole.items():
        if key not in _OF_FILES and value is not None:
            kept[key] = value
    kind = whole.get("evaluator_type")
    kept["evaluator_type"] = _BY_RECORDS.get(kind, kind)
    return kept


def subset_name(name: str, count: int, seed: int) -> str:
    """The name of a nested subset of a data set: see nested_subset."""
    return f"{SUBSET}:{count}:{seed}:{name}"


def _register_subset(name: str, rest: str) -> DataSet:
    count, seed, whole = (*rest.split(":", 2), "", "")[:3]
    is_sound = are_numbers(count, seed) and int(count) > 0 and whole != ""
    expect(is_sound, f"data set {name!r}: expected {SUBSET}:N:SEED:NAME, N labelled images of the data set NAME")
    data_set = register(whole)

    def metadata() -> dict:
        of_whole = data_set.metadata | {key: None for key in BY_NUMBER} | data_set.own_classes
        stated = {key: value for key, value in of_whole.items() if value is not None}
        return stated | {"name": name, "subset_of": whole, "expected_images": int(count)}

    def load() -> LabelledSet:
        records = nested_subset(data_set.own().records, int(count), int(seed), whole)
        return LabelledSet(records, metadata())  # as it is now: some classes are read with the records

    return _register(name, load, metadata())


def _register(
    name: str, load: Callable[[], Records | LabelledSet], metadata: dict, places: Callable[[], dict] = dict
) -> DataSet:
    data_set = DataSet(name, load, places)
    DatasetCatalog.register(name, data_set)
    MetadataCatalog.get(name).set(**metadata)
    return data_set


def _missing(name: str, expected: object) -> MissingDataError:
    where = f"DETECTRON2_DATASETS={os.environ.get('DETECTRON2_DATASETS', '(unset, so ./datasets)')}"
    return MissingDataError(
        f"data set {name!r} not found: looked for {expected} ({where}). Name your own, such as DATASETS.TRAIN "
        "\"('folder:/data/photos',)\", put it there (datasets/README.md), or try the drawn world: "
        "python projects/ToyScenes/make_toy_scenes.py --output $DETECTRON2_DATASETS/toy_scenes, "
        "then --config-file configs/toy/pretrain.yaml"
    )
