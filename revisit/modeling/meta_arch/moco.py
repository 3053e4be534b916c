"""MoCo-v2 with one or several positives per anchor, as a Detectron2 meta-architecture."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from revisit.data.to_device import to_device
from revisit.errors import UserError, expect
from revisit.keys import POSITIVE, SWITCH, declare, integer, number, one_of
from revisit.modeling.bn_groups import FEW_VALUES, BNGroups, bn_groups, group_batch_norm, values_of_group
from revisit.modeling.distributed import start_gather
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.losses.queue_scores import MAX_SCORES
from revisit.modeling.meta_arch.pretraining import Pretraining, positive_passes, unit_rows
from revisit.modeling.momentum import MomentumUpdate, momentum_copy
from revisit.modeling.monitors import contrast_accuracy, feature_std
from revisit.modeling.projection_head import ProjectionHead
from revisit.modeling.queue import AlignedQueue, KeepsKeys, QueueUpdate
from revisit.modeling.shuffle_bn import scatter_shuffled, shuffle_permutation

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage

PAPERS_QUEUE = 65536  # rows


def half_of(cfg: CfgNode, images: int) -> int:
    """Rows that half the training images leave in a queue, in whole batches, at most the paper's."""
    method = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)
    keys = method.keys_of_image(cfg) if issubclass(method, MoCo) else 1
    batch = cfg.SOLVER.IMS_PER_BATCH
    return min(PAPERS_QUEUE // keys, max(batch, images // 2 // batch * batch)) * keys


moco = partial(declare, read_by="MoCo")
moco(
    "MOCO.QUEUE_SIZE",
    PAPERS_QUEUE,
    "K, rows of the queue. 0: those of half the training images, in whole batches, at most the paper's.",
    integer(0, 2**24, "rows"),
    paper=PAPERS_QUEUE,
    by_images=half_of,
)
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
moco(
    "MOCO.BN_GROUP",
    128,
    "Images that share batch statistics: a part of a process's pass, or whole passes of neighbouring processes. 0: the "
    "pass of each process. Each of the paper's two GPUs ran 128. Networks without batch norm do not read it.",
    integer(unit="images"),
    paper=128,
)
moco(
    "MOCO.FILL_QUEUE_FIRST",
    False,
    "Keep the learning rate at 0 until keys have replaced the queue's random rows, which would spoil good weights.",
    SWITCH,
)
moco("MOCO.SHUFFLE_BN", True, "Shuffle the momentum encoder's images over these groups.", SWITCH, paper=True)


def _notes_of_groups(cfg: CfgNode, groups: BNGroups) -> list[str]:
    """Of batch statistics that may tell which key belongs to which positive, and of those of few values."""
    name = f"MOCO.BN_GROUP {cfg.MOCO.BN_GROUP}"
    if values_of_group(cfg, groups.images) < FEW_VALUES:
        few = f"{name} normalises the smallest map by fewer than {FEW_VALUES} values, which tell images apart poorly"
        return [f"{few}: take larger groups, or larger views"]
    if not cfg.MOCO.SHUFFLE_BN or groups.count > 1:
        return []
    half = groups.images // 2
    splits = groups.images % 2 == 0 and values_of_group(cfg, half) >= FEW_VALUES
    return [
        f"{name} is all that runs at a time, so MOCO.SHUFFLE_BN has no other group, and batch statistics may tell "
        f"which key belongs to which positive: take {f'MOCO.BN_GROUP {half}' if splits else 'a larger batch'}"
    ]


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
            group_batch_norm([self.backbone, self.momentum_backbone], groups)
        self.queue = AlignedQueue(options.QUEUE_SIZE, getattr(torch, options.QUEUE_DTYPE), **self.queue_widths())

    def build_before_head(self, cfg: CfgNode) -> int:
        """Build what lies between the backbone and the projection head: nothing. Returns the width of its rows."""
        return self.feature_dim

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        keys, size = cfg.SOLVER.IMS_PER_BATCH * cls.keys_of_image(cfg), cfg.MOCO.QUEUE_SIZE
        expect(keys <= size, f"MOCO.QUEUE_SIZE {size} is smaller than the global batch of {keys} keys")
        groups = bn_groups(cfg, share)
        if groups and values_of_group(cfg, groups.images) == 1:
            alone = f"MOCO.BN_GROUP {cfg.MOCO.BN_GROUP} normalises a map of one place by one image alone"
            raise UserError(f"{alone}, which makes all images alike: expected larger groups, or larger views")

    @classmethod
    def notes(cls, cfg: CfgNode, num_images: int, share: int) -> list[str]:
        """Of a queue that holds a whole epoch or more (the paper's holds 0.55), and of groups of batch norm. Raises
        UserError for a queue that the run does not fill, with MOCO.FILL_QUEUE_FIRST."""
        size, batch, notes = cfg.MOCO.QUEUE_SIZE, cfg.SOLVER.IMS_PER_BATCH, []
        wait, length = cls.iterations_before_learning(cfg), cfg.SOLVER.MAX_ITER
        in_vain = f"MOCO.FILL_QUEUE_FIRST True keeps the rate at 0 for {wait} iterations, and the run has {length}"
        expect(wait < length, f"{in_vain}: expected a longer run, or a smaller MOCO.QUEUE_SIZE")
        each = cls.keys_of_image(cfg)
        if size >= num_images * each:
            notes.append(
                f"MOCO.QUEUE_SIZE {size} is {size / num_images / each:.1f} times the {num_images} images, so an "
                f"image's own older keys are among its negatives: take about {max(batch, num_images // 2) * each}"
            )
        groups = bn_groups(cfg, share)
        return notes + (_notes_of_groups(cfg, groups) if groups else [])

    @classmethod
    def iterations_before_learning(cls, cfg: CfgNode) -> int:
        """Those that fill the queue, with MOCO.FILL_QUEUE_FIRST."""
        keys = cfg.SOLVER.IMS_PER_BATCH * cls.keys_of_image(cfg)
        return math.ceil(cfg.MOCO.QUEUE_SIZE / keys) if cfg.MOCO.FILL_QUEUE_FIRST else 0

    @classmethod
    def keys_of_image(cls, cfg: CfgNode) -> int:
        """How many rows an image leaves in the queue."""
        return 1

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        return [MomentumUpdate(), QueueUpdate()]

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue and their widths: Q_h alone."""
        return {"keys": self.embedding_dim}

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        # Keys travel while the positives are encoded.
        finish_keys = self.start_keys(*(batch[name] for name in self.key_inputs))
        encoded = self.encode_positives(batch)
        keys = finish_keys()
        pending = {name: keys.pop(name) for name in self.queue.names}
        self.keep_keys(batch, pending)
        anchors = pending["keys"].chunk(comm.get_world_size())[comm.get_rank()]
        encoded = replace(encoded, anchors=anchors, **keys)
        self.log_monitors(batch, encoded)
        return self.losses(encoded)

    def losses(self, encoded: Encoded) -> dict[str, Tensor]:
        """L_inst against the anchors and the queue as it is before this step (docs/method.md: Losses)."""
        options = {"temperature": self.temperature, "max_scores": self.max_scores}
        return contrastive_losses(encoded.positives, encoded.anchors, self.queue.keys, **options)

    def encode_positives(self, batch: dict) -> Encoded:
        """Rows of the positives, with gradient; anchors are not known yet."""
        return Encoded(*self.rows_of(positive_passes(batch), self.projection_head))

    @torch.no_grad()
    def encode_anchors(self, images: Tensor) -> dict[str, Tensor]:
        """What the queue holds of uint8 images, unit rows: ``keys`` a = h'(g'(x)), (B, C), and where the queue has such
        a ring ``features`` g'(x), (B, Cg). What a subclass adds is for this process's ``Encoded``."""
        g = self.pooled(self.momentum_backbone, images)
        rows = {"keys": unit_rows(self.momentum_projection_head(g)), "features": unit_rows(g)}
        return {name: rows[name] for name in self.queue.names}

    @torch.no_grad()
    def start_keys(self, *anchors: Tensor) -> Callable[[], dict[str, Tensor]]:
        """Encode this process's share of the anchors, the arguments of ``encode_anchors``. The call that is returned
        gives what that does: the queue's rows of all processes' anchors, (keys, width), and the rest of its own.

        With shuffle-BN the uint8 anchors change places between groups first, and the keys come back in
        the order of the global batch (docs/method.md: Batch statistics).
        """
        if self.shuffle_bn:
            global_batch = len(anchors[0]) * comm.get_world_size()
            part = len(self.pending_keys)
            permutation = shuffle_permutation(global_batch, self.seed, get_event_storage().iter, part)
            anchors = [scatter_shuffled(each, permutation) for each in anchors]
        own = self.encode_anchors(*anchors)
        widths = self.queue_widths()
        gathered = start_gather(torch.cat([own.pop(name) for name in widths], dim=-1))

        def finish() -> dict[str, Tensor]:
            keys, returned = gathered(), own
            if self.shuffle_bn:
                places = permutation.argsort()
                keys = keys[to_device(places, keys.device)]
                returned = {name: scatter_shuffled(rows, places) for name, rows in own.items()}
            rows = keys.flatten(0, -2).split(list(widths.values()), dim=1)
            return {**dict(zip(widths, rows, strict=True)), **returned}

        return finish

    @torch.no_grad()
    def monitors(self, batch: dict, encoded: Encoded) -> dict[str, Tensor]:
        """What docs/reading-a-run.md explains, of this process's share and, of its positives, the large ones."""
        large, large_g = encoded.positives[:, 0], encoded.positives_g[:, 0]
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
        exact = {"queue_fill": 100 * self.queue.fill_level, "encoder_momentum": self.momentum}
        get_event_storage().put_scalars(smoothing_hint=False, **exact)
