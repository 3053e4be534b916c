"""Images per second of training steps on views in memory: the project's against the textbook's."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import repeat
from unittest import mock

import torch
from torch import Tensor

from projects.Benchmarks.measuring import compare, measure, now, timer
from projects.Benchmarks.textbook_step import TextbookStep
from revisit.config import metrics_period
from revisit.engine.memory_estimate import meta_batch
from revisit.engine.optimizer import build_optimizer
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.train_step import TrainStep
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage


def measure_step(cfg: CfgNode, *, steps: int = 10, repeats: int) -> dict[str, object]:
    """Ratio of images per second, and where the project's time goes, in percent.

    Args:
        cfg: of a recipe of KNNMoCo; precision, memory format and compilation are its.
        steps: of one repeat.
    """
    require_neighbors(cfg)
    batch = random_views(cfg)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    normalised = {name: ((views - mean) / std).contiguous() for name, views in batch.items()}
    ours, textbook = OwnStep(cfg, repeat(batch)), TextbookStep(cfg)
    timers = {
        "ours": timer(lambda: [ours() for _ in range(steps)]),
        "textbook": timer(lambda: [textbook(normalised) for _ in range(steps)]),
    }
    return {
        **compare(measure(timers, repeats), "ours", "textbook", steps * cfg.SOLVER.IMS_PER_BATCH),
        **{f"percent: {part}": share for part, share in ours.profile(steps).items()},
    }


def require_neighbors(cfg: CfgNode) -> None:
    """Raises UserError for a config that is not of KNNMoCo, which the textbook's step is."""
    if cfg.MODEL.META_ARCHITECTURE != "KNNMoCo":
        raise UserError(f"MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE}: expected KNNMoCo")


def random_views(cfg: CfgNode) -> dict[str, Tensor]:
    """A batch of noise in the sizes and the memory layout of the loader's."""
    generator = torch.Generator().manual_seed(0)
    batch = {}
    for name, view in meta_batch(cfg, cfg.SOLVER.IMS_PER_BATCH).items():
        shape = view.movedim(-3, -1).shape
        batch[name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).movedim(-1, -3)
    return batch


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
        with contextlib.ExitStack() as stack:
            for name, (owner, method) in parts.items():
                stack.enter_context(mock.patch.object(owner, method, _timed(getattr(owner, method), name, seconds)))
            whole = timer(lambda: [self() for _ in range(steps)])()
        seconds["backward and the rest"] = whole - sum(seconds.values())
        return {name: 100 * value / whole for name, value in seconds.items()}


def _timed(function: Callable, name: str, seconds: dict[str, float]) -> Callable:
    def call(*args: object, **kwargs: object) -> object:
        start = now()
        result = function(*args, **kwargs)
        seconds[name] += now() - start
        return result

    return call
