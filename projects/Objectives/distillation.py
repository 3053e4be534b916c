"""Distillation: a network learns to find the same views alike as a frozen teacher does."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from projects.Objectives.relations import cells_of
from revisit.checkpoint.named_weights import expected_weights, is_named
from revisit.errors import expect
from revisit.files import is_url
from revisit.keys import POSITIVE, declare, number
from revisit.modeling.bn_groups import check_whole_batch, whole_batch
from revisit.modeling.distributed import gather_rows, gather_rows_with_gradient
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.pretraining import Pretraining, all_passes
from revisit.modeling.monitors import feature_std
from revisit.network.frozen_network import SameNetwork, load_frozen, pooled_rows
from revisit.network.network import Network

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage

TEACHER = "DISTILLATION.TEACHER"
distillation = partial(declare, read_by="Distillation")
# SameNetwork compares what the teacher is; where it lies may change.
distillation(
    TEACHER,
    "",
    "Weights of tools/convert_to_d2.py, or what it converts without further options: a file, a URL, or a name.",
    may_change=True,
)
distillation("DISTILLATION.TEMPERATURE", 0.07, "tau.", POSITIVE)
distillation("DISTILLATION.POOLED_WEIGHT", 1.0, "Weight of the loss of views' features.", number(0, 1e6))
distillation("DISTILLATION.CELL_WEIGHT", 0.0, "Weight of the loss of the cells of their maps.", number(0, 1e6))
distillation("DISTILLATION.RELATION_WEIGHT", 0.0, "Weight of the loss of cells within their view.", number(0, 1e6))


def divergence(rows: Tensor, others: Tensor, theirs: Tensor, their_others: Tensor, tau: float, own: int = -1) -> Tensor:
    """How far the similarities of a network's rows are from those of the teacher's, a scalar of at least 0:

        mean_i KL( softmax_n(t_i . t_n / tau) || softmax_n(g_i . g_n / tau) )

    Args:
        rows, others: (..., N, Cg) and (..., M, Cg) unit rows g_i and g_n; the mean is over all i.
        theirs, their_others: (..., N, Ct) and (..., M, Ct), the teacher's of the same places.
        tau: the temperature, above 0.
        own: where the rows begin among the others; a row is not compared with itself. -1: they are not among them.
    """
    left_out = torch.zeros(rows.shape[-2], others.shape[-2], dtype=torch.bool, device=rows.device)
    if own >= 0:
        left_out[:, own : own + len(left_out)].fill_diagonal_(True)
    target = _log_similarities(theirs, their_others, tau, left_out)
    log_similarities = _log_similarities(rows, others, tau, left_out)
    of_rows = (target.exp() * (target - log_similarities)).sum(dim=-1)
    return of_rows.mean()


def _log_similarities(rows: Tensor, others: Tensor, tau: float, left_out: Tensor) -> Tensor:
    """(..., N, M): the logarithm of the softmax over n of x_i . x_n / tau; 0 where a pair is left out."""
    scores = rows @ others.mT / tau
    log_shares = scores.masked_fill(left_out, -torch.inf).log_softmax(dim=-1)
    return log_shares.masked_fill(left_out, 0)


@META_ARCH_REGISTRY.register()
class Distillation(Pretraining):
    """``divergence`` from the teacher on the same views, with three terms:

        loss_pooled      views, by the features that are averages of their last maps, among the other views
        loss_cells       cells of these maps among all views; the finer of two maps is averaged to the coarser's cells
        loss_relations   cells of these maps among the other cells of their view

    Views are those of all processes. Nothing but the backbone learns: no head is between it and the losses.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.temperature = cfg.DISTILLATION.TEMPERATURE
        self.weights = {kind: cfg.DISTILLATION[f"{kind}_WEIGHT"] for kind in ("POOLED", "CELL", "RELATION")}
        # No part of this module: no checkpoint and no MODEL.WEIGHTS has it.
        self._teacher = (load_frozen(cfg, TEACHER),)
        group_batch_norm([self.backbone], whole_batch(cfg))

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        options = cfg.DISTILLATION
        batch = cfg.SOLVER.IMS_PER_BATCH
        expect(
            options.POOLED_WEIGHT + options.CELL_WEIGHT + options.RELATION_WEIGHT > 0,
            "DISTILLATION.POOLED_WEIGHT, CELL_WEIGHT and RELATION_WEIGHT are all 0: expected one above 0",
        )
        expect(batch > 1, f"SOLVER.IMS_PER_BATCH {batch}: views are compared with other images; expected 2 or more")
        check_whole_batch(cfg, cls.__name__)
        teacher = options.TEACHER
        expect(
            is_named(teacher) or is_url(teacher) or Path(teacher).expanduser().is_file(),
            f"{TEACHER} {teacher!r} is no file: expected {expected_weights()}",
        )

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        return [SameNetwork(self.teacher, TEACHER)]

    @property
    def teacher(self) -> Network:
        """On the model's device."""
        (teacher,) = self._teacher
        return teacher if teacher.mean.device == self.device else teacher.to(self.device)

    def _maps(self, views: list[Tensor]) -> list[Tensor]:
        return [self.feature_map(self.backbone, each.flatten(0, 1)).unflatten(0, each.shape[:2]) for each in views]

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        views = all_passes(batch)
        targets = [self.teacher.last_map(each.flatten(0, 1)) for each in views]  # first: what it needs is free again
        maps = [each.flatten(0, 1) for each in self._maps(views)]
        with torch.autocast(self.device.type, enabled=False):
            rows = pooled_rows(maps)
            theirs = pooled_rows(targets)
            others = gather_rows_with_gradient(rows)
            their_others = gather_rows(theirs)
            if self.watched:
                get_event_storage().put_scalar("feature_std", feature_std(rows).item())
            losses = {}
            weights = self.weights
            tau = self.temperature
            if weights["POOLED"]:
                own = comm.get_rank() * len(rows)
                losses["loss_pooled"] = weights["POOLED"] * divergence(rows, others, theirs, their_others, tau, own)
            pairs = paired_cells(maps, targets) if weights["CELL"] or weights["RELATION"] else []
            if weights["CELL"]:
                ours, its = (torch.cat([cells.flatten(0, 1) for cells in each]) for each in zip(*pairs, strict=True))
                losses["loss_cells"] = weights["CELL"] * divergence(ours, others, its, their_others, tau)
            if weights["RELATION"]:
                losses["loss_relations"] = weights["RELATION"] * relations(pairs, tau)
            return losses


def paired_cells(maps: list[Tensor], targets: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Unit rows (N, h w, C) of the cells of maps (N, C, h, w) and of another network's maps of the same images, pair by
    pair, on the coarser one's cells."""
    pairs = []
    for pair in zip(maps, targets, strict=True):
        heights, widths = zip(*(each.shape[2:] for each in pair), strict=True)
        size = (min(heights), min(widths))
        pairs.append(tuple(cells_of(F.adaptive_avg_pool2d(at_least_float32(each), size)) for each in pair))
    return pairs


def relations(pairs: list[tuple[Tensor, Tensor]], tau: float) -> Tensor:
    """The mean ``divergence`` of cells, (N, n, C) of each pair, among the other cells of their image."""
    pairs = [pair for pair in pairs if pair[0].shape[1] > 1]
    expect(pairs, "DISTILLATION.RELATION_WEIGHT: expected views of two cells or more (VIEWS.LARGE_SIZE)")
    counts = [len(ours.flatten(0, 1)) for ours, _ in pairs]
    means = [divergence(ours, ours, theirs, theirs, tau, own=0) for ours, theirs in pairs]
    total = sum(count * mean for count, mean in zip(counts, means, strict=True))
    return total / sum(counts)
