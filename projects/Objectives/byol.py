"""BYOL: the encoder and a predictor predict what a momentum encoder makes of another view. No negatives.

Grill et al., Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning, NeurIPS 2020.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from projects.Objectives.all_views import AllViews, Objective
from revisit.keys import SWITCH, declare, integer, number
from revisit.modeling.bn_groups import whole_batch
from revisit.modeling.distributed import unwrap
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.meta_arch.pretraining import all_passes, unit_rows
from revisit.modeling.momentum import MomentumUpdate, momentum_copy
from revisit.modeling.projection_head import BNProjectionHead

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage

# The values of BYOL's paper for 300 epochs.
byol = partial(declare, read_by="BYOL")
byol("BYOL.MOMENTUM", 0.99, "m of the first iteration; it rises to 1 by a cosine.", number(0, 1))
byol("BYOL.EMBEDDING_DIM", 256, "C, width after the projection head and after the predictor.", integer(1, 2**14))
byol("BYOL.HIDDEN_DIM", 4096, "Hidden width of both.", integer(1, 2**16))
byol("BYOL.PREDICTOR", True, "False: none, which collapses.", SWITCH)


class CosineMomentum(MomentumUpdate):
    """m_i = 1 - (1 - m_0) (cos(pi i / MAX_ITER) + 1) / 2, by the iteration, so a resumed run agrees."""

    def __init__(self, first: float):
        self._first = first

    def before_step(self) -> None:
        progress = self.trainer.iter / self.trainer.max_iter
        share = (math.cos(math.pi * progress) + 1) / 2  # from 1 to 0
        unwrap(self.trainer.model).momentum = 1 - (1 - self._first) * share


@META_ARCH_REGISTRY.register()
class BYOL(AllViews):
    """q predicts z', the momentum encoder's unit row of the image's other view:

        L_inst = mean_j d(q_j, z'_anchor) + d(q_anchor, z'_large),  d(q, z) = |q - z|^2 = 2 - 2 q . z

    over the positives j; with the large one alone it is BYOL's symmetric loss. L_nn is d to the z' of neighbours.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.momentum = cfg.BYOL.MOMENTUM
        hidden = cfg.BYOL.HIDDEN_DIM
        width = cfg.BYOL.EMBEDDING_DIM
        self.projection_head = BNProjectionHead(self.feature_dim, hidden, width)
        self.predictor = BNProjectionHead(width, hidden, width) if cfg.BYOL.PREDICTOR else nn.Identity()
        self.momentum_backbone = momentum_copy(self.backbone)
        self.momentum_projection_head = momentum_copy(self.projection_head)
        self.add_queue(width)
        group_batch_norm(list(self.children()), whole_batch(cfg))

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        return [CosineMomentum(cfg.BYOL.MOMENTUM), *super().hooks(cfg, iterations_per_epoch)]

    def embed(self, g: Tensor) -> Tensor:
        return self.predictor(self.projection_head(g))

    def encode(self, batch: dict) -> dict[str, Tensor]:
        """Also unit rows of the momentum encoder, the anchors before the large positives: ``targets`` z' (B, 2, C) and
        before its head ``targets_g`` (B, 2, Cg)."""
        views = all_passes(batch)[0]
        with torch.no_grad():
            g = self.pooled(self.momentum_backbone, views.flatten(0, 1))
            rows = {"targets": unit_rows(self.momentum_projection_head(g)), "targets_g": unit_rows(g)}
        targets = {name: of_views.unflatten(0, views.shape[:2]) for name, of_views in rows.items()}
        return super().encode(batch) | targets

    def objective(self, encoded: dict[str, Tensor]) -> Objective:
        positives = encoded["positives"]
        targets = encoded["targets"]
        loss = distances(positives, targets[:, :1]).mean() + distances(encoded["anchors"], targets[:, 1]).mean()
        if self.watched:
            get_event_storage().put_scalar("encoder_momentum", self.momentum, smoothing_hint=False)

        def neighbor_loss(keys: Tensor) -> Tensor:
            return distances(positives.flatten(0, 1)[:, None], keys).mean()

        return Objective(loss, targets[:, 0], encoded["targets_g"][:, 0], neighbor_loss)


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """|q - z|^2 of unit rows, (..., C) each -> (...)."""
    return 2 - 2 * (rows * others).sum(dim=-1)
