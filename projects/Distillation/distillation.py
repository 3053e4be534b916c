"""Distillation: a network learns to find the same images alike as a frozen teacher does."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.checkpoint.convert import BackboneWeights, as_rgb, flags_to_config
from revisit.checkpoint.export import load_backbone
from revisit.checkpoint.flags import BIT_DEPTH, flags_of
from revisit.config import adds_keys
from revisit.config_rules import POSITIVE, add_rules, real
from revisit.errors import expect
from revisit.modeling.bn_groups import BNGroups, group_batch_norm, whole_batch
from revisit.modeling.distributed import gather_rows, gather_rows_with_gradient
from revisit.modeling.losses.contrastive import at_least_float32
from revisit.modeling.meta_arch.pretraining import Pretraining, positive_passes, unit_rows
from revisit.modeling.monitors import feature_std

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage


@adds_keys
def add_distillation_keys(cfg: CfgNode) -> None:
    """DISTILLATION.*"""
    cfg.DISTILLATION = CfgNode()
    # Weights of tools/convert_to_d2.py, or a checkpoint that it could convert; a file or a URL.
    cfg.DISTILLATION.TEACHER = ""
    cfg.DISTILLATION.TEMPERATURE = 0.07  # tau
    cfg.DISTILLATION.POOLED_WEIGHT = 1.0  # of the loss of views' features
    cfg.DISTILLATION.CELL_WEIGHT = 0.0  # of the loss of the cells of their maps


add_rules({"DISTILLATION.TEMPERATURE": POSITIVE, "DISTILLATION.*_WEIGHT": real(0, 1e6)})


def divergence(rows: Tensor, others: Tensor, theirs: Tensor, their_others: Tensor, tau: float, own: int = -1) -> Tensor:
    """How far the similarities of a network's rows are from those of the teacher's, a scalar of at least 0:

        mean_i KL( softmax_n(t_i . t_n / tau) || softmax_n(g_i . g_n / tau) )

    Args:
        rows, others: (N, Cg) and (M, Cg) unit rows g_i and g_n.
        theirs, their_others: (N, Ct) and (M, Ct), the teacher's of the same places.
        tau: the temperature, above 0.
        own: where the rows begin among the others, if they are among them; a row is not compared with itself.
    """
    left_out = torch.zeros(len(rows), len(others), dtype=torch.bool, device=rows.device)
    if own >= 0:
        left_out[:, own : own + len(rows)].fill_diagonal_(True)
    scores = ((x @ y.T / tau).masked_fill(left_out, -torch.inf) for x, y in ((theirs, their_others), (rows, others)))
    target, found = (each.log_softmax(dim=1).masked_fill(left_out, 0) for each in scores)
    return (target.exp() * (target - found)).sum(dim=1).mean()


class Teacher(nn.Module):
    """A frozen backbone with its own pixel statistics: (N, 3, H, W) uint8 RGB -> its last map, (N, Ct, h, w) float32.

    Batch norm stays in evaluation mode.
    """

    def __init__(self, weights: BackboneWeights):
        super().__init__()
        self.backbone = weights.description.build(flags_to_config(weights.flags))
        self.backbone.load_state_dict(weights.tensors)
        for name in ("mean", "std"):
            statistic = torch.tensor(weights.flags[f"MODEL.PIXEL_{name.upper()}"])
            self.register_buffer(name, statistic.view(3, 1, 1), persistent=False)
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        maps = self.backbone((images.to(self.mean.device) - self.mean) / self.std)
        return at_least_float32(list(maps.values())[-1])


def load_teacher(cfg: CfgNode) -> Teacher:
    """Of DISTILLATION.TEACHER. Raises UserError for a file without a whole backbone, or of another bit depth."""
    with torch.device("cpu"):  # also in a dry run, which builds all else without values
        weights = load_backbone(cfg.DISTILLATION.TEACHER)
        ours, theirs = (flags.get(BIT_DEPTH, 8) for flags in (flags_of(cfg, None), weights.flags))
        expect(ours == theirs, f"DISTILLATION.TEACHER is of images of {theirs} bits: expected {ours}, as {BIT_DEPTH}")
        return Teacher(as_rgb(weights))


@META_ARCH_REGISTRY.register()
class Distillation(Pretraining):
    """``divergence`` from the teacher on the same views, with two terms:

        loss_pooled   views, by the features that are averages of their last maps, among the other views
        loss_cells    cells of these maps among all views; the finer of two maps is averaged to the coarser's cells

    The others are the views of all processes. Nothing but the backbone learns: no head is between it and the losses.
    """

    TITLE = "distillation"
    HEADS = ("teacher.",)
    KEYS = ("DISTILLATION.*",)

    @configurable
    def __init__(
        self,
        *,
        teacher: Teacher,
        temperature: float,
        pooled_weight: float,
        cell_weight: float,
        bn_groups: BNGroups,
        **shared: object,
    ):
        """``add_distillation_keys`` says what each option means."""
        super().__init__(**shared)
        self.temperature, self.pooled_weight, self.cell_weight = temperature, pooled_weight, cell_weight
        self.teacher = teacher
        self.global_batch = bn_groups.images
        group_batch_norm([self.backbone], bn_groups)

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        options = {name: cfg.DISTILLATION[name.upper()] for name in ("temperature", "pooled_weight", "cell_weight")}
        shared = super().from_config(cfg)  # draws the backbone, before the teacher draws numbers
        return {**shared, **options, "teacher": load_teacher(cfg), "bn_groups": whole_batch(cfg)}

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        options, batch, parts = cfg.DISTILLATION, cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.ACCUMULATION_STEPS
        expect(
            options.TEACHER != "",
            "DISTILLATION.TEACHER is empty: expected weights, such as backbone.pth of tools/convert_to_d2.py",
        )
        expect(
            options.POOLED_WEIGHT + options.CELL_WEIGHT > 0,
            "DISTILLATION.POOLED_WEIGHT and CELL_WEIGHT are both 0: expected a number above 0 for one of them",
        )
        expect(batch > 1, f"SOLVER.IMS_PER_BATCH {batch}: views are compared with other images; expected 2 or more")
        expect(parts == 1, f"SOLVER.ACCUMULATION_STEPS {parts}: {cls.TITLE} learns from whole batches; expected 1")

    @classmethod
    def describe(cls, cfg: CfgNode, iterations_per_epoch: int, share: int) -> dict[str, object]:
        options = cfg.DISTILLATION
        weights = {"pooled": options.POOLED_WEIGHT, "cells": options.CELL_WEIGHT}
        return {"teacher": options.TEACHER, "temperature": options.TEMPERATURE, "weights": weights}

    def encode(self, batch: dict) -> dict[str, Tensor]:
        """The last maps of all views by resolution: ``maps_0`` (B, 2, Cg, h, w) of the large ones, anchors first, and
        ``maps_1`` (B, N, Cg, h, w) of small ones, if there are any."""
        maps = (self.feature_map(self.backbone, x.flatten(0, 1)).unflatten(0, x.shape[:2]) for x in passes(batch))
        return {f"maps_{n}": each for n, each in enumerate(maps)}

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        maps = [each.flatten(0, 1) for each in self.encode(batch).values()]
        targets = [self.teacher(images.flatten(0, 1)) for images in passes(batch)]
        with torch.autocast(self.device.type, enabled=False):
            rows, theirs = pooled_rows(maps), pooled_rows(targets)
            others, their_others = gather_rows_with_gradient(rows), gather_rows(theirs)
            if self.watched:
                get_event_storage().put_scalar("feature_std", feature_std(rows).item())
            losses, options = {}, (others, theirs, their_others, self.temperature)
            if self.pooled_weight:
                found = divergence(rows, *options, own=comm.get_rank() * len(rows))
                losses["loss_pooled"] = self.pooled_weight * found
            if self.cell_weight:
                cells, their_cells = cell_rows(maps, targets)
                found = divergence(cells, others, their_cells, their_others, self.temperature)
                losses["loss_cells"] = self.cell_weight * found
            return losses

    def extra_memory(self, encoded: dict[str, Tensor], batch: int) -> tuple[dict[str, list[int]], dict[str, float]]:
        """Four matrices of scores for each loss."""
        views = sum(maps.shape[1] for maps in encoded.values())
        cells = sum(maps.shape[1] * maps.shape[3:].numel() for maps in encoded.values())
        rows = views * (self.pooled_weight > 0) + cells * (self.cell_weight > 0)
        return {}, {"scores": 4 * 4 * rows * batch * views * self.global_batch}


def passes(batch: dict) -> list[Tensor]:
    """The views of a ViewBatch by resolution: (B, 2, 3, H, W), anchors first, and (B, N, 3, h, w) if there are any."""
    large, *small = positive_passes(batch)
    return [torch.cat([batch["anchor"][:, None], large], dim=1), *small]


def pooled_rows(maps: list[Tensor]) -> Tensor:
    """Unit rows (sum of N, C): the averages of maps (N, C, h, w) of any sizes."""
    return unit_rows(torch.cat([at_least_float32(each).mean(dim=(2, 3)) for each in maps]))


def cell_rows(maps: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Unit rows of the cells of maps (N, C, h, w) and of another network's maps of the same images, pair by pair."""
    pairs = []
    for pair in zip(maps, targets, strict=True):
        size = [min(sides) for sides in zip(*(each.shape[2:] for each in pair), strict=True)]
        pairs.append([F.adaptive_avg_pool2d(at_least_float32(x), size).permute(0, 2, 3, 1).flatten(0, 2) for x in pair])
    return tuple(unit_rows(torch.cat(each)) for each in zip(*pairs, strict=True))
