"""An alarm for embeddings that have all become the same."""

import logging
import math

from revisit.engine.hooks import STEP_HOOK_REGISTRY
from revisit.modeling.meta_arch.pretraining import method_of, metrics_period

from detectron2.engine import DefaultTrainer, HookBase

logger = logging.getLogger(__name__)


class CollapseAlarm(HookBase):
    """Warn, once, when the embeddings of all images have become nearly the same: ``embedding_std`` below LIMIT."""

    LIMIT = 0.02
    WINDOW = 100  # iterations

    def __init__(self, metrics_period: int = 1) -> None:
        self._window = math.ceil(self.WINDOW / metrics_period)
        self._warned = False

    def after_step(self) -> None:
        done = self.trainer.iter + 1 - self.trainer.start_iter
        if self._warned or done < self.WINDOW or "embedding_std" not in self.trainer.storage.histories():
            return
        spread = self.trainer.storage.history("embedding_std").median(self._window)
        if spread < self.LIMIT:
            self._warned = True
            logger.warning(
                f"collapse: embedding_std {spread:.3f} over {self.WINDOW} iterations: all images look alike. Try a "
                "lower SOLVER.BASE_LR or a longer warm-up (docs/training.md: Reading a run)"
            )


@STEP_HOOK_REGISTRY.register()
def collapse_alarm(trainer: DefaultTrainer) -> CollapseAlarm | None:
    """Of a pretraining."""
    return CollapseAlarm(metrics_period(trainer.cfg)) if method_of(trainer.cfg) else None
