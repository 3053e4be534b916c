"""MoCo-v2 with one or several positives per anchor, as a Detectron2 meta-architecture."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from revisit.keys import POSITIVE, declare, integer, number, one_of
from revisit.modeling.bn_groups import bn_groups, check_groups, warn_of_groups
from revisit.modeling.distributed import own_share
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.losses.queue_scores import MAX_SCORES
from revisit.modeling.meta_arch.pretraining import Pretraining, positive_passes, unit_rows
from revisit.modeling.momentum import MomentumUpdate, momentum_copy
from revisit.modeling.monitors import contrast_accuracy, feature_std
from revisit.modeling.projection_head import ProjectionHead
from revisit.modeling.queue import AlignedQueue, KeepsKeys, QueueUpdate
from revisit.modeling.queue_size import check_queue_size, iterations_to_fill, warn_of_queue_size
from revisit.modeling.shuffle_bn import shuffle_permutation, start_keys

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage

moco = partial(declare, read_by="MoCo")
moco("MOCO.QUEUE_DTYPE", "float32", "Of the queue in memory.", one_of("float32", "bfloat16", "float16"))
moco(
    "MOCO.MAX_SCORES",
    MAX_SCORES,
    "Scores against the queue in memory at once: a longer queue is read in parts. 0: no limit.",
    integer(0, 2**40),
    may_change=True,
)
moco("MOCO.TEMPERATURE", 0.2, "tau.", POSITIVE, paper=0.2)
moco("MOCO.MOMENTUM", 0.995, "m; the paper's rows before '+m' have 0.999.", number(0, 0.9999999), paper=0.995)
moco("MOCO.EMBEDDING_DIM", 128, "C, width after the projection head.", integer(1, 2**14), paper=128)


@dataclass(frozen=True)
class Encoded:
    """What the encoders make of this process's B images; the losses and the monitors read it."""

    positives: Tensor  # (B, L, C) unit rows h(g(x+)), with gradient; the large positive first
    positives_g: Tensor  # (B, L, Cg) unit rows g(x+), with gradient
    anchors: Tensor | None = None  # (B, C) unit rows h'(g'(x)), without gradient, once they are known


@META_ARCH_REGISTRY.register()
class MoCo(KeepsKeys, Pretraining):
    """Encoder h(g(.)), momentum encoder h'(g'(.)) and the queue Q_h (docs/method.md: Notation, One step).

    ``training_losses`` adds the new keys of all processes to ``pending_keys``; the hooks MomentumUpdate and QueueUpdate
    change the momentum encoder and the queue. A batch that comes in parts (SOLVER.ACCUMULATION_STEPS) is one forward
    per part, and all its keys are enqueued together.
    """

    key_inputs: tuple[str, ...] = ("anchor",)  # of a batch, what ``encode_anchors`` takes

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        options = cfg.MOCO
        self.embedding_dim = options.EMBEDDING_DIM
        self.temperature = options.TEMPERATURE
        self.momentum = options.MOMENTUM
        self.max_scores = options.MAX_SCORES
        self.seed = cfg.SEED
        self.row_dim = self.build_before_head(cfg)
        self.projection_head = ProjectionHead(self.row_dim, self.embedding_dim)
        self.momentum_backbone = momentum_copy(self.backbone)
        self.momentum_projection_head = momentum_copy(self.projection_head)
        groups = bn_groups(cfg, cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size(), self.backbone)
        self.shuffle_bn = options.SHUFFLE_BN and groups is not None and groups.count > 1
        if groups:
            group_batch_norm(list(self.children()), groups)  # also those before the head
        self.queue = AlignedQueue(options.QUEUE_SIZE, getattr(torch, options.QUEUE_DTYPE), **self.queue_widths())

    def build_before_head(self, cfg: CfgNode) -> int:
        """Build what lies between the backbone and the projection head: nothing. Returns the width of its rows."""
        return self.feature_dim

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        check_queue_size(cfg)
        check_groups(cfg, share)

    @classmethod
    def warn(cls, cfg: CfgNode, num_images: int, share: int) -> None:
        warn_of_queue_size(cfg, num_images)
        warn_of_groups(cfg, share)

    @classmethod
    def iterations_before_learning(cls, cfg: CfgNode) -> int:
        return iterations_to_fill(cfg)

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        return [MomentumUpdate(), QueueUpdate()]

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue and their widths: Q_h alone."""
        return {"keys": self.embedding_dim}

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        finish_keys = self.start_keys(*(batch[name] for name in self.key_inputs))
        encoded = self.encode_positives(batch)  # while keys travel
        keys = finish_keys()
        rings = {name: keys.pop(name) for name in self.queue.names}
        self.keep_keys(batch, rings)
        encoded = replace(encoded, anchors=own_share(rings["keys"]), **keys)
        self.log_monitors(batch, encoded)
        return self.losses(encoded)

    def losses(self, encoded: Encoded) -> dict[str, Tensor]:
        """L_inst against the anchors and the queue as it is before this step (docs/method.md: Losses)."""
        return contrastive_losses(
            encoded.positives,
            encoded.anchors,
            self.queue.keys,
            temperature=self.temperature,
            max_scores=self.max_scores,
        )

    def encode_positives(self, batch: dict) -> Encoded:
        """Rows of the positives, with gradient; anchors are not known yet."""
        return Encoded(*self.rows_of(positive_passes(batch), self.projection_head))

    @torch.no_grad()
    def encode_anchors(self, images: Tensor) -> dict[str, Tensor]:
        """Unit rows of uint8 images for the queue's rings: ``keys`` a = h'(g'(x)), (B, C), and perhaps ``features``,
        g'(x), (B, Cg). Rows of other names, which a subclass may add, go to this process's ``Encoded``."""
        g = self.pooled(self.momentum_backbone, images)
        rows = {"keys": unit_rows(self.momentum_projection_head(g)), "features": unit_rows(g)}
        return {name: rows[name] for name in self.queue.names}

    @torch.no_grad()
    def start_keys(self, *anchors: Tensor) -> Callable[[], dict[str, Tensor]]:
        """Encode the anchors, this process's share of what ``encode_anchors`` takes, and start the gather.

        Returns a function that waits for it and returns all processes' keys (docs/method.md: Batch statistics).
        """
        permutation = None
        if self.shuffle_bn:
            global_batch = len(anchors[0]) * comm.get_world_size()
            permutation = shuffle_permutation(
                global_batch,
                self.seed,
                get_event_storage().iter,
                part=len(self.pending_keys),
            )
        return start_keys(self.encode_anchors, anchors, self.queue_widths(), permutation)

    @torch.no_grad()
    def monitors(self, batch: dict, encoded: Encoded) -> dict[str, Tensor]:
        """Scalars that docs/training.md explains, over the large positives of this process's share."""
        large = encoded.positives[:, 0]
        large_g = encoded.positives_g[:, 0]
        top1, top5 = contrast_accuracy(large, encoded.anchors, self.queue.keys, self.max_scores)
        values = {"contrast_top1": top1, "contrast_top5": top5}
        if len(large) > 1:
            values |= {"feature_std": feature_std(large_g), "embedding_std": feature_std(large)}
        return values

    def log_monitors(self, batch: dict, encoded: Encoded) -> None:
        """Log ``monitors`` of a watched step, of its first part where it comes in parts."""
        if not self.watched or len(self.pending_keys) > 1:
            return
        with torch.autocast(self.device.type, enabled=False):
            values = self.monitors(batch, encoded)
        numbers = torch.stack(list(values.values())).tolist()  # one wait for the device
        get_event_storage().put_scalars(**dict(zip(values, numbers, strict=True)))
        get_event_storage().put_scalars(
            smoothing_hint=False, queue_fill=100 * self.queue.fill_level, encoder_momentum=self.momentum
        )
