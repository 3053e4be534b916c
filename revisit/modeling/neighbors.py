"""The paper's idea for any method with a queue: a positive is also drawn to its nearest neighbours.

L = L_inst + lambda * L_nn (docs/method.md: Losses). The formula of L_nn is the method's. This file mines neighbours,
schedules the loss and measures how many neighbours have the class of their image.
"""

import logging
from functools import partial

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.keys import SWITCH, declare, integer, number, one_of
from revisit.modeling.distributed import unwrap
from revisit.modeling.losses.queue_scores import MAX_SCORES, nearest_rows
from revisit.modeling.queue import AlignedQueue

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.utils.events import get_event_storage

logger = logging.getLogger(__name__)

neighbors = partial(declare, read_by="MinesNeighbors")
neighbors("NEIGHBORS.WEIGHT", 0.0, "lambda, the weight of L_nn; 0: no neighbours.", number(0, 1e6), paper=0.4)
neighbors(
    "NEIGHBORS.NUM_NEIGHBORS",
    20,
    "k, neighbours of a positive. 0: one for each 200 training images, at least one, at most the paper's.",
    integer(),
    paper=20,
    by_images=lambda cfg, images: min(20, max(1, images // 200)),
)
neighbors("NEIGHBORS.WARMUP_EPOCHS", 5, "Epochs before L_nn joins; 20 in the authors' run of 800.", integer(), paper=5)
_MINING = one_of("before_head", "after_head")
neighbors("NEIGHBORS.MINING", "before_head", "In g-space, or in h-space.", _MINING, paper="before_head")
neighbors(
    "NEIGHBORS.ENQUEUE_FIRST",
    False,
    "Mine in the queues as this step's keys will leave them, instead of waiting WARMUP_EPOCHS (paper, Appendix B); the "
    "newest neighbours then carry stale scores, on purpose.",
    SWITCH,
)


class MinesNeighbors:
    """A method with L_nn. As a base class it stands before the one that has the ``queue``.

    The queue's ring ``features`` holds g-space, ``keys`` h-space. The hook NeighborLossSchedule sets
    ``neighbor_weight``: 0 while L_nn waits, then lambda.
    """

    max_scores = MAX_SCORES  # cosines in memory at once

    def __init__(self, cfg: CfgNode):
        options = cfg.NEIGHBORS
        self.mine_before_head = options.MINING == "before_head"  # before the queue is built, whose rings it decides
        super().__init__(cfg)
        self.neighbor_weight = options.WEIGHT
        self.num_neighbors = options.NUM_NEIGHBORS
        self.enqueue_first = options.ENQUEUE_FIRST

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        in_parts = cfg.NEIGHBORS.ENQUEUE_FIRST and cfg.SOLVER.ACCUMULATION_STEPS > 1
        expect(not in_parts, "NEIGHBORS.ENQUEUE_FIRST mines among all keys: expected SOLVER.ACCUMULATION_STEPS 1")

    @classmethod
    def warn(cls, cfg: CfgNode, num_images: int, share: int) -> None:
        super().warn(cfg, num_images, share)
        if cfg.NEIGHBORS.WEIGHT:
            wait = _iterations_to_wait(cfg, num_images // cfg.SOLVER.IMS_PER_BATCH)
            warn_of_late_start(
                f"NEIGHBORS.WARMUP_EPOCHS {cfg.NEIGHBORS.WARMUP_EPOCHS}", wait, cfg.SOLVER.MAX_ITER, "L_nn never joins"
            )

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        schedule = NeighborLossSchedule(cfg.NEIGHBORS.WEIGHT, _iterations_to_wait(cfg, iterations_per_epoch))
        return [*super().hooks(cfg, iterations_per_epoch), schedule]

    def mining_space(self, positives: Tensor, positives_g: Tensor) -> tuple[Tensor, str]:
        """The positives' rows to mine neighbours for, before the head or after it, and the name of the ring."""
        return (positives_g, "features") if self.mine_before_head else (positives, "keys")

    def mined_ring(self, name: str, queue: AlignedQueue | None = None) -> Tensor:
        """The ring (K, W) as it is before this step or, with ``enqueue_first``, as its keys will leave it: the newest
        neighbours then point at the rows that they will replace."""
        if self.enqueue_first:
            return self.queue.after_enqueue(name, self.pending_keys[-1][name])
        return getattr(queue or self.queue, name)

    @torch.no_grad()
    def purity(self, positives: Tensor, positives_g: Tensor, labels: Tensor) -> Tensor:
        """Percent of the neighbours of rows (B, ...) that have the class of their image, given labels (B,). The random
        rows of the start have the class -1."""
        rows, ring = self.mining_space(positives, positives_g)
        nearest = nearest_rows(rows, getattr(self.queue, ring), self.num_neighbors, self.max_scores)
        return 100 * (self.queue.labels[nearest] == labels[:, None]).float().mean()

    def weighted(self, loss_nn: Tensor, *, is_logged: bool = True) -> Tensor:
        """lambda * L_nn; L_nn itself is logged as ``loss_nn_raw``, but for one that has a name of its own."""
        if self.watched and is_logged:
            get_event_storage().put_scalar("loss_nn_raw", loss_nn.item())
        return self.neighbor_weight * loss_nn


class NeighborLossSchedule(HookBase):
    """The weight of L_nn is 0 for the first ``warmup_iterations``, then lambda. It depends on the iteration alone, so a
    resumed run agrees."""

    def __init__(self, weight: float, warmup_iterations: int):
        self._weight = weight
        self._warmup = warmup_iterations

    def before_step(self) -> None:
        weight = self._weight if self.trainer.iter >= self._warmup else 0.0
        unwrap(self.trainer.model).neighbor_weight = weight
        if self._weight and self.trainer.iter == self._warmup > 0:
            logger.info(f"L_nn joins the loss from iteration {self._warmup} on, with lambda {self._weight}")


def _iterations_to_wait(cfg: CfgNode, iterations_per_epoch: int) -> int:
    return 0 if cfg.NEIGHBORS.ENQUEUE_FIRST else cfg.NEIGHBORS.WARMUP_EPOCHS * iterations_per_epoch


def warn_of_late_start(setting: str, iterations: int, length: int, consequence: str) -> None:
    """Warn if the ``iterations`` that a ``setting`` waits for are no fewer than a run's ``length``."""
    if iterations >= length:
        logger.warning(f"{setting}: {iterations} iterations, and the run has {length}, so {consequence}")
