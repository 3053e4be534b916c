"""MoCo-v2 with one or several positives per anchor, as a Detectron2 meta-architecture."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.config import metrics_period
from revisit.modeling.losses.chunked import chunked_losses
from revisit.modeling.momentum import ema_update, momentum_copy
from revisit.modeling.monitors import contrast_accuracy, feature_std
from revisit.modeling.projection_head import ProjectionHead
from revisit.modeling.queue import AlignedQueue
from revisit.modeling.shuffle_bn import (
    gather_rows,
    in_global_order,
    scatter_shuffled,
    shuffle_permutation,
    split_batch_norm,
    start_gather,
)

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY, Backbone, build_backbone
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage


@META_ARCH_REGISTRY.register()
class MoCo(nn.Module):
    """Encoder h(g(.)), momentum encoder h'(g'(.)) and the queue Q_h (METHOD: notation, one step).

    In training ``forward`` takes a ViewBatch and returns the losses. It adds the new keys of all processes to
    ``pending_keys`` and touches neither the queue nor the momentum encoder: the hooks MomentumUpdate and
    QueueUpdate do, after the optimiser's step. A batch that comes in parts (SOLVER.ACCUMULATION_STEPS) is one
    forward a part, and all its keys are enqueued together.

    In evaluation it takes Detectron2's list of dicts with ``image``, (3, H, W) uint8 RGB of one size, and
    returns for each the ``feature`` g(x), (Cg,) float32, a unit row.
    """

    @configurable
    def __init__(
        self,
        *,
        backbone: Backbone,
        embedding_dim: int,
        queue_size: int,
        queue_dtype: torch.dtype,
        max_scores: int,
        temperature: float,
        momentum: float,
        shuffle_bn: bool,
        bn_splits: int,
        seed: int,
        metrics_period: int,
        pixel_mean: tuple[float, float, float],
        pixel_std: tuple[float, float, float],
    ):
        """See ``revisit.config`` for what each option means."""
        super().__init__()
        self.feature = next(iter(backbone.output_shape()))
        self.feature_dim = backbone.output_shape()[self.feature].channels
        self.embedding_dim = embedding_dim
        self.max_scores = max_scores
        self.temperature = temperature
        self.momentum = momentum
        self.seed = seed
        self.metrics_period = metrics_period
        self.shuffle_bn = shuffle_bn and comm.get_world_size() * bn_splits > 1

        if bn_splits > 1:
            split_batch_norm(backbone, bn_splits)
        self.backbone = backbone
        self.projection_head = ProjectionHead(self.feature_dim, embedding_dim)
        self.momentum_backbone = momentum_copy(backbone)
        self.momentum_projection_head = momentum_copy(self.projection_head)
        self.queue = AlignedQueue(queue_size, queue_dtype, **self.queue_widths())
        self.pending_keys: list[dict[str, Tensor]] = []

        self.register_buffer("pixel_mean", torch.tensor(pixel_mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(pixel_std).view(-1, 1, 1), persistent=False)

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        return {
            "backbone": build_backbone(cfg),
            "embedding_dim": cfg.MOCO.EMBEDDING_DIM,
            "queue_size": cfg.MOCO.QUEUE_SIZE,
            "queue_dtype": getattr(torch, cfg.MOCO.QUEUE_DTYPE),
            "max_scores": cfg.MOCO.MAX_SCORES,
            "temperature": cfg.MOCO.TEMPERATURE,
            "momentum": cfg.MOCO.MOMENTUM,
            "shuffle_bn": cfg.MOCO.SHUFFLE_BN,
            "bn_splits": cfg.MOCO.BN_SPLITS,
            "seed": cfg.SEED,
            "metrics_period": metrics_period(cfg),
            "pixel_mean": cfg.MODEL.PIXEL_MEAN,
            "pixel_std": cfg.MODEL.PIXEL_STD,
        }

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue and their widths: Q_h alone."""
        return {"keys": self.embedding_dim}

    @property
    def device(self) -> torch.device:
        return self.pixel_mean.device

    def forward(self, batch: dict | list[dict]) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        if not self.training:
            images = torch.stack([record["image"] for record in batch])
            return [{"feature": feature} for feature in self.extract_features(images)]
        finish_keys = self.start_keys(batch["anchor"])  # they travel while the positives are encoded
        positives, positives_g, *cells = self.encode_positives(batch)
        keys = finish_keys()
        pending = {name: keys.pop(name) for name in self.queue.names}
        if "label" in batch:
            pending["labels"] = gather_rows(batch["label"].to(self.device))
        self.pending_keys.append(pending)
        anchors = pending["keys"].chunk(comm.get_world_size())[comm.get_rank()]
        self.log_monitors(batch, positives, positives_g, anchors)
        return self.losses(positives, positives_g, anchors, *cells, **keys)  # DenseCL alone has cells

    def losses(self, positives: Tensor, positives_g: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """L_inst of positives (B, L, C) against anchors (B, C) and the queue. MoCo ignores (B, L, Cg)."""
        options = {"temperature": self.temperature, "max_scores": self.max_scores}
        return chunked_losses(positives, anchors, self.queue.keys, **options)

    def encode_positives(self, batch: dict) -> tuple[Tensor, Tensor]:
        """Unit rows h(g(x+)), (B, L, C), and g(x+), (B, L, Cg), with gradient; the large positive first.

        One pass per resolution, so that BN statistics do not mix large and small crops.
        """
        passes = [batch["positive"][:, None]]  # (B, 1, 3, H, W)
        if "small" in batch:
            passes.append(batch["small"])  # (B, N, 3, h, w)
        rows, rows_g = [], []
        for images in passes:
            g = self.pooled(self.backbone, self.normalized(images.flatten(0, 1)))
            h = self.projection_head(g)
            rows.append(unit_rows(h).unflatten(0, images.shape[:2]))
            rows_g.append(unit_rows(g).unflatten(0, images.shape[:2]))
        return torch.cat(rows, dim=1), torch.cat(rows_g, dim=1)

    @torch.no_grad()
    def encode_anchors(self, images: Tensor) -> dict[str, Tensor]:
        """What the queue holds of uint8 images, unit rows: ``keys`` a = h'(g'(x)), (B, C), and for KNNMoCo
        ``features`` g'(x), (B, Cg)."""
        g = self.pooled(self.momentum_backbone, self.normalized(images))
        rows = {"keys": unit_rows(self.momentum_projection_head(g)), "features": unit_rows(g)}
        return {name: rows[name] for name in self.queue.names}

    @torch.no_grad()
    def start_keys(self, images: Tensor) -> Callable[[], dict[str, Tensor]]:
        """Encode this process's share of the anchors. The call that is returned gives what ``encode_anchors`` does:
        the queue's rows of all processes' anchors and anything else of this process's own.

        With shuffle-BN the uint8 anchors change places between processes first, and the keys come back in
        the order of the global batch.
        """
        images = images.to(self.device, non_blocking=True)
        if self.shuffle_bn:
            global_batch = len(images) * comm.get_world_size()
            part = len(self.pending_keys)
            permutation = shuffle_permutation(global_batch, self.seed, get_event_storage().iter, part)
            images = scatter_shuffled(images, permutation)
        own = self.encode_anchors(images)
        widths = self.queue_widths()
        gathered = start_gather(torch.cat([own.pop(name) for name in widths], dim=1))

        def finish() -> dict[str, Tensor]:
            keys, returned = gathered(), own
            if self.shuffle_bn:
                places = permutation.argsort()
                keys = keys[places.to(keys.device)]
                returned = {name: scatter_shuffled(rows, places) for name, rows in own.items()}
            return {**dict(zip(widths, keys.split(list(widths.values()), dim=1), strict=True)), **returned}

        return finish

    @torch.no_grad()
    def update_momentum_encoder(self) -> None:
        """One EMA step of g' and h'."""
        ema_update(self.momentum_backbone, self.backbone, self.momentum)
        ema_update(self.momentum_projection_head, self.projection_head, self.momentum)

    def enqueue_pending_keys(self) -> None:
        """Move ``pending_keys`` into the queue, in the order of the global batch."""
        if self.pending_keys:
            names = self.pending_keys[0]
            self.queue.enqueue(**{name: in_global_order([keys[name] for keys in self.pending_keys]) for name in names})
            self.pending_keys = []

    @torch.no_grad()
    def extract_features(self, images: Tensor) -> Tensor:
        """g(x) of (B, 3, H, W) uint8 RGB images as (B, Cg) float32 unit rows."""
        return unit_rows(self.pooled(self.backbone, self.normalized(images)))

    def normalized(self, images: Tensor) -> Tensor:
        """uint8 pixels on any device -> float32 with the data's mean and deviation removed, on the model's."""
        images = images.to(self.device, non_blocking=True)
        return (images - self.pixel_mean) / self.pixel_std

    def pooled(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """g or g': the backbone's last map, averaged over its places; (B, 3, H, W) -> (B, Cg)."""
        return backbone(images)[self.feature].mean(dim=(2, 3))

    @property
    def watched(self) -> bool:
        """Whether this is one of the steps, every SOLVER.METRICS_PERIOD-th, whose monitors are read."""
        return (get_event_storage().iter + 1) % self.metrics_period == 0

    @torch.no_grad()
    def monitors(self, batch: dict, positives: Tensor, positives_g: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """What docs/reading-a-run.md explains, of this process's share and, of its positives, the large ones."""
        top1, top5 = contrast_accuracy(positives[:, 0], anchors, self.queue.keys, self.max_scores)
        spread = {"feature_std": positives_g[:, 0], "embedding_std": positives[:, 0]} if len(positives) > 1 else {}
        return {
            "contrast_top1": top1,
            "contrast_top5": top5,
            **{name: feature_std(rows) for name, rows in spread.items()},
        }

    def log_monitors(self, *outputs: object) -> None:
        """Log ``monitors`` of a watched step, of its first part where it comes in parts."""
        if not self.watched or len(self.pending_keys) > 1:
            return
        with torch.autocast(self.device.type, enabled=False):
            values = self.monitors(*outputs)
        storage = get_event_storage()
        storage.put_scalars(**dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True)))
        exact = {"queue_fill": 100 * self.queue.fill_level, "encoder_momentum": self.momentum}
        storage.put_scalars(smoothing_hint=False, **exact)


def unit_rows(x: Tensor) -> Tensor:
    """Rows divided by their Euclidean norm, in float32 under autocast."""
    return F.normalize(x.float() if x.dtype != torch.float64 else x, dim=-1)
