"""DenseCL: MoCo-v2 that also contrasts cells of the last map, each with the most similar cell of the other view.

Wang et al., Dense Contrastive Learning for Self-Supervised Visual Pre-Training, CVPR 2021; written from the paper.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.errors import expect
from revisit.keys import SHARE, declare, integer
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.moco import Encoded, MoCo
from revisit.modeling.meta_arch.pretraining import unit_rows
from revisit.modeling.momentum import momentum_copy

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage

# Everything else of DenseCL is under MOCO.
densecl = partial(declare, read_by="DenseCL")
densecl("DENSECL.WEIGHT", 0.5, "lambda: (1 - lambda) L_inst + lambda L_dense.", SHARE)
densecl("DENSECL.GRID", 0, "S: maps are pooled to S x S cells; 0: as they are, as in the paper.", integer(0, 64))


def dense_loss(
    cells: Tensor,
    dense: Tensor,
    key_cells: Tensor,
    key_dense: Tensor,
    queue: Tensor,
    *,
    temperature: float,
    max_scores: int = 0,
) -> Tensor:
    """L_dense, a scalar, not weighted by lambda: L_inst over cells, with the best-matching cell of the key as anchor.

        c_is    = argmax_t cos(g(q_i)_s, g'(k_i)_t)                    no gradient
        e_is    = d_is . d'_i,c_is / tau
        lse_is  = logsumexp_n d_is . Q_d[n] / tau
        L_dense = mean_is [ logaddexp(e_is, lse_is) - e_is ]

    Of unit rows ``cells`` g(q), (B, S, Cg), and ``key_cells`` g'(k), (B, T, Cg), of both views' maps; ``dense`` d,
    (B, S, C), and ``key_dense`` d', (B, T, C), after the dense heads; ``queue`` Q_d, (K, C), of which at most
    ``max_scores`` scores are in memory at once (0: no limit).
    """
    match = best_match(cells, key_cells)
    anchors = key_dense.gather(1, match[..., None].expand(-1, -1, key_dense.shape[2]))
    return contrastive_losses(
        dense.flatten(0, 1)[:, None], anchors.flatten(0, 1), queue, temperature=temperature, max_scores=max_scores
    )["loss_inst"]


@torch.no_grad()
def best_match(cells: Tensor, key_cells: Tensor) -> Tensor:
    """The key's cell of highest cosine for every cell: unit rows (B, S, W) and (B, T, W) -> (B, S) int64."""
    with torch.autocast(cells.device.type, enabled=False):
        return (at_least_float32(cells) @ at_least_float32(key_cells).transpose(1, 2)).argmax(dim=2)


class DenseProjectionHead(nn.Sequential):
    """1x1 convolution Cg -> Cg, ReLU, 1x1 convolution Cg -> C. (B, Cg, H, W) -> (B, C, H, W), not normalised."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__(nn.Conv2d(in_dim, in_dim, 1), nn.ReLU(inplace=True), nn.Conv2d(in_dim, out_dim, 1))


@dataclass(frozen=True)
class DenseEncoded(Encoded):
    """``Encoded`` with the cells of both views."""

    cells: Tensor | None = None  # (B, S, Cg) unit rows of the positive's map, without gradient
    dense: Tensor | None = None  # (B, S, C) unit rows after the dense head, with gradient
    key_cells: Tensor | None = None  # (B, S, Cg) and (B, S, C) of the anchor's, without gradient
    key_dense: Tensor | None = None


@META_ARCH_REGISTRY.register()
class DenseCL(MoCo):
    """L = (1 - lambda) * L_inst + lambda * L_dense, with a second, aligned queue Q_d of pooled dense keys.

    The query is the positive, the key the anchor, one of each per image. Their S cells are the places of the
    backbone's map, or of that map pooled to GRID x GRID.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.dense_weight = cfg.DENSECL.WEIGHT
        self.grid = cfg.DENSECL.GRID
        self.dense_head = DenseProjectionHead(self.feature_dim, self.embedding_dim)
        self.momentum_dense_head = momentum_copy(self.dense_head)

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        small = cfg.VIEWS.NUM_SMALL
        expect(small == 0, f"VIEWS.NUM_SMALL {small}: DenseCL has one positive, the large one; expected 0")

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue: Q_h, and Q_d of as many channels."""
        return {"keys": self.embedding_dim, "dense_keys": self.embedding_dim}

    def encode_positives(self, batch: dict) -> DenseEncoded:
        """Rows and cells of the large positive."""
        g_map = self.feature_map(self.backbone, batch["positive"])
        g = g_map.mean(dim=(2, 3))
        rows = unit_rows(self.projection_head(g))
        cells, dense = self.cells(g_map, self.dense_head)
        return DenseEncoded(rows[:, None], unit_rows(g)[:, None], cells=cells, dense=unit_rows(dense))

    @torch.no_grad()
    def encode_anchors(self, images: Tensor) -> dict[str, Tensor]:
        """Of uint8 images, for the queue: ``keys`` and ``dense_keys``, the dense cells' mean, unit rows (B, C).
        For this step's correspondence ``key_cells`` (B, S, Cg) and ``key_dense`` (B, S, C), unit rows."""
        g_map = self.feature_map(self.momentum_backbone, images)
        cells, dense = self.cells(g_map, self.momentum_dense_head)
        return {
            "keys": unit_rows(self.momentum_projection_head(g_map.mean(dim=(2, 3)))),
            "dense_keys": unit_rows(dense.mean(dim=1)),
            "key_cells": cells,
            "key_dense": unit_rows(dense),
        }

    def cells(self, g_map: Tensor, dense_head: nn.Module) -> tuple[Tensor, Tensor]:
        """A map (B, Cg, H, W) as cells: unit rows (B, S, Cg) without gradient, and after the head (B, S, C), which are
        not normalised yet."""
        if self.grid:
            g_map = F.adaptive_avg_pool2d(g_map, self.grid)
        dense = dense_head(g_map)
        return unit_rows(g_map.detach().flatten(2).transpose(1, 2)), dense.flatten(2).transpose(1, 2)

    def losses(self, encoded: DenseEncoded) -> dict[str, Tensor]:
        """Both losses, weighted, on the queues as they are before this step."""
        raw = super().losses(encoded)
        raw["loss_dense"] = dense_loss(
            encoded.cells,
            encoded.dense,
            encoded.key_cells,
            encoded.key_dense,
            self.queue.dense_keys,
            temperature=self.temperature,
            max_scores=self.max_scores,
        )
        if self.watched:
            get_event_storage().put_scalars(**{f"{name}_raw": loss.item() for name, loss in raw.items()})
        weights = {"loss_inst": 1 - self.dense_weight, "loss_dense": self.dense_weight}
        return {name: weights[name] * loss for name, loss in raw.items()}
