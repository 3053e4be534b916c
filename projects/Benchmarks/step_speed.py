"""Images per second of training steps on views in memory: the project's against the textbook's."""

from __future__ import annotations

from itertools import repeat

import torch
from torch import Tensor

from projects.Benchmarks.measuring import compare, measure, timer
from projects.Benchmarks.own_step import OwnStep
from projects.Benchmarks.textbook_step import TextbookStep
from revisit.engine.memory_estimate import meta_batch
from revisit.errors import UserError

from detectron2.config import CfgNode


def measure_step(cfg: CfgNode, *, steps: int, repeats: int) -> dict[str, object]:
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
