"""What the data sets of a run have to hold, looked at before any process starts."""

from collections.abc import Iterable
from dataclasses import replace

from revisit.checkpoint.run_folder import UNTRAINED, Trained
from revisit.data.sources.catalog import MissingDataError, get_records, share_classes
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, inspect, is_learned_from, num_classes
from revisit.data.sources.records import Records
from revisit.data.sources.rows import joined
from revisit.errors import expect
from revisit.evaluation.features import check_not_enlarged
from revisit.evaluation.registry import evaluations_on
from revisit.keys import Facts, resolve_auto_values
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

NOTHING_KNOWN = Facts()


def decide_by_images(cfg: CfgNode, facts: Facts = NOTHING_KNOWN, **how: bool) -> Facts:
    """The facts with the number of images, after ``inspect_training``; keys that go by them are resolved."""
    counted = replace(facts, images=inspect_training(cfg, facts, **how))
    resolve_auto_values(cfg, counted)
    return counted


def inspect_training(
    cfg: CfgNode, facts: Facts = NOTHING_KNOWN, *, assume_missing: bool = False, looked_at: bool = True
) -> int:
    """How many images of DATASETS.TRAIN are learned from; what there is to say of them is logged. Keys that
    go by the images themselves are resolved.

    Args:
        assume_missing: for a data set that is not on disk take its published size, where that is known.
        looked_at: whether images are read.

    Raises:
        UserError: no data, or not what the network learns from.
    """
    expect(cfg.DATASETS.TRAIN, "no data to train on: set DATASETS.TRAIN, such as \"('folder:/data/photos',)\"")
    total, sets = 0, {}
    for name in cfg.DATASETS.TRAIN:
        try:
            sets[name] = inspect(cfg, name, to_learn=True)
        except MissingDataError:
            expected = MetadataCatalog.get(name).get("expected_images")
            if not assume_missing or expected is None:
                raise
            total += expected
            continue
        total += len(sets[name]) if method_of(cfg) else sum(is_learned_from(cfg, record) for record in sets[name])
    resolve_auto_values(cfg, replace(facts, records=joined([*sets.values()])))
    for name, records in sets.items() if looked_at else ():
        look_at_images(cfg, name, records, to_learn=True)
    return total


def inspect_evaluation(cfg: CfgNode, facts: Facts = NOTHING_KNOWN, *, assume_missing: bool = False) -> None:
    """Look at the data sets of an evaluation, and resolve keys that go by the images themselves.

    Args:
        assume_missing: leave out data sets that are not on disk.

    Raises:
        UserError: a data set that is unknown, not on disk, or without what is asked of it.
    """
    scored = evaluation_sets(cfg)
    sets = _evaluated_records(cfg, scored, facts, assume_missing)
    inspected = () if facts.images is None else cfg.DATASETS.TRAIN  # by inspect_training
    for name, records in sets.items():
        if scored[name] or name not in inspected:
            look_at_images(cfg, name, records, to_learn=not scored[name])
    for evaluation in evaluations_on(cfg):
        evaluation.check(cfg, sets)


def _evaluated_records(cfg: CfgNode, names: Iterable[str], facts: Facts, assume_missing: bool) -> dict[str, Records]:
    """The records that an evaluation reads, by data set, each set inspected as far as it is scored."""
    sets = {}
    for name in names:
        is_tested = name in cfg.DATASETS.TEST
        try:
            sets[name] = inspect(cfg, name, to_learn=False) if is_tested else get_records(name)
        except MissingDataError:
            if not assume_missing:
                raise
            continue
        resolve_auto_values(cfg, replace(facts, records=sets[name]))
        if method_of(cfg):
            check_not_enlarged(name, cfg.KNN_EVAL.IMAGE_SIZE, "KNN_EVAL.IMAGE_SIZE")
    return sets


def look_at_images(cfg: CfgNode, name: str, records: Records, *, to_learn: bool) -> None:
    """Let plug-ins look at the images of a data set. Raises UserError for images that a run cannot do with."""
    for _, check in IMAGE_CHECK_REGISTRY:
        check(cfg, name, records, to_learn)


def evaluation_sets(cfg: CfgNode) -> dict[str, bool]:
    """Names of the data sets that an evaluation reads, and whether numbers are given for them, so that none of their
    images may be replaced."""
    scored = dict.fromkeys(cfg.DATASETS.TEST, True)
    for evaluation in evaluations_on(cfg):
        for name in evaluation.data_sets(cfg):
            scored[name] = scored.get(name, False) or not evaluation.REPLACES
    return scored


def follow_class_names(cfg: CfgNode, trained: Trained = UNTRAINED) -> None:
    """In this process, let data sets that are scored against each other count their classes alike: as KNN_EVAL.BANK in
    pretraining, in finetuning as the network has learned them, by its checkpoint, or learns them."""
    if method_of(cfg):
        if cfg.KNN_EVAL.BANK:
            share_classes(cfg.KNN_EVAL.BANK, cfg.DATASETS.TEST)
    elif trained.classes:
        share_classes(trained.weights, cfg.DATASETS.TEST, names=trained.classes)
    elif cfg.DATASETS.TRAIN:
        share_classes(cfg.DATASETS.TRAIN[0], (*cfg.DATASETS.TRAIN[1:], *cfg.DATASETS.TEST), num_classes(cfg))
