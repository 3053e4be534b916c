"""What the data sets of a run have to hold, looked at before any process starts."""

import logging
from collections.abc import Sequence

from revisit.checkpoint.flags import BIT_DEPTH, read_flags
from revisit.checkpoint.reading import read_checkpoint
from revisit.checkpoint.run_folder import UNTRAINED, Trained
from revisit.data.deep_pixels import bit_depth, find_bit_depth
from revisit.data.finetuning.detection_mapper import longest_side
from revisit.data.sources.catalog import MissingDataError, get_records
from revisit.data.sources.class_names import share_classes
from revisit.data.sources.inspection import Note, inspect, num_classes
from revisit.data.sources.records import Records, shared_images
from revisit.data.sources.soundness import MAX_SHARE, look_at
from revisit.data.sources.subsets import is_labelled
from revisit.errors import UserError, expect, first_few
from revisit.evaluation.features import check_not_enlarged
from revisit.files import local_copy
from revisit.keys import DETECTORS
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

MOST_LISTED = 20  # unreadable images


def inspect_training(cfg: CfgNode, *, assume_missing: bool = False, looked_at: bool = True) -> tuple[int, list[Note]]:
    """How many images of DATASETS.TRAIN are learned from, and what is to be said of them; INPUT.BIT_DEPTH is resolved.

    Args:
        assume_missing: for a data set that is not on disk take its published size, where that is known.
        looked_at: whether images are read.

    Raises:
        UserError: no data, or not what the network learns from.
    """
    if not cfg.DATASETS.TRAIN:
        raise UserError("no data to train on: set DATASETS.TRAIN, such as \"('folder:/data/photos',)\"")
    total, notes, on_disk, sets = 0, [], [], {}
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
        sets[name] = records
    resolve_bit_depth(cfg, on_disk)
    for name, records in sets.items() if looked_at else ():
        notes += look_at_images(cfg, name, records, to_learn=True)
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
    for name, records in by_name.items():
        notes += look_at_images(cfg, name, records, to_learn=name not in (*cfg.DATASETS.TEST, bank))
    for name in cfg.DATASETS.TEST if bank else ():
        if shared := shared_images(by_name.get(bank, []), by_name.get(name, [])):
            both = f"{shared} of {len(by_name[name])} images of {name} are in KNN_EVAL.BANK {bank} too"
            notes.append((logging.WARNING, f"{both}, where each finds itself: expected other images"))
    return notes


def look_at_images(cfg: CfgNode, name: str, records: Records, *, to_learn: bool) -> list[Note]:
    """The rule of docs/faults.md for images that cannot be read, before the first step: how many were looked at, which
    are replaced or completed. Raises UserError, after a list of them, for too many, and for any in a set to be scored.
    """
    replaced, of_boxes = to_learn and method_of(cfg), cfg.MODEL.META_ARCHITECTURE in DETECTORS
    longest = longest_side(cfg, to_learn) if of_boxes else None
    look = look_at(records, bit_depth(cfg), whole=not to_learn, longest=longest)
    lost = look.unreadable + (look.truncated if replaced else [])
    seen = f"data set {name!r}: {look.seen:,} of {len(records):,} images looked at, {len(lost):,} cannot be read"
    if len(lost) > (MAX_SHARE * look.seen if to_learn else 0):
        print("unreadable:", *lost[:MOST_LISTED], sep="\n    ", flush=True)
        most = f"at most {MAX_SHARE:.0%}" if to_learn else "none, because the rest would be another test set"
        raise UserError(f"{seen}, such as {lost[0]}: expected {most}; copy them again, or remove them")
    notes = [(logging.WARNING, f"{seen}, so others stand in: {first_few(lost)}") if lost else (logging.INFO, seen)]
    if look.truncated and not replaced:
        grey = f"{len(look.truncated):,} truncated JPEGs are completed with grey: {first_few(look.truncated)}"
        notes.append((logging.WARNING, f"{seen}; {grey}"))
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


def resolve_bit_depth(cfg: CfgNode, records: Sequence[dict]) -> None:
    """Turn INPUT.BIT_DEPTH auto into a number where ``records`` have deep images, and print why: as MODEL.WEIGHTS were
    trained, else as the images ask. UserError where these ask for another one than the weights."""
    if bit_depth(cfg) is not None or (asked := find_bit_depth(records)) is None:
        return
    (bits, reason), trained = asked, _depth_of_weights(cfg.MODEL.WEIGHTS)
    if trained:
        fits = bits == trained if 1 in (bits, trained) else bits <= trained
        expect(fits, f"{reason}: they ask for {BIT_DEPTH} {bits}, but {cfg.MODEL.WEIGHTS} was trained with {trained}")
        bits, reason = trained, f"as {cfg.MODEL.WEIGHTS} was trained; {reason}"
    was_frozen = cfg.is_frozen()  # by a project
    cfg.defrost()
    cfg.INPUT.BIT_DEPTH = bits
    if was_frozen:
        cfg.freeze()
    print(f"{BIT_DEPTH} {bits}, so that values of 0 to {2**bits - 1} become 0 to 255: {reason}", flush=True)


def _depth_of_weights(weights: str) -> int | None:
    """By the flags beside or in the file; None where they say nothing."""
    if not weights:
        return None
    flags = read_flags(weights)[0]
    if flags is None:
        flags = read_checkpoint(local_copy(weights, "MODEL.WEIGHTS")).get("flags")
    return flags.get(BIT_DEPTH) if isinstance(flags, dict) else None
