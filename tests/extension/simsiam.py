"""SimSiam (Chen and He, Exploring Simple Siamese Representation Learning, CVPR 2021).

The worked example of docs/extending.md: a method outside Revisit's tree, brought in by ``IMPORTS: ("simsiam",)``.
"""

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.keys import declare
from revisit.modeling.meta_arch.pretraining import Pretraining, unit_rows
from revisit.modeling.monitors import feature_std
from revisit.modeling.projection_head import BNProjectionHead

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage

# The values of SimSiam's paper.
declare("SIMSIAM.EMBEDDING_DIM", 2048, "C, width after projection head and predictor.", read_by="SimSiam")
declare("SIMSIAM.PREDICTOR_DIM", 512, "Hidden width of the predictor.", read_by="SimSiam")


def negative_cosine(predictions: Tensor, embeddings: Tensor) -> Tensor:
    """- mean_i p_i . z_i, a scalar, where z takes no gradient; p and z are (B, C) unit rows."""
    return -(predictions * embeddings.detach()).sum(dim=1).mean()


@META_ARCH_REGISTRY.register()
class SimSiam(Pretraining):
    """Each view's prediction p meets the other's embedding z: no negatives, no queue, no momentum encoder, no hook."""

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        width = cfg.SIMSIAM.EMBEDDING_DIM
        self.projection_head = BNProjectionHead(self.feature_dim, width, width)
        self.predictor = BNProjectionHead(width, cfg.SIMSIAM.PREDICTOR_DIM, width)

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        small = cfg.VIEWS.NUM_SMALL
        expect(small == 0, f"VIEWS.NUM_SMALL {small}: SimSiam has two large views; expected 0")

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        views = torch.stack([batch["anchor"], batch["positive"]], dim=1)  # one pass of both
        embeddings = self.projection_head(self.pooled(self.backbone, views.flatten(0, 1)))
        rows = (unit_rows(embeddings), unit_rows(self.predictor(embeddings)))
        (z, other_z), (p, other_p) = (each.unflatten(0, views.shape[:2]).unbind(dim=1) for each in rows)
        if self.watched:
            get_event_storage().put_scalar("embedding_std", feature_std(z).item())  # the collapse alarm reads it
        return {"loss_inst": (negative_cosine(p, other_z) + negative_cosine(other_p, z)) / 2}
