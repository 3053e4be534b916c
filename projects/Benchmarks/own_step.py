"""The project's training step, without a trainer around it, for benchmarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

from projects.Benchmarks.measuring import now
from revisit.config import metrics_period
from revisit.engine.optimizer import build_optimizer
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.train_step import TrainStep

from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage


class OwnStep:
    """Call it to run a step, hooks for momentum encoder and queue included, on the next of the batches."""

    def __init__(self, cfg: CfgNode, batches: Iterable[dict]):
        self.model = PretrainTrainer.build_model(cfg).train()
        self.model.neighbor_weight = cfg.KNN_MOCO.WEIGHT
        self.optimizer = build_optimizer(cfg, self.model)
        self._step = TrainStep(
            self.model,
            batches,
            self.optimizer,
            precision=getattr(torch, cfg.SOLVER.AMP.DTYPE) if cfg.SOLVER.AMP.ENABLED else None,
            metrics_period=metrics_period(cfg),
        )
        self._storage = EventStorage(0)

    def __call__(self) -> None:
        with self._storage:
            self._step.run_step()
        self.model.update_momentum_encoder()
        self.model.enqueue_pending_keys()
        self._storage.step()

    @property
    def last_loss(self) -> float:
        """The total loss of the last step whose metrics were read."""
        return self._storage.history("total_loss").latest()

    def profile(self, steps: int) -> dict[str, float]:
        """Percent of the time of ``steps`` steps by part. Waits for the GPU after each part, as no training does."""
        seconds: dict[str, float] = defaultdict(float)
        parts = {
            "anchors, momentum encoder": (self.model, "start_keys"),
            "positives, forward": (self.model, "encode_positives"),
            "monitors": (self.model, "log_monitors"),
            "losses, forward": (self.model, "losses"),
            "optimizer": (self._step, "_update"),
            "momentum update": (self.model, "update_momentum_encoder"),
            "queue": (self.model, "enqueue_pending_keys"),
        }
        try:
            for name, (owner, method) in parts.items():
                setattr(owner, method, _timed(getattr(owner, method), name, seconds))
            start = now()
            for _ in range(steps):
                self()
            whole = now() - start
        finally:
            for owner, method in parts.values():
                vars(owner).pop(method, None)  # the class's own takes its place
        seconds["backward and the rest"] = whole - sum(seconds.values())
        return {name: 100 * value / whole for name, value in seconds.items()}


def _timed(function: Callable, name: str, seconds: dict[str, float]) -> Callable:
    def call(*args: object, **kwargs: object) -> object:
        start = now()
        result = function(*args, **kwargs)
        seconds[name] += now() - start
        return result

    return call
