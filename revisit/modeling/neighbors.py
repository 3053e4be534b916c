"""When the neighbour loss joins: L = L_inst + lambda * L_nn (docs/method.md: Losses)."""

import logging

from revisit.errors import expect
from revisit.modeling.distributed import unwrap

from detectron2.engine import HookBase

logger = logging.getLogger(__name__)


class NeighborLossSchedule(HookBase):
    """L_nn weighs 0 for the first ``warmup_iterations``, then lambda; by the iteration, so a resumed run agrees."""

    def __init__(self, weight: float, warmup_iterations: int):
        self._weight = weight
        self._warmup = warmup_iterations

    def before_step(self) -> None:
        weight = self._weight if self.trainer.iter >= self._warmup else 0.0
        unwrap(self.trainer.model).neighbor_weight = weight
        if self.trainer.iter == self._warmup > 0:
            logger.info(f"L_nn joins the loss from iteration {self._warmup} on, with lambda {self._weight}")


def check_wait(key: str, epochs: int, iterations_per_epoch: int, last: int, never: str = "L_nn never joins") -> None:
    """Raise UserError where what ``key`` lets wait would wait until the run's end, iteration ``last``."""
    wait = epochs * iterations_per_epoch
    expect(
        wait < last,
        f"{key} {epochs}, {wait} iterations, do not end before the run does, after {last}, so {never}: expected fewer "
        "of them, such as 0, or a longer run",
    )
