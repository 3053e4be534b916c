"""DIET: every image is a class of its own, and no more is needed to learn from it.

Balestriero, Unsupervised Learning on a DIET: Datum IndEx as Target Free of Self-Supervision, Reconstruction, Projector
Head, arXiv 2302.10260. No positives, no negatives, no queue, no momentum encoder and no projection head.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from revisit.errors import expect
from revisit.keys import SHARE, declare, integer
from revisit.modeling.bn_groups import whole_batch
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.pretraining import Pretraining, all_passes

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage

diet = partial(declare, read_by="DIET")
diet("DIET.LABEL_SMOOTHING", 0.8, "Share of the target that all images have alike.", SHARE)
diet(
    "DIET.NUM_IMAGES",
    0,
    "Rows of W, one for each training image; 0: as many as DATASETS.TRAIN has.",
    integer(unit="images"),
    by_images=lambda cfg, images: images,
)
diet("DIET.MAX_SCORES", 2**25, "Scores in memory at once; more go in parts, twice.", integer(1, 2**40), may_change=True)


def index_loss(rows: Tensor, weight: Tensor, images: Tensor, smoothing: float, max_scores: int) -> Tensor:
    """The mean cross entropy of each row's scores against its image, with label smoothing.

        s   = W g(x)
        L   = mean [ logsumexp_n s_n - (1 - a) s_image - a mean_n s_n ]

    of rows g(x), (B, Cg), weight W, (N, Cg), images (B,) int64, and smoothing a. Rows with more than ``max_scores``
    scores go in parts, whose scores are computed again for the gradient.
    """

    def of_part(part: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(part, weight), labels, label_smoothing=smoothing, reduction="sum")

    size = max(1, max_scores // len(weight))
    if size >= len(rows):
        return of_part(rows, weight, images) / len(rows)
    parts = zip(rows.split(size), images.split(size), strict=True)
    return sum(checkpoint(of_part, part, weight, of_it, use_reentrant=False) for part, of_it in parts) / len(rows)


@META_ARCH_REGISTRY.register()
class DIET(Pretraining):
    """A linear layer W on g tells every image from all others, from any of its views."""

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.images = nn.Linear(self.feature_dim, cfg.DIET.NUM_IMAGES, bias=False)
        self.label_smoothing = cfg.DIET.LABEL_SMOOTHING
        self.max_scores = cfg.DIET.MAX_SCORES
        group_batch_norm([self.backbone], whole_batch(cfg))

    @classmethod
    def warn(cls, cfg: CfgNode, num_images: int, share: int) -> None:
        super().warn(cfg, num_images, share)
        expect(
            cfg.DIET.NUM_IMAGES >= num_images,
            f"DIET.NUM_IMAGES {cfg.DIET.NUM_IMAGES} gives no row to some of the {num_images} images: expected as "
            "many, or 0",
        )

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        passes = all_passes(batch)
        rows = torch.cat([self.pooled(self.backbone, views.flatten(0, 1)) for views in passes])
        images = torch.cat([batch["index"].repeat_interleave(views.shape[1]) for views in passes])
        with torch.autocast(self.device.type, enabled=False):
            rows = at_least_float32(rows)
            if self.watched:
                first = self.images(rows[: len(passes[0])].detach()).argmax(dim=1)
                right = (first == images[: len(first)]).float().mean()
                get_event_storage().put_scalar("index_top1", 100 * right.item())
            return {"loss_inst": index_loss(rows, self.images.weight, images, self.label_smoothing, self.max_scores)}
