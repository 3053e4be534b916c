"""How fast a pretraining is, and how long it waits for its data."""

import logging
import time

from revisit.engine.hooks import STEP_HOOK_REGISTRY
from revisit.modeling.meta_arch.pretraining import method_of, metrics_period
from revisit.threads import cores

from detectron2.engine import DefaultTrainer, HookBase

logger = logging.getLogger(__name__)


class Throughput(HookBase):
    """Log ``images_per_second`` of all processes and ``data_wait_share`` of the step, over ``metrics_period`` steps,
    after the last of which the host has waited for the device; hint when the share is high."""

    HIGH_SHARE = 0.3
    WINDOW = 50  # iterations

    def __init__(self, global_batch: int, num_workers: int, metrics_period: int = 1):
        self._global_batch = global_batch
        self._num_workers = num_workers
        self._period = metrics_period
        self._hinted = False
        self._seconds: list[float] = []

    def before_step(self) -> None:
        self._start = time.perf_counter()

    def after_step(self) -> None:
        self._seconds.append(time.perf_counter() - self._start)
        if (self.trainer.iter + 1) % self._period:
            return
        seconds = sum(self._seconds)
        steps = len(self._seconds)
        self._seconds = []
        storage = self.trainer.storage
        storage.put_scalar("images_per_second", steps * self._global_batch / seconds)
        waited = steps * storage.history("data_time").avg(steps)
        storage.put_scalar("data_wait_share", min(1.0, waited / seconds))
        share = storage.history("data_wait_share").median(max(1, self.WINDOW // self._period))
        done = self.trainer.iter + 1 - self.trainer.start_iter
        if not self._hinted and done >= self.WINDOW and share >= self.HIGH_SHARE:
            self._hinted = True
            logger.warning(
                f"the step waits {share:.0%} of its time for data: raise DATALOADER.NUM_WORKERS (now "
                f"{self._num_workers} per process; this process may use {cores()} cores), or take a faster disk"
            )


@STEP_HOOK_REGISTRY.register()
def throughput(trainer: DefaultTrainer) -> Throughput | None:
    """Of a pretraining."""
    cfg = trainer.cfg
    if not method_of(cfg):
        return None
    return Throughput(cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_WORKERS, metrics_period(cfg))
