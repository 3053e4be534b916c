"""From the command line to a frozen config: ``plan`` before any process starts, ``begin`` in each of them."""

import argparse
import logging
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from revisit.checkpoint.run_folder import (
    UNTRAINED,
    Trained,
    checkpoints_of_run,
    set_aside_earlier_run,
    settings_of_run,
    tidy_up,
    trained_network,
)
from revisit.data.sources.catalog import get_records, register
from revisit.data.sources.inspection import Note, num_classes
from revisit.engine.config_checks import check_config, check_hardware, check_schedule, settle_evaluation
from revisit.engine.data_checks import evaluation_sets, follow_class_names, inspect_evaluation, inspect_training
from revisit.engine.environment import record_environment
from revisit.engine.launch import log_processes
from revisit.engine.measuring import PRECISION, TYPES, choose_length, choose_precision, flat, following
from revisit.engine.merging import merged_config, stated_nearer
from revisit.engine.run_lock import run_lock
from revisit.engine.run_log import open_log
from revisit.engine.same_experiment import check_same_network, typed_in_vain
from revisit.engine.solver import resolve_schedule
from revisit.errors import UserError, did_you_mean, enough_memory, expect, is_no_defect, translated
from revisit.files import make_folder, write_whole
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.plugins import find_config, import_modules, recipe_names

from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.env import seed_all_rng

logger = logging.getLogger(__name__)

_BEGAN = time.perf_counter()


class Plan(NamedTuple):
    """What a command line asks for: a complete config that ``begin`` freezes, and what is to be said of it."""

    cfg: CfgNode
    notes: list[Note]
    num_images: int  # in DATASETS.TRAIN; 0 with --eval-only


def plan(args: argparse.Namespace, num_processes: int) -> Plan:
    """The plan of tools/train_net.py's command line, for so many processes over all machines. Nothing is written but
    OUTPUT_DIR made. Raises UserError for whatever is wrong with it."""
    no_recipe = "no recipe is given: expected --config-file FILE, such as own_images/pretrain.yaml (MODEL_ZOO.md)"
    expect(bool(args.config_file) or args.eval_only, no_recipe)
    where = {"num_processes": num_processes, "for_here": not args.dry_run}
    cfg, num_images = make_config(args.config_file, args.opts, resume=args.resume, trained=args.eval_only, **where), 0
    with translated("looking at the data sets"):
        notes = typed_in_vain(cfg, args.opts) + settle_evaluation(cfg, eval_only=args.eval_only)
        follow_class_names(cfg, network := _used_network(cfg, args))
        if network.weights and num_classes(cfg) and not (network.classes or cfg.DATASETS.TRAIN):
            by_order = f"{network.weights} names no classes: those of DATASETS.TEST go by their order"
            notes.append((logging.WARNING, by_order))
        if not args.eval_only:
            num_images, about_data = inspect_training(cfg, assume_missing=args.dry_run)
            notes += _fit_batch(cfg, num_images, num_processes)
            resolve_schedule(cfg, num_images)
            check_config(cfg, num_processes)  # now that what follows from the images is known
            notes += about_data + (check_schedule(cfg, num_images, num_processes) if cfg.SOLVER.MAX_ITER else [])
        notes += inspect_evaluation(cfg, assume_missing=args.dry_run)
    make_folder(Path(cfg.OUTPUT_DIR), "OUTPUT_DIR")
    return Plan(cfg, notes, num_images)


def _fit_batch(cfg: CfgNode, num_images: int, num_processes: int) -> list[Note]:
    """Where a pretraining has fewer images than a batch, all of them become the batch, if its method can do with it."""
    batch, smaller = num_images // num_processes * num_processes, cfg.clone()
    if not (method_of(cfg) and 1 < batch < cfg.SOLVER.IMS_PER_BATCH):
        return []
    smaller.SOLVER.IMS_PER_BATCH = batch
    try:
        check_config(smaller, num_processes)
    except UserError:
        return []  # resolve_schedule says what to change
    note = f"{num_images} images are fewer than a batch of {cfg.SOLVER.IMS_PER_BATCH}: batches of {batch}"
    cfg.SOLVER.IMS_PER_BATCH = batch
    return [(logging.WARNING, note)]


def _used_network(cfg: CfgNode, args: argparse.Namespace) -> Trained:
    """What --eval-only's checkpoint says."""
    return trained_network(cfg, resume=args.resume) if args.eval_only else UNTRAINED


def make_config(
    config_file: str,
    opts: Sequence[str],
    *,
    num_processes: int = 1,
    resume: bool = False,
    trained: bool = False,
    for_here: bool = True,
    seed: int = -1,
) -> CfgNode:
    """``merged_config`` with what depends on this machine decided, and checked.

    Args:
        num_processes: of the run, over all machines.
        resume: what the run in OUTPUT_DIR drew or measured is kept.
        trained: of a network that is only used: what neither file nor pairs say is as in its checkpoint.
        for_here: refuse what this machine cannot run.
        seed: what a negative SEED becomes; negative: drawn.

    Raises:
        UserError: an impossible recipe; with ``trained`` one of another network than the checkpoint's.
    """
    config_file = find_config(config_file)
    if config_file and not Path(config_file).is_file():
        meant = did_you_mean(config_file.removeprefix("configs/"), recipe_names(), most=3)
        raise UserError(f"config file {config_file} not found (MODEL_ZOO.md){meant}")
    cfg = merged_config(config_file, opts)
    if trained:
        cfg = _under_checkpoint(cfg, config_file, opts, resume)
    if cfg.SEED < 0:
        cfg.SEED = seed
    with translated("checking the config"):
        before = settings_of_run(Path(cfg.OUTPUT_DIR)) if resume else {}
        _settle(cfg, opts, num_processes, before, for_here=for_here)
        check_config(cfg, num_processes)
        if for_here:
            check_hardware(cfg)
    return cfg


def _under_checkpoint(cfg: CfgNode, config_file: str, opts: Sequence[str], resume: bool) -> CfgNode:
    """The config of the file and the pairs, with what its checkpoint says where these say nothing."""
    network = trained_network(cfg, resume=resume)
    if not config_file and not network.config:
        found = f"{network.weights} holds no config" if network.weights else "no weights are given"
        raise UserError(f"{found}: expected a run's checkpoint, such as model_final.pth, or --config-file FILE")
    kind = network.config.get("MODEL.META_ARCHITECTURE", "")
    if method_of(cfg) and kind != cfg.MODEL.META_ARCHITECTURE:
        return cfg  # a pretraining judges the backbone of any checkpoint, whose flags are compared
    cfg = merged_config(config_file, opts, network)
    check_same_network(cfg, network)
    return cfg


def _settle(
    cfg: CfgNode, opts: Sequence[object], num_processes: int, before: Mapping[str, Any], *, for_here: bool
) -> None:
    """Decide what depends on this machine, or on an earlier part of the run, whose settings are ``before``."""
    if cfg.INPUT.BIT_DEPTH == "auto":
        cfg.INPUT.BIT_DEPTH = None  # of the two words for it, the one that a checkpoint has
    if cfg.MONITOR.IMAGES == "train" and cfg.DATASETS.TRAIN:
        cfg.MONITOR.IMAGES = cfg.DATASETS.TRAIN[0]
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        found = sorted(glob("/dev/nvidia[0-9]*"))
        if for_here and found and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
            raise UserError(
                f"this machine has {found[0]}, but torch {torch.__version__} cannot use it: expected a driver for CUDA "
                f"{torch.version.cuda}, or MODEL.DEVICE cpu"
            )
        cfg.MODEL.DEVICE = "cpu"
    # SyncBN is BN on one process, and Detectron2's own form on the CPU, where torch's does not run.
    sync_norm = "BN" if num_processes == 1 else "naiveSyncBN" if cfg.MODEL.DEVICE == "cpu" else "SyncBN"
    for node in cfg.MODEL.values():
        if isinstance(node, CfgNode) and node.get("NORM") == "SyncBN":
            node.NORM = sync_norm
    if cfg.SEED < 0:
        cfg.SEED = before.get("SEED", -1)
    if cfg.SEED < 0:
        cfg.SEED = int(np.random.SeedSequence().entropy % 2**31)
    if cfg.SOLVER.PRECISION == "auto_on_gpu":
        cfg.SOLVER.PRECISION = "auto" if cfg.MODEL.DEVICE != "cpu" and method_of(cfg) else ""
    if cfg.SOLVER.MINUTES:
        by_steps = f"SOLVER.MINUTES {cfg.SOLVER.MINUTES:g}: {cfg.MODEL.META_ARCHITECTURE} has no length in time"
        expect(method_of(cfg) is not None, f"{by_steps}: expected SOLVER.MAX_ITER, or SOLVER.EPOCHS")
        cfg.SOLVER.MAX_ITER = cfg.SOLVER.EPOCHS = 0
        if before.get("SOLVER.MINUTES") == 0:
            cfg.merge_from_list(flat((key, before[key]) for key in following(opts[::2])))
    if cfg.SOLVER.PRECISION in TYPES:
        cfg.SOLVER.AMP.ENABLED = cfg.SOLVER.PRECISION != "float32"
        cfg.SOLVER.AMP.DTYPE = cfg.SOLVER.PRECISION if cfg.SOLVER.AMP.ENABLED else cfg.SOLVER.AMP.DTYPE
        cfg.SOLVER.PRECISION = ""
    typed = set(opts[::2])
    partly = "SOLVER.PRECISION" not in typed and typed & set(PRECISION)
    if before.get("SOLVER.PRECISION") == "" and (cfg.SOLVER.PRECISION == "auto" or partly):
        cfg.merge_from_list(flat((key, before[key]) for key in PRECISION if key not in typed))
        cfg.SOLVER.PRECISION = ""  # an earlier part of the run measured


@contextmanager
def begin(cfg: CfgNode, notes: Sequence[Note], args: argparse.Namespace) -> Iterator[None]:
    """In every process of a run, whose folder a training holds as long: agree on what is still open, freeze the config,
    open the log, write config.yaml and environment.json, seed the random generators."""
    folder, trains = Path(cfg.OUTPUT_DIR), not args.eval_only
    with run_lock(folder) if trains and comm.is_main_process() else nullcontext(), enough_memory():
        import_modules(cfg.IMPORTS)
        cfg.SEED = comm.all_gather(cfg.SEED)[0]  # where it was drawn, every machine has drawn another one
        for name in (*cfg.DATASETS.TRAIN, *evaluation_sets(cfg)):
            register(name)
        follow_class_names(cfg, _used_network(cfg, args))
        if trains:
            _prepare_folder(cfg, folder, args.resume)
        open_log(cfg.OUTPUT_DIR)
        # Detectron2's training loop logs every exception with its traceback; what is no defect is said in one line.
        logging.getLogger("detectron2.engine.train_loop").addFilter(
            lambda record: not (record.exc_info and is_no_defect(record.exc_info[1]))
        )
        torch.backends.cudnn.benchmark = cfg.CUDNN_BENCHMARK and trains
        settings = folder / "config.yaml"
        logger.info(f"{args.config_file or 'no config file'} {shlex.join(args.opts)}: all settings are in {settings}")
        log_processes(cfg.MODEL.DEVICE)
        if trains:
            notes = [*notes, *_measure(cfg, args)]
        cfg.freeze()
        if comm.is_main_process():
            # What a run was trained with stays on record when it is evaluated, and until it resumes (trainer.py).
            again = args.eval_only or args.resume
            if not (again and checkpoints_of_run(folder) and settings.is_file()):
                write_whole(settings, cfg.dump())
            record_environment(folder, again=again)
            for level, text in notes:
                logger.log(level, text)
        seed_all_rng(cfg.SEED + comm.get_rank())
        depth = f", INPUT.BIT_DEPTH {cfg.INPUT.BIT_DEPTH}" if cfg.INPUT.BIT_DEPTH else ""
        logger.info(f"SEED {cfg.SEED}, {cfg.SOLVER.MAX_ITER} iterations{depth}")
        yield


def _measure(cfg: CfgNode, args: argparse.Namespace) -> list[Note]:
    """Put what this machine does in the places of SOLVER.PRECISION auto and SOLVER.MINUTES."""
    notes = []
    with translated("measuring training steps"):
        if cfg.SOLVER.PRECISION == "auto":
            cfg.merge_from_list(flat(choose_precision(cfg).items()))
        if cfg.SOLVER.MINUTES:
            stated = stated_nearer("SOLVER.MINUTES", args.config_file, args.opts)
            cfg.merge_from_list(flat(choose_length(cfg, _BEGAN, stated).items()))
            images = sum(len(get_records(name)) for name in cfg.DATASETS.TRAIN)
            notes = check_schedule(cfg, images, comm.get_world_size())
    in_bfloat16 = cfg.SOLVER.AMP.ENABLED and cfg.SOLVER.AMP.DTYPE == "bfloat16" and cfg.MODEL.DEVICE != "cpu"
    if in_bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        notes.append((logging.WARNING, "this GPU computes no bfloat16 itself, which is slow: take AMP.DTYPE float16"))
    return notes


def _prepare_folder(cfg: CfgNode, folder: Path, resume: bool) -> None:
    """Before a training writes to OUTPUT_DIR: a resumed run tidies it up, a new one makes room."""
    if comm.is_main_process():
        tidy_up(folder)
        if not resume and checkpoints_of_run(folder):
            if cfg.MODEL.WEIGHTS and Path(cfg.MODEL.WEIGHTS).resolve().parent == folder.resolve():
                raise UserError(
                    f"MODEL.WEIGHTS {cfg.MODEL.WEIGHTS} is of an earlier run in the same OUTPUT_DIR: continue that one "
                    "by --resume, or start a new one in another OUTPUT_DIR"
                )
            aside = set_aside_earlier_run(folder)
            print(f"{folder} held an earlier run: its checkpoints and metrics are in {aside} now", flush=True)
    comm.synchronize()
