"""One optimiser step: the forward under autocast, the batch in parts, one update."""

from __future__ import annotations

import contextlib
import time

import torch
from torch import Tensor, nn

from detectron2.engine.train_loop import SimpleTrainer
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage


class TrainStep(SimpleTrainer):
    """Detectron2's SimpleTrainer with mixed precision and gradient accumulation, on the CPU as on a GPU.

    The model returns a dict of losses.

    Args:
        precision: dtype of autocast, or None for float32 throughout. float16 scales the loss.
        accumulation_steps: parts that every process's batch is run in. Gradient and logged losses are the means of
            the parts', so those of the whole batch where a loss is a mean over images (pretraining); a mean over
            labelled pixels weighs each part alike, as it does each process. BN sees one part at a time.
    """

    def __init__(self, *args: object, precision: torch.dtype | None = None, accumulation_steps: int = 1):
        super().__init__(*args)
        self._precision = precision
        self._accumulation_steps = accumulation_steps
        self._device = next(self.model.parameters()).device.type
        self.grad_scaler = torch.amp.GradScaler(self._device, enabled=precision == torch.float16)

    def run_step(self) -> None:
        start = time.perf_counter()
        batch = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        self.optimizer.zero_grad()
        parts = split_batch(batch, self._accumulation_steps)
        means: dict[str, Tensor] = {}
        for part in parts:
            with self._synchronised(part is parts[-1]):
                losses = self._losses(part)
                self.grad_scaler.scale(sum(losses.values()) / len(parts)).backward()
            for name, loss in losses.items():
                means[name] = means.get(name, 0) + loss.detach() / len(parts)
        self._write_metrics(means, data_time)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        if self.grad_scaler.is_enabled():
            get_event_storage().put_scalar("grad_scale", self.grad_scaler.get_scale())

    def _losses(self, part: dict | list) -> dict[str, Tensor]:
        with torch.autocast(self._device, self._precision, enabled=self._precision is not None):
            return self.model(part)

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager:
        """DDP averages gradients over processes once, behind the last part."""
        ddp = isinstance(self.model, nn.parallel.DistributedDataParallel)
        return self.model.no_sync() if ddp and not last else contextlib.nullcontext()

    def _write_metrics(self, loss_dict: dict[str, Tensor], *args: object, **kwargs: object) -> None:
        super()._write_metrics(loss_dict, *args, **kwargs)
        if len(loss_dict) == 1 and comm.is_main_process():  # Detectron2 logs a lone loss as total_loss alone
            storage = get_event_storage()
            storage.put_scalar(*loss_dict, storage.history("total_loss").latest())

    def state_dict(self) -> dict:
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        if scaler := state_dict.get("grad_scaler"):  # empty where the run was not in float16 so far
            self.grad_scaler.load_state_dict(scaler)


def split_batch(batch: dict | list, parts: int) -> list:
    """A batch in equal parts, in order: Detectron2's list of dicts, or the tensors of a dict (a ViewBatch)."""
    if parts == 1:
        return [batch]
    if isinstance(batch, list):
        size = len(batch) // parts
        return [batch[n * size : (n + 1) * size] for n in range(parts)]
    chunks = {name: value.chunk(parts) for name, value in batch.items() if isinstance(value, Tensor)}
    return [{name: chunk[n] for name, chunk in chunks.items()} for n in range(parts)]
