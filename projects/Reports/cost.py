"""What a training costs, in seconds of its processes and of the clock."""

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

from revisit.checkpoint.metrics_file import read_metrics
from revisit.engine.hooks import STEP_HOOK_REGISTRY

from detectron2.engine import DefaultTrainer, HookBase
from detectron2.utils import comm


class Cost(HookBase):
    """Log what the run has cost, s: ``cpu_seconds`` of all its processes, user and system time since they began, and
    ``wall_seconds`` since this was made. A resumed run continues from metrics.json.

    The evaluation after the last step is not counted if this precedes it. Of several processes of a training all are
    taken to cost what the main one does.
    """

    NAMES = ("cpu_seconds", "wall_seconds")

    def __init__(self, metrics: Path):
        self._metrics = metrics
        self._before = (0.0, 0.0)  # of earlier parts of the run, as NAMES
        self._began = time.time()

    def before_train(self) -> None:
        if self.trainer.start_iter and self._metrics.is_file():
            self._before = self._read(self.trainer.start_iter)

    def _read(self, iteration: int) -> tuple[float, ...]:
        """The last numbers of steps before this one."""
        series = read_metrics(self._metrics)
        of_names = ([value for n, value in series.get(name, ()) if n < iteration] for name in self.NAMES)
        return tuple(values[-1] if values else 0.0 for values in of_names)

    def after_step(self) -> None:
        used = (cpu_seconds() * comm.get_world_size(), time.time() - self._began)
        for name, before, now in zip(self.NAMES, self._before, used, strict=True):
            self.trainer.storage.put_scalar(name, before + now, smoothing_hint=False)


def cpu_seconds() -> float:
    """User and system time of this process and of all that it has started; on Linux also of its living workers."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(os.times()[:4])  # its own, and that of children that have ended
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


@STEP_HOOK_REGISTRY.register()
def cost(trainer: DefaultTrainer) -> Cost:
    """Of every training."""
    return Cost(trainer.folder / "metrics.json")
