"""What SimCLR, BYOL and SwAV share: an encoder that sees the anchor too, and neighbours for any objective."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.keys import declare, real, whole
from revisit.modeling.bn_groups import check_whole_batch
from revisit.modeling.distributed import gather_rows
from revisit.modeling.losses.chunked import MAX_SCORES, nearest_rows
from revisit.modeling.meta_arch.pretraining import Pretraining, all_passes, unit_rows
from revisit.modeling.monitors import feature_std, neighbor_purity
from revisit.modeling.neighbors import NeighborLossSchedule, check_wait
from revisit.modeling.queue import AlignedQueue, QueueUpdate, enqueue_parts

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.utils.events import get_event_storage

neighbors = partial(declare, read_by="AllViews")
neighbors("NEIGHBORS.WEIGHT", 0.0, "lambda; 0: no neighbours, and no queue to mine them in.", real(0, 1e6))
neighbors("NEIGHBORS.QUEUE_SIZE", 65536, "K, rows of the queue.", whole(1, 2**24, "rows"))
neighbors("NEIGHBORS.NUM_NEIGHBORS", 20, "k, neighbours of a positive.", whole(1))
neighbors("NEIGHBORS.WARMUP_EPOCHS", 5, "Epochs before L_nn joins the loss.", whole(unit="epochs"))


class Objective(NamedTuple):
    """What a method makes of its encoded views."""

    loss: Tensor  # a scalar, between views of the same image
    keys: Tensor  # (B, W) what a positive is compared with where its neighbours are, of this process's anchors
    keys_g: Tensor  # (B, Cg) unit rows of the same anchors, to find them by
    neighbor_loss: Callable[[Tensor], Tensor]  # (B * L, k, W) keys of each positive's neighbours -> a scalar


class AllViews(Pretraining):
    """A method whose encoder h(g(.)) sees every view, in two passes: both large ones, then the small ones.

    L = L_inst + lambda * L_nn. L_inst is a subclass's ``objective``; L_nn is the same objective's term with each
    positive's k nearest neighbours in place of its anchor. They are mined by cos(g(x+), Q_g), as kNN-MoCo does, in a
    queue of earlier anchors, of which ``queue.keys`` holds what the term needs.

    Batch statistics are over the images of all processes.
    """

    KEYS = ("NEIGHBORS.*",)

    def __init__(self, *, neighbor_weight: float, num_neighbors: int, queue_size: int, **shared: object):
        super().__init__(**shared)
        self.neighbor_weight = neighbor_weight
        self.num_neighbors = num_neighbors
        self.queue_size = queue_size
        self.queue: AlignedQueue | None = None
        self.pending_keys: list[dict[str, Tensor]] = []

    def add_queue(self, key_width: int) -> None:
        """The queue, where neighbours are mined; drawn after all else, so that without it all else is the same."""
        if self.neighbor_weight:
            self.queue = AlignedQueue(self.queue_size, keys=key_width, features=self.feature_dim)

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        options = {"neighbor_weight": cfg.NEIGHBORS.WEIGHT, "num_neighbors": cfg.NEIGHBORS.NUM_NEIGHBORS}
        return {**super().from_config(cfg), **options, "queue_size": cfg.NEIGHBORS.QUEUE_SIZE}

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        batch, size, k = cfg.SOLVER.IMS_PER_BATCH, cfg.NEIGHBORS.QUEUE_SIZE, cfg.NEIGHBORS.NUM_NEIGHBORS
        check_whole_batch(cfg, cls.TITLE)
        expect(batch > 1, f"SOLVER.IMS_PER_BATCH {batch}: {cls.TITLE} needs other images, too; expected 2 or more")
        expect(
            not cfg.NEIGHBORS.WEIGHT or max(batch, k) <= size,
            f"NEIGHBORS.QUEUE_SIZE {size}: expected at least the batch of {batch}, and NEIGHBORS.NUM_NEIGHBORS {k}",
        )

    @classmethod
    def check_length(cls, cfg: CfgNode, iterations_per_epoch: int) -> None:
        if cfg.NEIGHBORS.WEIGHT:
            wait = cfg.NEIGHBORS.WARMUP_EPOCHS
            check_wait("NEIGHBORS.WARMUP_EPOCHS", wait, iterations_per_epoch, cfg.SOLVER.MAX_ITER)

    @classmethod
    def describe(cls, cfg: CfgNode, iterations_per_epoch: int, share: int) -> dict[str, object]:
        options, wait = cfg.NEIGHBORS, cfg.NEIGHBORS.WARMUP_EPOCHS
        if not options.WEIGHT:
            return {"lambda": 0.0}
        said = {"lambda": options.WEIGHT, "k": options.NUM_NEIGHBORS, "queue_size": options.QUEUE_SIZE}
        return {**said, "warmup_epochs": wait, "warmup_iterations": wait * iterations_per_epoch}

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        if self.queue is None:
            return []
        wait = cfg.NEIGHBORS.WARMUP_EPOCHS * iterations_per_epoch
        return [QueueUpdate(), NeighborLossSchedule(cfg.NEIGHBORS.WEIGHT, wait)]

    def embed(self, g: Tensor) -> Tensor:
        """The rows that the loss compares, of g(x): (N, Cg) -> (N, C), not normalised."""
        return self.projection_head(g)

    def objective(self, encoded: dict[str, Tensor]) -> Objective:
        """Of the rows of ``encode``; outside autocast."""
        raise NotImplementedError

    def encode(self, batch: dict) -> dict[str, Tensor]:
        """Unit rows ``anchors`` (B, C) and ``positives`` (B, L, C), the large one first, and before the head
        ``anchors_g`` and ``positives_g``."""
        rows, rows_g = [], []
        for images in all_passes(batch):
            g = self.pooled(self.backbone, images.flatten(0, 1))
            rows.append(unit_rows(self.embed(g)).unflatten(0, images.shape[:2]))
            rows_g.append(unit_rows(g).unflatten(0, images.shape[:2]))
        views, views_g = torch.cat(rows, dim=1), torch.cat(rows_g, dim=1)
        return {
            "anchors": views[:, 0],
            "positives": views[:, 1:],
            "anchors_g": views_g[:, 0],
            "positives_g": views_g[:, 1:],
        }

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        encoded = self.encode(batch)
        if self.watched and len(batch["anchor"]) > 1:
            spread = {"embedding_std": encoded["positives"], "feature_std": encoded["positives_g"]}
            get_event_storage().put_scalars(**{name: feature_std(x[:, 0]).item() for name, x in spread.items()})
        with torch.autocast(self.device.type, enabled=False):
            found = self.objective(encoded)
            losses = {"loss_inst": found.loss}
            if self.queue is not None:
                losses |= self._neighbor_loss(found, encoded["positives_g"].detach(), batch)
        return losses

    def _neighbor_loss(self, found: Objective, positives_g: Tensor, batch: dict) -> dict[str, Tensor]:
        """lambda * L_nn on the queue as it is before this step, once it has joined; keeps this step's keys for it."""
        pending = {"keys": gather_rows(found.keys.detach()), "features": gather_rows(found.keys_g.detach())}
        if "label" in batch:
            pending["labels"] = gather_rows(batch["label"].to(self.device))
        self.pending_keys.append(pending)
        if not (self.neighbor_weight or self.watched):
            return {}
        neighbors = nearest_rows(positives_g.flatten(0, 1), self.queue.features, self.num_neighbors, MAX_SCORES)
        storage = get_event_storage()
        if self.watched:
            storage.put_scalar("queue_fill", 100 * self.queue.fill_level, smoothing_hint=False)
            if "label" in batch:
                of_large = neighbors.unflatten(0, positives_g.shape[:2])[:, 0]
                purity = neighbor_purity(of_large, batch["label"].to(self.device), self.queue.labels)
                storage.put_scalar("neighbor_purity", purity.item())
        if not self.neighbor_weight:
            return {}
        loss = found.neighbor_loss(self.queue.keys[neighbors])
        if self.watched:
            storage.put_scalar("loss_nn_raw", loss.item())
        return {"loss_nn": self.neighbor_weight * loss}

    def enqueue_pending_keys(self) -> None:
        """Move ``pending_keys`` into the queue, in the order of the global batch."""
        enqueue_parts(self.queue, self.pending_keys)
        self.pending_keys = []
