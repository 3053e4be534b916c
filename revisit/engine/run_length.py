"""How long a run is, and what recurs in it: the batch, epochs in iterations, checkpoints and evaluations on the way."""

import logging
from functools import partial

from revisit.errors import UserError, expect
from revisit.evaluation.judged import nothing_to_evaluate
from revisit.keys import (
    COUNT,
    Decision,
    Facts,
    alternatives,
    counted,
    declare,
    integer,
    of_detectron2,
    value_of,
    with_values,
)
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode


def fit_batch(cfg: CfgNode, facts: Facts) -> Decision | None:
    """All images of a pretraining, where they are fewer than a batch and its method can do with them."""
    batch = cfg.SOLVER.IMS_PER_BATCH
    method = method_of(cfg)
    if method is None or facts.images is None:
        return None
    processes = facts.processes or 1
    share = facts.images // processes
    fitting = share * processes
    if not 1 < fitting < batch or share % cfg.SOLVER.ACCUMULATION_STEPS:
        return None
    smaller = with_values(cfg, {"SOLVER.IMS_PER_BATCH": fitting})
    try:
        method.check(counted(smaller, facts.images), share)
    except UserError:
        return None  # iterations_per_epoch says what to change
    return Decision(fitting, f"{facts.images} images are fewer than a batch of {batch}", level=logging.WARNING)


def iterations_per_epoch(cfg: CfgNode, images: int) -> float:
    """Batches in which so many images are seen once. Raises UserError where they fill none."""
    batch = cfg.SOLVER.IMS_PER_BATCH
    expect(
        images >= batch,
        f"{', '.join(cfg.DATASETS.TRAIN)} has {images} images, fewer than one batch of {batch}: lower "
        "SOLVER.IMS_PER_BATCH (and SOLVER.BASE_LR with it)",
    )
    return _batches(cfg, images, batch)


def _batches(cfg: CfgNode, images: int, batch: int) -> float:
    """Whole ones in a pretraining, whose loader drops the rest of an epoch; that of a finetuning drops none."""
    return images // batch if method_of(cfg) else images / batch


def in_iterations(cfg: CfgNode, facts: Facts, epochs: int) -> Decision:
    """A number of epochs as iterations."""
    per_epoch = iterations_per_epoch(cfg, facts.images)
    return Decision(round(epochs * per_epoch), f"{epochs} epochs of {round(per_epoch, 3)} iterations")


def length(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.EPOCHS in iterations, unless another key says how long the run is."""
    if facts.images is None:
        return None
    iterations_per_epoch(cfg, facts.images)
    if cfg.SOLVER.MAX_ITER <= 0 and cfg.SOLVER.EPOCHS > 0:
        return _rest_of_run(cfg, facts) or in_iterations(cfg, facts, cfg.SOLVER.EPOCHS)
    expect(
        any(value_of(cfg, key.name) for key in alternatives()["length"]),
        "no length of training: set SOLVER.EPOCHS or SOLVER.MAX_ITER",
    )
    return None


def _rest_of_run(cfg: CfgNode, facts: Facts) -> Decision | None:
    """Of a run that resumes, or has resumed, with another batch or other images: what it has done, and its other
    epochs."""
    batch, length, epochs = (facts.before.get(f"SOLVER.{key}", 0) for key in ("IMS_PER_BATCH", "MAX_ITER", "EPOCHS"))
    if not (facts.done and batch and epochs):
        return None
    before = _batches(cfg, facts.images_before or facts.images, batch)
    now = iterations_per_epoch(cfg, facts.images)
    if before == 0 or (before == now and length == round(epochs * now)):
        return None
    rest = max(0.0, (length - facts.done) / before + cfg.SOLVER.EPOCHS - epochs)
    return Decision(
        facts.done + round(rest * now),
        f"{facts.done} iterations are done, {rest:.4g} of {cfg.SOLVER.EPOCHS} epochs follow, of {round(now, 3)} each",
    )


def checkpoint_period(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SOLVER.CHECKPOINT_EPOCHS in iterations, or the whole run."""
    solver = cfg.SOLVER
    if facts.images is None or solver.CHECKPOINT_PERIOD > 0:
        return None
    if solver.CHECKPOINT_EPOCHS > 0:
        return in_iterations(cfg, facts, solver.CHECKPOINT_EPOCHS)
    return Decision(solver.MAX_ITER, "one checkpoint, at the end") if solver.MAX_ITER > 0 else None


def evaluation_epochs(cfg: CfgNode, facts: Facts) -> Decision | None:
    """0 where there is nothing to evaluate."""
    lacking = nothing_to_evaluate(cfg)
    if facts.images is None or not lacking or cfg.TEST.EVAL_EPOCHS <= 0:
        return None
    return Decision(0, f"nothing is evaluated: {lacking}", level=logging.WARNING)


def evaluation_period(cfg: CfgNode, facts: Facts) -> Decision | None:
    """TEST.EVAL_EPOCHS, or TEST.EVAL_PERIOD -1, in iterations; 0 where there is nothing to evaluate."""
    period = cfg.TEST.EVAL_PERIOD
    length = cfg.SOLVER.MAX_ITER
    if facts.images is None:
        return None
    if period != 0 and (lacking := nothing_to_evaluate(cfg)):
        return Decision(0, f"nothing is evaluated: {lacking}", level=logging.WARNING)
    if period < 0 and length > 0:
        return Decision(-(-length // 4), f"a quarter of {length} iterations")
    return in_iterations(cfg, facts, cfg.TEST.EVAL_EPOCHS) if period == 0 < cfg.TEST.EVAL_EPOCHS else None


LENGTH_OF_RUN = ("SOLVER.MAX_ITER", "SOLVER.MINUTES")  # after which what goes by it is resolved
of_detectron2("SOLVER.IMS_PER_BATCH", rule=COUNT, resolve=fit_batch)
of_detectron2("SOLVER.MAX_ITER", resolve=length, after="SOLVER.IMS_PER_BATCH")
of_detectron2("SOLVER.CHECKPOINT_PERIOD", resolve=checkpoint_period, after=LENGTH_OF_RUN)
of_detectron2(
    "TEST.EVAL_PERIOD",
    resolve=evaluation_period,
    after=("TEST.EVAL_EPOCHS", *LENGTH_OF_RUN),
)
declare(
    "SOLVER.EPOCHS",
    0,
    "Length of the run: passes over DATASETS.TRAIN, turned into iterations by its real size.",
    integer(unit="epochs"),
    paper=200,
    may_change=True,
    decides="length",
    off=0,
)
epochs = partial(declare, default=0, rule=integer(unit="epochs"), may_change=True, off=0)
nearer = "the one that is stated nearer to the command counts, of both in one place the iterations."
kept = f"Epochs between checkpoints. SOLVER.CHECKPOINT_PERIOD has iterations: {nearer}"
epochs("SOLVER.CHECKPOINT_EPOCHS", meaning=kept, decides="checkpoints")
judged = f"Epochs between evaluations. TEST.EVAL_PERIOD has iterations, -1 a quarter of the run: {nearer}"
epochs(
    "TEST.EVAL_EPOCHS",
    meaning=judged,
    decides="evaluations",
    resolve=evaluation_epochs,
    after=("KNN_EVAL.BANK", "MONITOR.IMAGES"),
)


def evaluates_on_the_way(cfg: CfgNode) -> bool:
    """Whether a training evaluates before its end."""
    return cfg.TEST.EVAL_PERIOD != 0 or cfg.TEST.EVAL_EPOCHS > 0
