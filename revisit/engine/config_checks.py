"""What a config alone can tell: what would be silently wrong is refused, what merely does less is noted."""

import logging
import os
from collections.abc import Collection

import numpy as np

from revisit.checkpoint.named_weights import expected_weights
from revisit.data.finetuning.pixel_mapper import pixel_mapper_of
from revisit.engine.schedules import schedule_reads, share_of_rate
from revisit.errors import UserError, expect
from revisit.evaluation.judged import nothing_to_evaluate
from revisit.files import is_url
from revisit.keys import DETECTORS, PIXELWISE, architecture_of, check_values, is_open
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.modeling.sem_seg.pixel_heads import check_head

from detectron2.config import CfgNode

OTHER_SIZE = 1.6  # times, from which a test is at another size than the training
MOST_LEFT_OUT = 0.3  # score, below which AP lacks much of a ranking

logger = logging.getLogger(__name__)


def check_config(cfg: CfgNode, num_processes: int, *, begins: bool = True) -> None:
    """Check each value by its declaration, then what the values mean together in a run of so many processes, which
    ``begins`` with MODEL.WEIGHTS or has a checkpoint.

    Raises:
        UserError: what would run and be wrong without a word.
    """
    check_values(cfg)
    method = method_of(cfg)
    batch = cfg.SOLVER.IMS_PER_BATCH
    parts = cfg.SOLVER.ACCUMULATION_STEPS
    if begins or (method and method.continues):  # else nothing reads them
        _check_weights(cfg.MODEL.WEIGHTS)
    expect(
        batch % num_processes == 0,
        f"SOLVER.IMS_PER_BATCH {batch} does not divide by {num_processes} processes: change it or --num-gpus",
    )
    share = batch // num_processes
    expect(share % parts == 0, f"SOLVER.ACCUMULATION_STEPS {parts} does not divide the {share} images of a process")
    if method:
        expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT {cfg.INPUT.FORMAT}: pretraining reads RGB")
        if not is_open(cfg):
            method.check(cfg, share)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        pixel_mapper_of(cfg).check(cfg)
        check_head(cfg, num_processes)


def _check_weights(weights: str) -> None:
    if weights and not is_url(weights) and not os.path.isfile(weights):
        problem = "is a folder" if os.path.isdir(weights) else "not found"
        raise UserError(f"MODEL.WEIGHTS {weights} {problem}: expected {expected_weights()}")


def check_evaluation(cfg: CfgNode, *, eval_only: bool) -> None:
    """Warn of evaluations that judge nothing.

    Raises:
        UserError: an evaluation is all that is asked for.
    """
    lacking = nothing_to_evaluate(cfg)
    expect(not (lacking and eval_only), f"--eval-only, but {lacking}: expected data to evaluate")
    if lacking and cfg.DATASETS.TEST:
        logger.warning(f"nothing is evaluated: {lacking}")
    if cfg.DATASETS.TEST and architecture_of(cfg) in DETECTORS:
        _check_scores(cfg)


def _check_scores(cfg: CfgNode) -> None:
    """Warn of a detector that is tested as it has not learned, or whose boxes are mostly left out."""
    # What INPUT.CROP.ENABLED enlarges are parts of images, tested are whole ones: their sizes are not alike.
    for side in () if cfg.INPUT.CROP.ENABLED else ("MIN_SIZE", "MAX_SIZE"):
        learned = np.atleast_1d(cfg.INPUT[f"{side}_TRAIN"])
        tested = cfg.INPUT[f"{side}_TEST"]
        if tested and not learned.min() / OTHER_SIZE <= tested <= learned.max() * OTHER_SIZE:
            logger.warning(
                f"INPUT.{side}_TEST is {tested} px and INPUT.{side}_TRAIN {learned.tolist()}: objects of another "
                "size than the detector has learned are found badly"
            )
    heads = "RETINANET" if architecture_of(cfg) == "RetinaNet" else "ROI_HEADS"
    threshold = cfg.MODEL[heads].SCORE_THRESH_TEST
    if threshold > MOST_LEFT_OUT:
        logger.warning(
            f"MODEL.{heads}.SCORE_THRESH_TEST {threshold:g} leaves out what scores less: AP counts all boxes of a "
            "ranking; expected 0.05 where a score is asked for"
        )


def check_start(cfg: CfgNode, typed: Collection[str], *, begins: bool = True) -> None:
    """Warn of weights on the command line that the rate of a recipe for random ones would spoil, where a run ``begins``
    with them, and of a batch that the rate does not follow."""
    if "SOLVER.IMS_PER_BATCH" in typed and "SOLVER.BASE_LR" not in typed and not cfg.SOLVER.REFERENCE_BATCH:
        logger.warning(
            f"SOLVER.BASE_LR stays {cfg.SOLVER.BASE_LR:g}, the recipe's for its own batch: with that as "
            f"SOLVER.REFERENCE_BATCH it follows SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH}"
        )
    method = method_of(cfg)
    rate = cfg.SOLVER.BASE_LR
    is_given = bool(cfg.MODEL.WEIGHTS) and "MODEL.WEIGHTS" in typed and "SOLVER.BASE_LR" not in typed
    if begins and method and is_given and not (method.continues or method.iterations_before_learning(cfg)):
        logger.warning(
            f"SOLVER.BASE_LR {rate:g} of this recipe is for random weights, and can spoil those of MODEL.WEIGHTS: "
            "own_images/continue.yaml keeps what they know (docs/choosing-a-start.md); here take a tenth, "
            f"SOLVER.BASE_LR {rate / 10:g}"
        )


def check_schedule(cfg: CfgNode, num_images: int, num_processes: int = 1) -> None:
    """Warn of what a run whose schedule is resolved would never come to.

    Raises:
        UserError: it would learn nothing, or by a part of the rate without a word.
    """
    solver, method = cfg.SOLVER, method_of(cfg)
    length = solver.MAX_ITER
    if method:
        method.warn(cfg, num_images, solver.IMS_PER_BATCH // num_processes)
        length -= method.iterations_before_learning(cfg)
    if schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.STEPS"):
        _check_steps(cfg, length)
    if schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.WARMUP_ITERS"):
        _check_warmup(cfg, length)


def _check_steps(cfg: CfgNode, length: int) -> None:
    steps = cfg.SOLVER.STEPS
    warmup = cfg.SOLVER.WARMUP_ITERS
    inside = [step for step in steps if step <= min(warmup, length - 1)]
    if inside and cfg.SOLVER.GAMMA < 1:
        raise UserError(
            f"SOLVER.STEPS {inside} lie inside the warm-up of SOLVER.WARMUP_ITERS {warmup}, so the learning rate "
            f"would never pass {cfg.SOLVER.GAMMA ** len(inside):g} times SOLVER.BASE_LR: expected a shorter "
            f"warm-up, such as SOLVER.WARMUP_ITERS {inside[0] // 4}, or later steps"
        )
    late = [step for step in steps if step >= length]
    if late:
        logger.warning(f"SOLVER.STEPS {late} come after the end of the run, at {length}, and do nothing")


def _check_warmup(cfg: CfgNode, length: int) -> None:
    warmup = cfg.SOLVER.WARMUP_ITERS
    rate = share_of_rate(cfg, length)
    if warmup >= length:
        first, last = rate(0), rate(length - 1)
        course = f"{'rises' if last > first else 'falls'} from {first:.2g} to {last:.2g} times SOLVER.BASE_LR"
        logger.warning(
            f"SOLVER.WARMUP_ITERS {warmup} is no shorter than the run of {length}: the learning rate {course}"
        )
        return
    highest = rate(warmup)  # both schedules fall from there
    if highest < 0.75:
        course = f"the learning rate never passes {highest:.2g} times BASE_LR"
        logger.warning(f"SOLVER.WARMUP_ITERS {warmup} of {length}: {course}")
