"""What a config alone can tell: what would be silently wrong is refused, what merely does less is noted."""

import logging
import os

from revisit.data.finetuning.pixel_mapper import check_input
from revisit.data.sources.inspection import Note
from revisit.engine.solver import evaluates_on_the_way, share_of_rate
from revisit.errors import UserError, expect
from revisit.evaluation.main_score import main_score
from revisit.files import is_url
from revisit.keys import PIXELWISE, check_values, resolve_by_images
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.modeling.sem_seg.pixel_heads import check_head

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY

MANY = 2**31 - 1  # images


def check_config(cfg: CfgNode, num_processes: int) -> None:
    """Check each value by its declaration, then what the values mean together in a run of so many processes.

    Raises:
        UserError: what would run and be wrong without a word.
    """
    check_values(cfg)
    META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)  # a KeyError that names it
    weights, batch, parts = cfg.MODEL.WEIGHTS, cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.ACCUMULATION_STEPS
    if weights and not is_url(weights) and not os.path.isfile(weights):
        raise UserError(f"MODEL.WEIGHTS {weights} not found: expected a file of weights")
    indivisible = f"SOLVER.IMS_PER_BATCH {batch} does not divide by {num_processes} processes"
    expect(batch % num_processes == 0, f"{indivisible}: change it or --num-gpus")
    share = batch // num_processes
    expect(share % parts == 0, f"SOLVER.ACCUMULATION_STEPS {parts} does not divide the {share} images of a process")
    if method := method_of(cfg):
        expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT {cfg.INPUT.FORMAT}: pretraining reads RGB")
        counted = cfg.clone()  # of as many images as there may be, until it is known how many there are
        resolve_by_images(counted, MANY)
        method.check(counted, share)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        check_input(cfg)
        check_head(cfg, num_processes)


def settle_evaluation(cfg: CfgNode, *, eval_only: bool) -> list[Note]:
    """Switch off, in place, the evaluations that have nothing to judge, and say so; UserError with ``eval_only``."""
    test, bank = cfg.DATASETS.TEST, cfg.KNN_EVAL.BANK
    judged = bool(test) and (not method_of(cfg) or bool(bank))  # by labels
    notes = []
    if not judged and method_of(cfg):
        cfg.KNN_EVAL.BANK = ""
    if not judged and not cfg.MONITOR.IMAGES:
        lacking = "DATASETS.TEST is empty" if not test else "KNN_EVAL.BANK names no images that vote"
        if eval_only:
            raise UserError(f"--eval-only, but {lacking}: expected data to evaluate")
        if evaluates_on_the_way(cfg) or bank or test:
            notes.append((logging.WARNING, f"nothing is evaluated: {lacking}"))
        cfg.TEST.EVAL_PERIOD = cfg.TEST.EVAL_EPOCHS = 0
    if cfg.TEST.KEEP_BEST and not (judged and main_score(cfg) and evaluates_on_the_way(cfg)):
        notes.append((logging.WARNING, "TEST.KEEP_BEST keeps nothing: no labels are evaluated before the end"))
        cfg.TEST.KEEP_BEST = False
    if cfg.TEST.PATIENCE and not cfg.TEST.KEEP_BEST:
        notes.append((logging.WARNING, "TEST.PATIENCE never ends this run: it goes by what TEST.KEEP_BEST keeps"))
    return notes


def check_schedule(cfg: CfgNode, num_images: int, num_processes: int = 1) -> list[Note]:
    """What a run whose schedule is resolved would never come to.

    Raises:
        UserError: it would learn nothing, or by a part of the rate without a word.
    """
    solver, method = cfg.SOLVER, method_of(cfg)
    notes = method.notes(cfg, num_images, solver.IMS_PER_BATCH // num_processes) if method else []
    length = solver.MAX_ITER - (method.iterations_before_learning(cfg) if method else 0)
    notes += _notes_of_steps(cfg, length) if solver.LR_SCHEDULER_NAME == "WarmupMultiStepLR" else []
    notes += _notes_of_warmup(cfg, length) if solver.LR_SCHEDULER_NAME != "PolynomialLR" else []
    return [(logging.WARNING, note) for note in notes]


def _notes_of_steps(cfg: CfgNode, length: int) -> list[str]:
    steps, warmup = cfg.SOLVER.STEPS, cfg.SOLVER.WARMUP_ITERS
    inside = [step for step in steps if step <= min(warmup, length - 1)]
    if inside and cfg.SOLVER.GAMMA < 1:
        highest = f"the learning rate would never pass {cfg.SOLVER.GAMMA ** len(inside):g} times SOLVER.BASE_LR"
        raise UserError(
            f"SOLVER.STEPS {inside} lie inside the warm-up of SOLVER.WARMUP_ITERS {warmup}, so {highest}: expected "
            f"a shorter warm-up, such as SOLVER.WARMUP_ITERS {inside[0] // 4}, or later steps"
        )
    late = [step for step in steps if step >= length]
    return [f"SOLVER.STEPS {late} come after the end of the run, at {length}, and do nothing"] if late else []


def _notes_of_warmup(cfg: CfgNode, length: int) -> list[str]:
    warmup, rate = cfg.SOLVER.WARMUP_ITERS, share_of_rate(cfg, length)
    if warmup >= length:
        first, last = rate(0), rate(length - 1)
        course = f"{'rises' if last > first else 'falls'} from {first:.2g} to {last:.2g} times SOLVER.BASE_LR"
        return [f"SOLVER.WARMUP_ITERS {warmup} is no shorter than the run of {length}: the learning rate {course}"]
    highest = rate(warmup)  # both schedules fall from there
    short = f"SOLVER.WARMUP_ITERS {warmup} of {length}: the learning rate never passes {highest:.2g} times BASE_LR"
    return [short] if highest < 0.75 else []


def check_hardware(cfg: CfgNode) -> None:
    """Check what this machine cannot run; a dry run may plan it for another one. Raises UserError."""
    amp = cfg.SOLVER.AMP
    if not amp.ENABLED or cfg.MODEL.DEVICE != "cpu":
        return
    if amp.DTYPE == "float16":
        raise UserError("SOLVER.AMP.DTYPE float16 needs a GPU: expected bfloat16 on the CPU")
    if "naiveSyncBN" in [cfg.MODEL.RESNETS.NORM, cfg.MODEL.SEM_SEG_HEAD.NORM]:
        raise UserError(
            "SyncBN over several processes on the CPU loses its variance in bfloat16: expected one process, or "
            "SOLVER.AMP.ENABLED False"
        )
    # torch 2.11's gradient of a bfloat16 convolution's weight is uninitialised for stride 2 over a map of 1 x 1.
    smallest = min([cfg.VIEWS.LARGE_SIZE] + [cfg.VIEWS.SMALL_SIZE] * cfg.VIEWS.NUM_SMALL)
    stride = 4 if cfg.MODEL.RESNETS.STEM_TYPE == "cifar" else 16  # px, of the map below the last
    if method_of(cfg) and smallest <= stride:
        raise UserError(
            f"views of {smallest} px end as a single place, where bfloat16 on the CPU gives wrong gradients: expected "
            f"views larger than {stride} px, or SOLVER.AMP.ENABLED False"
        )
