"""What SimCLR, BYOL and SwAV share: an encoder that sees the anchor too, and neighbours for any objective."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.keys import declare, integer
from revisit.modeling.bn_groups import check_whole_batch
from revisit.modeling.distributed import gather_rows
from revisit.modeling.losses.queue_scores import nearest_rows
from revisit.modeling.meta_arch.pretraining import Pretraining, all_passes
from revisit.modeling.monitors import feature_std
from revisit.modeling.neighbors import MinesNeighbors
from revisit.modeling.queue import AlignedQueue, KeepsKeys, QueueUpdate

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.utils.events import get_event_storage


class Objective(NamedTuple):
    """What a method makes of its encoded views."""

    loss: Tensor  # a scalar, between views of the same image
    keys: Tensor  # (B, W) what a positive is compared with where its neighbours are, of this process's anchors
    keys_g: Tensor  # (B, Cg) unit rows of the same anchors, to find them by
    neighbor_loss: Callable[[Tensor], Tensor]  # (B * L, k, W) keys of each positive's neighbours -> a scalar


declare(
    "NEIGHBORS.QUEUE_SIZE", 65536, "K, of methods without another queue.", integer(1, 2**24, "rows"), read_by="AllViews"
)


class AllViews(MinesNeighbors, KeepsKeys, Pretraining):
    """A method whose encoder h(g(.)) sees every view, in two passes: both large ones, then the small ones.

    L = L_inst + lambda * L_nn. L_inst is a subclass's ``objective``; L_nn is the same objective's term with each
    positive's k nearest neighbours in place of its anchor. They are mined as kNN-MoCo does, in a queue of earlier
    anchors, of which ``queue.keys`` holds what the term needs.

    Batch statistics are over the images of all processes.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.queue_size = cfg.NEIGHBORS.QUEUE_SIZE
        self.queue: AlignedQueue | None = None

    def add_queue(self, key_width: int) -> None:
        """The queue, where neighbours are mined; drawn after all else, so that without it all else is the same."""
        if self.neighbor_weight:
            self.queue = AlignedQueue(self.queue_size, keys=key_width, features=self.feature_dim)

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        batch = cfg.SOLVER.IMS_PER_BATCH
        size = cfg.NEIGHBORS.QUEUE_SIZE
        k = cfg.NEIGHBORS.NUM_NEIGHBORS
        check_whole_batch(cfg, cls.__name__)
        expect(batch > 1, f"SOLVER.IMS_PER_BATCH {batch}: {cls.__name__} needs other images, too; expected 2 or more")
        expect(
            not cfg.NEIGHBORS.WEIGHT or max(batch, k) <= size,
            f"NEIGHBORS.QUEUE_SIZE {size}: expected at least the batch of {batch}, and NEIGHBORS.NUM_NEIGHBORS {k}",
        )

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        return [QueueUpdate(), *super().hooks(cfg, iterations_per_epoch)] if self.queue is not None else []

    def embed(self, g: Tensor) -> Tensor:
        """The rows that the loss compares, of g(x): (N, Cg) -> (N, C), not normalised."""
        return self.projection_head(g)

    def objective(self, encoded: dict[str, Tensor]) -> Objective:
        """Of the rows of ``encode``; outside autocast."""
        raise NotImplementedError

    def encode(self, batch: dict) -> dict[str, Tensor]:
        """Unit rows ``anchors`` (B, C) and ``positives`` (B, L, C), the large one first, and before the head
        ``anchors_g`` and ``positives_g``."""
        views, views_g = self.rows_of(all_passes(batch), self.embed)
        return {
            "anchors": views[:, 0],
            "positives": views[:, 1:],
            "anchors_g": views_g[:, 0],
            "positives_g": views_g[:, 1:],
        }

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        encoded = self.encode(batch)
        if self.watched and len(batch["anchor"]) > 1:
            get_event_storage().put_scalars(
                embedding_std=feature_std(encoded["positives"][:, 0]).item(),
                feature_std=feature_std(encoded["positives_g"][:, 0]).item(),
            )
        with torch.autocast(self.device.type, enabled=False):
            result = self.objective(encoded)
            losses = {"loss_inst": result.loss}
            if self.queue is not None:
                losses |= self._neighbor_loss(result, encoded, batch)
        return losses

    def _neighbor_loss(self, result: Objective, encoded: dict[str, Tensor], batch: dict) -> dict[str, Tensor]:
        """lambda * L_nn on the queue as it is before this step, once it has joined; keeps this step's keys for it."""
        positives = encoded["positives"]
        positives_g = encoded["positives_g"].detach()
        keys = {"keys": gather_rows(result.keys.detach()), "features": gather_rows(result.keys_g.detach())}
        self.keep_keys(batch, keys)
        if self.watched:
            storage = get_event_storage()
            storage.put_scalar("queue_fill", 100 * self.queue.fill_level, smoothing_hint=False)
            if "label" in batch:
                purity = self.purity(positives[:, 0], positives_g[:, 0], batch["label"])
                storage.put_scalar("neighbor_purity", purity.item())
        if not self.neighbor_weight:
            return {}
        rows, ring = self.mining_space(positives, positives_g)
        nearest = nearest_rows(rows.flatten(0, 1), self.mined_ring(ring), self.num_neighbors, self.max_scores)
        return {"loss_nn": self.weighted(result.neighbor_loss(self.queue.keys[nearest]))}
