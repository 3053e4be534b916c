"""Where a run's metrics go: the console, metrics.json, TensorBoard, and what WRITERS adds."""

import logging
from collections.abc import Callable, Sequence

from revisit.keys import declare, list_of, registered

from detectron2.engine import HookBase
from detectron2.utils.events import CommonMetricPrinter, EventWriter
from fvcore.common.registry import Registry

logger = logging.getLogger(__name__)

WRITER_REGISTRY = Registry("WRITER")
WRITER_REGISTRY.__doc__ = """
Writers by the names that WRITERS takes. Each is called with the frozen config when a training starts, on the main
process alone, and returns an ``EventWriter``. The training ends by whatever its ``write`` raises, but for OSError.
"""

declare(
    "WRITERS",
    (),
    "Writers of metrics in addition to the console, metrics.json and TensorBoard: wandb, mlflow (docs/training.md), or "
    "your own (docs/extending.md).",
    list_of(registered(WRITER_REGISTRY, "WRITER_REGISTRY")),
    may_change=True,
)


class Writers(HookBase):
    """Writes metrics every PERIOD iterations and after the last one; closes the writers when the training ends.

    A line of progress also follows the first steps. The scores of an evaluation are written at once: Detectron2's
    PeriodicWriter would lose those that another evaluation follows within its period. If the disk is full, metrics are
    dropped and one warning is logged. Must be the last hook.
    """

    PERIOD = 20  # iterations
    EARLY = (1, 2, 5, 10)  # steps

    def __init__(self, writers: Sequence[EventWriter]):
        self._writers = writers
        self._printers = [writer for writer in writers if isinstance(writer, CommonMetricPrinter)]
        self._files = [writer for writer in writers if writer not in self._printers]
        self._warned = False

    def before_train(self) -> None:
        self._write(self._files)

    def after_step(self) -> None:
        trainer = self.trainer
        if (trainer.iter + 1) % self.PERIOD == 0 or trainer.is_last_step:
            self._write(self._writers)
            return
        if trainer.iter + 1 - trainer.start_iter in self.EARLY:
            self._write(self._printers)
        if trainer.is_evaluated:
            self._write(self._files)

    def after_train(self) -> None:
        self._write(self._writers)
        for writer in self._writers:
            self._try(writer.close)

    def _write(self, writers: Sequence[EventWriter]) -> None:
        for writer in writers:
            self._try(writer.write)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            if not self._warned:
                logger.error(f"metrics cannot be written ({error}): some of them will be missing. The run continues")
            self._warned = True
