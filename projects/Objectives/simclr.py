"""SimCLR: every view of another image in the batch is a negative. No queue and no momentum encoder.

Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020.
"""

from functools import partial

import torch
from torch import Tensor

from projects.Objectives.all_views import AllViews, Objective
from revisit.keys import POSITIVE, declare, integer
from revisit.modeling.bn_groups import whole_batch
from revisit.modeling.distributed import gather_rows_with_gradient, own_share
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.losses.contrastive import info_nce
from revisit.modeling.projection_head import BNProjectionHead, ProjectionHead

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY

# The values of SimCLR's paper.
simclr = partial(declare, read_by="SimCLR")
simclr("SIMCLR.TEMPERATURE", 0.5, "tau.", POSITIVE)
simclr("SIMCLR.HIDDEN_DIM", 0, "Of the head, which then has batch norm; 0: MoCo's head, without.", integer(0, 2**14))
simclr("SIMCLR.EMBEDDING_DIM", 128, "C, width after the projection head.", integer(1, 2**14))


def nt_xent(anchors: Tensor, positives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The normalised temperature-scaled cross entropy (NT-Xent), and what its negatives contribute.

        z   = [anchors, positives]
        n_i = logsumexp_n z_i . z_n / tau, over the rows n of other images
        L   = info_nce(s_i, n_i),  s_i = z_i . z_partner(i) / tau

    of (B, C) unit rows of two views of the same images, of all processes. Returns L, a scalar, and n_i of the
    positives, (B,).
    """
    rows = torch.cat([anchors, positives])
    images = torch.arange(len(anchors), device=rows.device).repeat(2)
    scores = rows @ rows.T / temperature
    negatives = scores.masked_fill(images[:, None] == images, -torch.inf).logsumexp(dim=1)
    partner = (anchors * positives).sum(dim=1).repeat(2) / temperature
    return info_nce(partner, negatives), negatives[len(anchors) :]


@META_ARCH_REGISTRY.register()
class SimCLR(AllViews):
    """L_inst is the mean over an image's positives of NT-Xent between the anchors and these positives; with the large
    one alone it is SimCLR's loss. L_nn has a neighbour's key as the partner, and the same negatives."""

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        options = cfg.SIMCLR
        self.temperature = options.TEMPERATURE
        head = partial(BNProjectionHead, hidden_dim=options.HIDDEN_DIM) if options.HIDDEN_DIM else ProjectionHead
        self.projection_head = head(self.feature_dim, out_dim=options.EMBEDDING_DIM)
        self.add_queue(options.EMBEDDING_DIM)
        group_batch_norm([self.backbone, self.projection_head], whole_batch(cfg))

    def objective(self, encoded: dict[str, Tensor]) -> Objective:
        positives = encoded["positives"]
        anchors = gather_rows_with_gradient(encoded["anchors"])
        everywhere = gather_rows_with_gradient(positives)
        pairs = [nt_xent(anchors, of_view, self.temperature) for of_view in everywhere.unbind(dim=1)]
        losses, negatives = zip(*pairs, strict=True)
        own_negatives = own_share(torch.stack(negatives, dim=1)).flatten()[:, None]

        def neighbor_loss(keys: Tensor) -> Tensor:
            scores = (positives.flatten(0, 1)[:, None] * keys).sum(dim=2) / self.temperature
            return info_nce(scores, own_negatives)

        return Objective(torch.stack(losses).mean(), encoded["anchors"], encoded["anchors_g"], neighbor_loss)
