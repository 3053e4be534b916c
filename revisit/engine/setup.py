"""From the command line to a checked, complete config, before any process starts or any training begins."""

import argparse
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from revisit.checkpoint.run_folder import (
    checkpoints_of_run,
    set_aside_earlier_run,
    settings_of_run,
    state_of_run,
    tidy_up,
)
from revisit.config import add_revisit_config
from revisit.data.catalog import MissingDataError, get_records, register
from revisit.data.class_names import share_classes
from revisit.data.deep_pixels import bit_depth
from revisit.data.inspection import Note, inspect, num_classes
from revisit.data.records import shared_images
from revisit.engine.bit_depth_of_run import resolve_bit_depth
from revisit.engine.config_checks import (
    check_config,
    check_hardware,
    check_training,
    check_typed,
)
from revisit.engine.environment import record_environment
from revisit.engine.launch import log_processes
from revisit.engine.merging import check_pairs, first_statement, imports_of, merge_file, merge_pairs
from revisit.engine.precision import DECIDED, resolve_precision
from revisit.engine.run_log import open_log
from revisit.errors import UserError, expect, is_lost_contact
from revisit.evaluation.features import check_not_enlarged
from revisit.imports import import_modules
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode, get_cfg
from detectron2.data import MetadataCatalog
from detectron2.utils import comm
from detectron2.utils.env import seed_all_rng


def load_config(args: argparse.Namespace) -> CfgNode:
    """``make_config`` for the command line of a training."""
    expect(args.num_gpus > 0, f"--num-gpus {args.num_gpus}: expected at least 1 (a process on the CPU without GPUs)")
    cfg = make_config(
        args.config_file,
        args.opts,
        num_processes=args.num_gpus * args.num_machines,
        resume=args.resume,
        for_here=not getattr(args, "dry_run", False),
    )
    check_training(cfg, eval_only=getattr(args, "eval_only", False))
    return cfg


def make_config(
    config_file: str,
    opts: Sequence[str],
    *,
    num_processes: int = 1,
    resume: bool = False,
    for_here: bool = True,
    seed: int = -1,
) -> CfgNode:
    """Merge a config file, where there is one, and KEY VALUE pairs over the defaults, and check the result.

    What they name in IMPORTS is imported first, because it may add config keys.

    Args:
        num_processes: of the run, over all machines.
        resume: a SEED that is to be drawn is the one that the run in OUTPUT_DIR drew, and SOLVER.PRECISION auto what it
            measured.
        for_here: refuse what this machine cannot run.
        seed: SEED where nothing states one; negative: drawn.

    Raises:
        UserError: a file or key that does not exist, a value of the wrong type, an impossible recipe.
    """
    expect(not config_file or Path(config_file).is_file(), f"config file {config_file} not found")
    check_pairs(opts)
    import_modules(imports_of(config_file, opts))
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.SEED = seed
    if config_file:
        merge_file(cfg, config_file)
    merge_pairs(cfg, opts)
    folder = Path(cfg.OUTPUT_DIR)
    run = state_of_run(folder) if resume and method_of(cfg) else {}
    check_typed(cfg, opts)
    if cfg.INPUT.BIT_DEPTH == "auto":
        cfg.INPUT.BIT_DEPTH = None  # of the two words for it, the one that a checkpoint has
    if cfg.MONITOR.IMAGES == "train" and cfg.DATASETS.TRAIN:
        cfg.MONITOR.IMAGES = cfg.DATASETS.TRAIN[0]
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        cfg.MODEL.DEVICE = "cpu"
    _resolve_norm(cfg, num_processes)
    kept = resume and (cfg.SEED < 0 or cfg.SOLVER.PRECISION == "auto")
    settings = settings_of_run(folder, run) if kept else {}
    _resolve_seed(cfg, settings)
    _settle_precision(cfg, settings, config_file, opts)
    check_config(cfg, num_processes)
    if for_here:
        check_hardware(cfg)
    return cfg


def check_evaluation_data(cfg: CfgNode, notes: list[Note] | None = None, *, assume_missing: bool = False) -> None:
    """Make sure that the data sets of an evaluation are known, on disk, and hold what is asked of them.

    They resolve INPUT.BIT_DEPTH where DATASETS.TRAIN has not.

    Args:
        notes: gets what is to be said of them.
        assume_missing: leave out data sets that are not on disk.
    """
    notes = [] if notes is None else notes
    follow_class_names(cfg)
    found = {}
    for name in _evaluation_sets(cfg):
        try:
            records, of_records = (
                inspect(cfg, name, to_learn=False) if name in cfg.DATASETS.TEST else (get_records(name), [])
            )
        except MissingDataError:
            if not assume_missing:
                raise
            continue
        found[name] = records
        notes += of_records
        resolve_bit_depth(cfg, records)
        if method_of(cfg):
            check_not_enlarged(name, cfg.KNN_EVAL.IMAGE_SIZE, "KNN_EVAL.IMAGE_SIZE")
        if cfg.KNN_EVAL.BANK:
            _check_classified(cfg, name, {record.get("label", -1) for record in records})
        if name == cfg.MONITOR.IMAGES:
            count, neighbors = min(len(records), cfg.MONITOR.MAX_IMAGES), cfg.KNN_EVAL.NUM_NEIGHBORS
            expect(
                count > neighbors,
                f"MONITOR.IMAGES {name} gives {count} images (MONITOR.MAX_IMAGES {cfg.MONITOR.MAX_IMAGES}): expected "
                f"more than the {neighbors} neighbours of KNN_EVAL.NUM_NEIGHBORS",
            )
    if bank := found.get(cfg.KNN_EVAL.BANK):
        for name in cfg.DATASETS.TEST:
            if shared := shared_images(bank, found.get(name, [])):
                both = f"{shared} of {len(found[name])} images of {name} are in KNN_EVAL.BANK {cfg.KNN_EVAL.BANK} too"
                notes.append((logging.WARNING, f"{both}, where each finds itself: expected other images"))


def _check_classified(cfg: CfgNode, name: str, labels: set[int]) -> None:
    """Check the classes, -1 for none, of a data set that kNN may compare with or classify."""
    if name == cfg.KNN_EVAL.BANK and len(labels) < 2:
        raise UserError(f"KNN_EVAL.BANK {name} has fewer than two classes: expected a labelled data set")
    expect(
        name not in cfg.DATASETS.TEST or -1 not in labels,
        f"DATASETS.TEST: images of {name} have no class to compare with that of KNN_EVAL.BANK: expected a labelled "
        "data set; MONITOR.IMAGES takes one without labels",
    )


def count_images(cfg: CfgNode, notes: list[Note] | None = None, *, assume_missing: bool = False) -> int:
    """Images in DATASETS.TRAIN, by whose records INPUT.BIT_DEPTH is resolved.

    Args:
        notes: gets what is to be said of them.
        assume_missing: for a data set that is not on disk take its published size, where that is known.
    """
    notes = [] if notes is None else notes
    expect(len(cfg.DATASETS.TRAIN) > 0, "no data to train on: set DATASETS.TRAIN, such as \"('folder:/data/photos',)\"")
    follow_class_names(cfg)
    total, found = 0, []
    for name in cfg.DATASETS.TRAIN:
        try:
            records, of_records = inspect(cfg, name, to_learn=True)
        except MissingDataError:
            if not assume_missing or (expected := MetadataCatalog.get(name).get("expected_images")) is None:
                raise
            total += expected
        else:
            notes += of_records
            total += len(records)
            found += records
    resolve_bit_depth(cfg, found)
    return total


def follow_class_names(cfg: CfgNode) -> None:
    """In this process, let data sets that are scored against each other count their classes alike.

    They follow KNN_EVAL.BANK in pretraining, and what a network learns from in finetuning.
    """
    if method_of(cfg):
        if cfg.KNN_EVAL.BANK:
            share_classes(cfg.KNN_EVAL.BANK, cfg.DATASETS.TEST)
    elif cfg.DATASETS.TRAIN:
        share_classes(cfg.DATASETS.TRAIN[0], (*cfg.DATASETS.TRAIN[1:], *cfg.DATASETS.TEST), num_classes(cfg))


def setup_run(cfg: CfgNode, args: argparse.Namespace) -> None:
    """In every process: IMPORTS, loggers, precision, config.yaml, environment.json, random generators."""
    import_modules(cfg.IMPORTS)
    cfg.defrost()
    cfg.SEED = comm.all_gather(cfg.SEED)[0]  # where it was drawn, every machine has drawn another one
    cfg.freeze()
    for name in (*cfg.DATASETS.TRAIN, *_evaluation_sets(cfg)):
        register(name)
    follow_class_names(cfg)
    _prepare_folder(cfg, args)
    folder = Path(cfg.OUTPUT_DIR)
    open_log(cfg.OUTPUT_DIR)
    # Detectron2's training loop logs every exception with its traceback; what is no defect is said in one line.
    logging.getLogger("detectron2.engine.train_loop").addFilter(
        lambda record: not (record.exc_info and _is_said_in_a_line(record.exc_info[1]))
    )
    torch.backends.cudnn.benchmark = cfg.CUDNN_BENCHMARK and not args.eval_only
    logger, settings = logging.getLogger(__name__), folder / "config.yaml"
    logger.info(f"{args.config_file or 'no config file'} {shlex.join(args.opts)}: all settings are in {settings}")
    log_processes(cfg.MODEL.DEVICE)
    if not args.eval_only:
        resolve_precision(cfg)
    if comm.is_main_process():
        # What a run was trained with stays on record when it is evaluated, and until it really resumes (trainer.py).
        again = args.eval_only or args.resume
        if not (again and checkpoints_of_run(folder) and settings.is_file()):
            settings.write_text(cfg.dump())
        record_environment(folder, again=again)
        for level, text in getattr(args, "notes", []):
            logger.log(level, text)
    seed_all_rng(cfg.SEED + comm.get_rank())
    depth = f", INPUT.BIT_DEPTH {cfg.INPUT.BIT_DEPTH}" if bit_depth(cfg) else ""
    logger.info(f"SEED {cfg.SEED}, {cfg.SOLVER.MAX_ITER} iterations{depth}")


def _prepare_folder(cfg: CfgNode, args: argparse.Namespace) -> None:
    """Before anything is written to OUTPUT_DIR: a resumed run tidies it up, a new one makes room."""
    folder = Path(cfg.OUTPUT_DIR)
    if comm.is_main_process() and not args.eval_only:
        tidy_up(folder)
        if not args.resume:
            expect(
                not (cfg.MODEL.WEIGHTS and checkpoints_of_run(folder))
                or Path(cfg.MODEL.WEIGHTS).resolve().parent != folder.resolve(),
                f"MODEL.WEIGHTS {cfg.MODEL.WEIGHTS} is of an earlier run in the same OUTPUT_DIR: continue that one "
                "by --resume, or start a new one in another OUTPUT_DIR",
            )
            if aside := set_aside_earlier_run(folder):
                print(f"{folder} held an earlier run: its checkpoints and metrics are in {aside} now", flush=True)
    comm.synchronize()


def _is_said_in_a_line(error: BaseException) -> bool:
    return isinstance(error, UserError) or is_lost_contact(error)


def _evaluation_sets(cfg: CfgNode) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*cfg.DATASETS.TEST, *filter(None, [cfg.KNN_EVAL.BANK, cfg.MONITOR.IMAGES])]))


def _resolve_norm(cfg: CfgNode, num_processes: int) -> None:
    """SyncBN is BN on one process, and Detectron2's own form on the CPU, where torch's does not run."""
    here = "BN" if num_processes == 1 else "naiveSyncBN" if cfg.MODEL.DEVICE == "cpu" else "SyncBN"
    for node in cfg.MODEL.values():
        if isinstance(node, CfgNode) and node.get("NORM") == "SyncBN":
            node.NORM = here


def _settle_precision(cfg: CfgNode, before: Mapping[str, Any], config_file: str, opts: Sequence[object]) -> None:
    """SOLVER.PRECISION auto gives way to what it would decide, where that is typed, or stated by a config file that is
    based on the one with auto; and to what a resumed run computes in."""
    if cfg.SOLVER.PRECISION != "auto" or not method_of(cfg):
        return
    typed, keys = set(opts[::2]), {"SOLVER.PRECISION", *DECIDED} - {"SOLVER.AMP.DTYPE"}  # which alone decides nothing
    stated = typed if typed & keys else first_statement(config_file, keys)
    by_hand = [key for key in DECIDED if key in stated]
    expect(
        not by_hand or "SOLVER.PRECISION" not in stated,
        f"SOLVER.PRECISION auto decides {', '.join(by_hand)}: expected one or the other",
    )
    begun = before if before.get("SOLVER.PRECISION") != "auto" else {}
    if by_hand or begun:
        kept = [key for key in DECIDED if key in begun and key not in {*by_hand, *typed}]
        cfg.merge_from_list(["SOLVER.PRECISION", "", *(word for key in kept for word in (key, begun[key]))])
        return
    found = f"SOLVER.AMP.DTYPE {cfg.SOLVER.AMP.DTYPE}, but SOLVER.PRECISION auto measures bfloat16 alone"
    wanted = "SOLVER.AMP.ENABLED True with it, which switches auto off, or no SOLVER.AMP.DTYPE"
    expect(cfg.SOLVER.AMP.DTYPE == "bfloat16", f"{found}: expected {wanted}")


def _resolve_seed(cfg: CfgNode, before: Mapping[str, Any]) -> None:
    """A negative SEED is drawn once; a resumed run takes the seed that its first start drew and saved."""
    if cfg.SEED < 0:
        cfg.SEED = before.get("SEED", -1)
    if cfg.SEED < 0:
        cfg.SEED = int(np.random.SeedSequence().entropy % 2**31)
