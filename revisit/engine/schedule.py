"""From epochs to iterations, with the real size of the data set."""

from revisit.errors import UserError

from detectron2.config import CfgNode


def epochs_to_iterations(epochs: int, num_images: int, global_batch: int) -> int:
    """Iterations of ``epochs``, each of num_images // global_batch, as the sampler makes them."""
    return epochs * (num_images // global_batch)


def resolve_schedule(cfg: CfgNode, num_images: int) -> None:
    """Turn the lengths given in epochs into iterations, in place; a positive length in iterations wins.

    Raises:
        UserError: fewer images than one batch, or no length of training at all.
    """
    batch = cfg.SOLVER.IMS_PER_BATCH
    if num_images < batch:
        raise UserError(
            f"{', '.join(cfg.DATASETS.TRAIN)} has {num_images} images, fewer than one batch of {batch}: "
            "lower SOLVER.IMS_PER_BATCH (and SOLVER.BASE_LR with it)"
        )
    for node, iterations, epochs in (
        (cfg.SOLVER, "MAX_ITER", "EPOCHS"),
        (cfg.SOLVER, "CHECKPOINT_PERIOD", "CHECKPOINT_EPOCHS"),
        (cfg.TEST, "EVAL_PERIOD", "EVAL_EPOCHS"),
    ):
        if node[iterations] <= 0 and node[epochs] > 0:
            node[iterations] = max(1, epochs_to_iterations(node[epochs], num_images, batch))
    if cfg.SOLVER.STEP_EPOCHS:
        cfg.SOLVER.STEPS = tuple(epochs_to_iterations(step, num_images, batch) for step in cfg.SOLVER.STEP_EPOCHS)
    if cfg.SOLVER.MAX_ITER <= 0:
        raise UserError("no length of training: set SOLVER.EPOCHS or SOLVER.MAX_ITER")
    if cfg.SOLVER.CHECKPOINT_PERIOD <= 0:
        cfg.SOLVER.CHECKPOINT_PERIOD = cfg.SOLVER.MAX_ITER
