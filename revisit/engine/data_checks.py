"""What the data sets of a run have to hold, looked at before any process starts."""

import logging

from revisit.checkpoint.run_folder import UNTRAINED, Trained
from revisit.data.catalog import MissingDataError, get_records, is_labelled
from revisit.data.class_names import share_classes
from revisit.data.inspection import Note, inspect, num_classes
from revisit.data.records import shared_images
from revisit.engine.bit_depth_of_run import resolve_bit_depth
from revisit.errors import UserError
from revisit.evaluation.features import check_not_enlarged
from revisit.keys import DETECTORS
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog


def inspect_training(cfg: CfgNode, *, assume_missing: bool = False) -> tuple[int, list[Note]]:
    """How many images of DATASETS.TRAIN are learned from, and what is to be said of them; INPUT.BIT_DEPTH is resolved.

    Args:
        assume_missing: for a data set that is not on disk take its published size, where that is known.

    Raises:
        UserError: no data, or not what the network learns from.
    """
    if not cfg.DATASETS.TRAIN:
        raise UserError("no data to train on: set DATASETS.TRAIN, such as \"('folder:/data/photos',)\"")
    total, notes, on_disk = 0, [], []
    for name in cfg.DATASETS.TRAIN:
        try:
            records, about_records = inspect(cfg, name, to_learn=True)
        except MissingDataError:
            if not assume_missing or (expected := MetadataCatalog.get(name).get("expected_images")) is None:
                raise
            total += expected
            continue
        notes += about_records
        leaves_out = cfg.MODEL.META_ARCHITECTURE in DETECTORS and cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS
        total += sum(map(is_labelled, records)) if leaves_out else len(records)
        on_disk += records
    resolve_bit_depth(cfg, on_disk)
    return total, notes


def inspect_evaluation(cfg: CfgNode, *, assume_missing: bool = False) -> list[Note]:
    """Look at the data sets of an evaluation, and resolve INPUT.BIT_DEPTH where DATASETS.TRAIN has not.

    Args:
        assume_missing: leave out data sets that are not on disk.

    Raises:
        UserError: a data set that is unknown, not on disk, or without what is asked of it.
    """
    bank, notes, by_name = cfg.KNN_EVAL.BANK, [], {}
    for name in evaluation_sets(cfg):
        tested = name in cfg.DATASETS.TEST
        try:
            records, about_records = inspect(cfg, name, to_learn=False) if tested else (get_records(name), [])
        except MissingDataError:
            if not assume_missing:
                raise
            continue
        by_name[name] = records
        notes += about_records
        resolve_bit_depth(cfg, records)
        if method_of(cfg):
            check_not_enlarged(name, cfg.KNN_EVAL.IMAGE_SIZE, "KNN_EVAL.IMAGE_SIZE")
        labels = {record.get("label", -1) for record in records}  # -1: no class
        if name == bank and len(labels) < 2:
            raise UserError(f"KNN_EVAL.BANK {name} has fewer than two classes: expected a labelled data set")
        if bank and tested and -1 in labels:
            raise UserError(
                f"DATASETS.TEST: images of {name} have no class to compare with that of KNN_EVAL.BANK: expected a "
                "labelled data set; MONITOR.IMAGES takes one without labels"
            )
        judged, neighbors = min(len(records), cfg.MONITOR.MAX_IMAGES), cfg.KNN_EVAL.NUM_NEIGHBORS
        if name == cfg.MONITOR.IMAGES and judged <= neighbors:
            raise UserError(
                f"MONITOR.IMAGES {name} gives {judged} images (MONITOR.MAX_IMAGES {cfg.MONITOR.MAX_IMAGES}): expected "
                f"more than the {neighbors} neighbours of KNN_EVAL.NUM_NEIGHBORS"
            )
    for name in cfg.DATASETS.TEST if bank else ():
        if shared := shared_images(by_name.get(bank, []), by_name.get(name, [])):
            both = f"{shared} of {len(by_name[name])} images of {name} are in KNN_EVAL.BANK {bank} too"
            notes.append((logging.WARNING, f"{both}, where each finds itself: expected other images"))
    return notes


def evaluation_sets(cfg: CfgNode) -> tuple[str, ...]:
    """Names of the data sets that an evaluation reads, each once."""
    return tuple(dict.fromkeys([*cfg.DATASETS.TEST, *filter(None, [cfg.KNN_EVAL.BANK, cfg.MONITOR.IMAGES])]))


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
