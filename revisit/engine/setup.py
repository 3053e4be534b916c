"""From the command line to a frozen config, in seven steps: defaults, file, pairs, resolve, check, log, freeze.

``plan`` takes the first five before any process starts, ``start_run`` the others in each of them.
"""

import argparse
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from revisit.checkpoint.run_folder import (
    UNTRAINED,
    Trained,
    checkpoints_of_run,
    earlier_part,
    holds_run,
    last_set_aside,
    set_aside_earlier_run,
    tidy_up,
    trained_network,
)
from revisit.data.images.deep_images import pixel_format
from revisit.data.sources.catalog import register
from revisit.data.sources.inspection import num_classes
from revisit.engine.command import in_shell
from revisit.engine.config_checks import check_config, check_evaluation, check_schedule, check_start
from revisit.engine.data_checks import decide_by_images, evaluation_sets, follow_class_names, inspect_evaluation
from revisit.engine.environment import record_environment
from revisit.engine.freed_memory import keep_freed_memory
from revisit.engine.launch import log_processes
from revisit.engine.machines_alike import check_machines
from revisit.engine.merging import Stated, merged_config, read_stated
from revisit.engine.precision import check_precision
from revisit.engine.run_copies import copies_kept, prepare_copies
from revisit.engine.run_lock import has_owner, run_lock
from revisit.engine.run_log import log_before_the_log, open_log
from revisit.engine.same_experiment import check_same_network, config_text, may_be_the_same, unused_overrides
from revisit.errors import UserError, enough_memory, expect, is_no_defect, translated
from revisit.files import make_folder, write_whole
from revisit.keys import Facts, architecture_of, assign, check_values, resolve_auto_values
from revisit.modeling.distributed import raised_by_all
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.plugins import import_modules

from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.env import seed_all_rng

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """The resolved config, and the lines to log once the log is open."""

    cfg: CfgNode
    seed: int  # as it is stated; negative: drawn
    facts: Facts  # what it was resolved by
    network: Trained  # that is evaluated; UNTRAINED of a training
    log: list[logging.LogRecord]


def plan(args: argparse.Namespace, num_processes: int) -> Plan:
    """Plan what a command line asks for, for so many processes over all machines. OUTPUT_DIR is made, nothing written.

    Raises:
        UserError: whatever is wrong with it.
    """
    expect(
        args.config_file or args.eval_only,
        "no recipe is given: expected --config-file FILE, such as own_images/pretrain.yaml (MODEL_ZOO.md)",
    )
    with log_before_the_log() as log:
        stated = read_stated(args.config_file, args.opts)
        cfg, network = _merged(stated, resume=args.resume, trained=args.eval_only)
        if not (args.eval_only or args.dry_run):
            prepare_copies(cfg, resume=args.resume, accepted=args.accept)
        facts = Facts(processes=num_processes, stated=stated.keys, for_here=not args.dry_run)
        seed = cfg.SEED
        facts = _resolve(cfg, facts, resume=args.resume)
        with translated("looking at the data sets"):
            unused_overrides(cfg, stated.typed)
            _share_classes(cfg, network)
            if not args.eval_only:
                facts = decide_by_images(cfg, facts, assume_missing=args.dry_run)
                check_config(cfg, num_processes, begins=not facts.done)  # again: now the images are known
                check_start(cfg, stated.typed, begins=not facts.done)
                if cfg.SOLVER.MAX_ITER:
                    check_schedule(cfg, facts.images, num_processes)
            check_evaluation(cfg, eval_only=args.eval_only)
            inspect_evaluation(cfg, facts, assume_missing=args.dry_run)
    make_folder(Path(cfg.OUTPUT_DIR), "OUTPUT_DIR")
    return Plan(cfg, seed, facts, network, log)


def _share_classes(cfg: CfgNode, network: Trained) -> None:
    follow_class_names(cfg, network)
    if network.weights and num_classes(cfg) and not (network.classes or cfg.DATASETS.TRAIN):
        logger.warning(f"{network.weights} names no classes: those of DATASETS.TEST go by their order")


@contextmanager
def start_run(planned: Plan, args: argparse.Namespace) -> Iterator[CfgNode]:
    """In every process of a run: open the log, resolve what all processes decide together, freeze the config, write
    config.yaml and environment.json, seed the random generators. A training locks its folder until it ends."""
    cfg = planned.cfg
    folder = Path(planned.cfg.OUTPUT_DIR)
    trains = not args.eval_only
    owns_folder = trains and comm.is_main_process()
    with ExitStack() as held, enough_memory():
        with raised_by_all():
            if owns_folder:
                held.enter_context(run_lock(folder))
            import_modules(cfg.IMPORTS)
            for name in (*cfg.DATASETS.TRAIN, *evaluation_sets(cfg)):
                register(name)
            follow_class_names(cfg, planned.network)
        check_machines(cfg, folder, seed=planned.seed, trains=trains)
        with raised_by_all():
            if owns_folder:
                _prepare_folder(cfg, folder, args.resume)
        _open_log(cfg, args)
        for record in planned.log if comm.is_main_process() else ():  # which was logged before there was a log
            logging.getLogger(record.name).handle(record)
        _resolve_together(cfg, planned.facts)
        cfg.freeze()
        if comm.is_main_process():
            _record(cfg, folder, trains=trains, again=args.eval_only or args.resume)
        keep_freed_memory(cfg.MODEL.DEVICE)
        torch.backends.cudnn.benchmark = cfg.CUDNN_BENCHMARK and trains
        seed_all_rng(cfg.SEED + comm.get_rank())
        logger.info(
            ", ".join(filter(None, (f"SEED {cfg.SEED}", f"{cfg.SOLVER.MAX_ITER} iterations", str(pixel_format(cfg)))))
        )
        if owns_folder:
            held.enter_context(copies_kept(cfg, resume=args.resume))
        yield cfg


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
        resume: what the run in OUTPUT_DIR has decided is kept.
        trained: of a network that is only used: what neither file nor pairs say is as in its checkpoint.
        for_here: refuse what this machine cannot run.
        seed: what a negative SEED becomes; negative: drawn.

    Raises:
        UserError: an impossible recipe; with ``trained`` one of another network than the checkpoint's.
    """
    stated = read_stated(config_file, opts)
    cfg, _ = _merged(stated, resume=resume, trained=trained)
    facts = Facts(processes=num_processes, stated=stated.keys, for_here=for_here, seed=seed)
    _resolve(cfg, facts, resume=resume)
    return cfg


def _resolve(cfg: CfgNode, facts: Facts, *, resume: bool) -> Facts:
    """Resolve and check a config, without the images of DATASETS.TRAIN. Returns the facts with those of the run that
    ``resume`` continues."""
    with translated("checking the config"):
        if resume:
            folder = Path(cfg.OUTPUT_DIR)
            before, done, images = earlier_part(folder)
            before = before if done or may_be_the_same(cfg, before) else {}
            facts = replace(facts, before=before, done=done, images_before=images)
        check_values(cfg)  # what decides itself takes none that has no sense
        resolve_auto_values(cfg, facts)
        check_config(cfg, facts.processes, begins=not facts.done)
        if facts.for_here:
            check_precision(cfg)
    return facts


def _merged(stated: Stated, *, resume: bool, trained: bool) -> tuple[CfgNode, Trained]:
    """The config that is stated, of a ``trained`` network with what its checkpoint says where nothing is."""
    cfg = merged_config(stated)
    if not trained:
        return cfg, UNTRAINED
    if resume:
        _check_resumed(cfg, stated.typed)
    network = trained_network(cfg, resume=resume)
    if not stated.file and not network.config:
        problem = f"{network.weights} holds no config" if network.weights else "no weights are given"
        raise UserError(f"{problem}: expected a run's checkpoint, such as model_final.pth, or --config-file FILE")
    kind = network.config.get("MODEL.META_ARCHITECTURE", "")
    if method_of(cfg) and kind != cfg.MODEL.META_ARCHITECTURE:
        return cfg, network  # a pretraining judges the backbone of any checkpoint, whose flags are compared
    cfg = merged_config(stated, network)
    assign(cfg, "MODEL.META_ARCHITECTURE", architecture_of(cfg))
    check_same_network(cfg, network)
    return cfg, network


def _check_resumed(cfg: CfgNode, typed: Collection[str]) -> None:
    """Raise UserError where OUTPUT_DIR has no checkpoint, of which the last is to be judged; warn of other weights."""
    last = f"--resume stands for the last checkpoint in OUTPUT_DIR {cfg.OUTPUT_DIR}"
    expect(checkpoints_of_run(Path(cfg.OUTPUT_DIR)), f"{last}, which has none: give a run's folder, or --weights FILE")
    if "MODEL.WEIGHTS" in typed:
        logger.warning(f"{last}: MODEL.WEIGHTS {cfg.MODEL.WEIGHTS} has no effect")


def _resolve_together(cfg: CfgNode, facts: Facts) -> None:
    """Resolve what takes all processes, such as a length in time, and check a schedule that follows from it."""
    is_measured = facts.images is not None and cfg.SOLVER.MAX_ITER <= 0
    resolve_auto_values(cfg, replace(facts, launched=True))
    if is_measured:
        check_schedule(cfg, facts.images, facts.processes)


def _open_log(cfg: CfgNode, args: argparse.Namespace) -> None:
    open_log(cfg.OUTPUT_DIR)
    # Detectron2's training loop logs every exception with its traceback; what is no defect gets one line.
    logging.getLogger("detectron2.engine.train_loop").addFilter(
        lambda record: not (record.exc_info and is_no_defect(record.exc_info[1]))
    )
    settings = Path(cfg.OUTPUT_DIR) / "config.yaml"
    typed = " ".join(map(in_shell, args.opts))
    logger.info(f"{args.config_file or 'no config file'} {typed}: all settings are in {settings}")
    log_processes(cfg.MODEL.DEVICE)


def _record(cfg: CfgNode, folder: Path, *, trains: bool, again: bool) -> None:
    """What a run was trained with stays on record when it is evaluated, and until it resumes (trainer.py)."""
    settings = folder / "config.yaml"
    is_of_run = again and bool(checkpoints_of_run(folder)) if trains else has_run(folder)
    if not (is_of_run and settings.is_file()):
        write_whole(settings, config_text(cfg))
    record_environment(folder, again=again)


def has_run(folder: Path) -> bool:
    """Whether a training has written there, or is about to."""
    return holds_run(folder) or has_owner(folder)


def _prepare_folder(cfg: CfgNode, folder: Path, resume: bool) -> None:
    """Before a training writes to OUTPUT_DIR: a resumed run tidies it up, a new one makes room."""
    tidy_up(folder)
    starts_there = bool(cfg.MODEL.WEIGHTS) and Path(cfg.MODEL.WEIGHTS).resolve().parent == folder.resolve()
    if resume and (starts_there or checkpoints_of_run(folder)):
        return
    expect(
        not (starts_there and holds_run(folder)),
        f"MODEL.WEIGHTS {cfg.MODEL.WEIGHTS} is of an earlier run in the same OUTPUT_DIR: continue that one by "
        "--resume, or start a new one in another OUTPUT_DIR",
    )
    if aside := set_aside_earlier_run(folder):
        print(f"{folder} held an earlier run: its checkpoints and metrics are in {aside} now", flush=True)
    elif resume and (aside := last_set_aside(folder)):
        logger.warning(f"{folder} has no checkpoint, so the run starts at the beginning: an earlier one is in {aside}")
