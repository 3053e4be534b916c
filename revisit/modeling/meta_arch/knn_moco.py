"""kNN-MoCo: MoCo whose positives are also drawn to their nearest neighbours in the queue."""

from __future__ import annotations

import torch
from torch import Tensor

from revisit.modeling.losses.chunked import chunked_losses
from revisit.modeling.losses.similarity import nearest_rows
from revisit.modeling.meta_arch.moco import MoCo
from revisit.modeling.monitors import neighbor_purity

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage


@META_ARCH_REGISTRY.register()
class KNNMoCo(MoCo):
    """L = L_inst + lambda * L_nn (METHOD: notation), with the second, aligned queue Q_g to mine in.

    The hook NeighborLossSchedule sets ``neighbor_weight``: 0 while L_nn waits, then lambda.
    """

    @configurable
    def __init__(self, *, num_neighbors: int, neighbor_weight: float, mining: str, enqueue_first: bool, **moco: object):
        """See ``revisit.config`` for what each option means."""
        self.mine_before_head = mining == "before_head"
        super().__init__(**moco)
        self.num_neighbors = num_neighbors
        self.neighbor_weight = neighbor_weight
        self.enqueue_first = enqueue_first

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        return {
            **super().from_config(cfg),
            "num_neighbors": cfg.KNN_MOCO.NUM_NEIGHBORS,
            "neighbor_weight": cfg.KNN_MOCO.WEIGHT,
            "mining": cfg.KNN_MOCO.MINING,
            "enqueue_first": cfg.KNN_MOCO.ENQUEUE_FIRST,
        }

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue: Q_h, and Q_g where neighbours are mined in front of the head."""
        return {
            "keys": self.embedding_dim,
            **({"features": self.feature_dim} if self.mine_before_head else {}),
        }

    def losses(self, positives: Tensor, positives_g: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """L_inst and, once it has joined, lambda * L_nn, both on the queues as they are before this step."""
        queue_h = self.queue.keys
        if self.enqueue_first:
            # Scores on the old Q_h, neighbours from the new queues: the newest columns point at the scores
            # of the rows that they replaced. Backward needs the old rows, hence the copy.
            queue_h = queue_h.clone()
            self.enqueue_pending_keys()
        mining = {}
        if self.mine_before_head:
            mining = {"positives_g": positives_g, "queue_g": self.queue.features}
        elif self.enqueue_first:
            mining = {"positives_g": positives, "queue_g": self.queue.keys}
        k = self.num_neighbors if self.neighbor_weight else 0
        options = {"temperature": self.temperature, "num_neighbors": k, "max_scores": self.max_scores}
        losses = chunked_losses(positives, anchors, queue_h, **mining, **options)
        if k and self.watched:
            get_event_storage().put_scalar("loss_nn_raw", losses["loss_nn"].item())
        if k:
            losses["loss_nn"] = self.neighbor_weight * losses["loss_nn"]
        return losses

    @torch.no_grad()
    def monitors(self, batch: dict, positives: Tensor, positives_g: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """MoCo's, and ``neighbor_purity`` where the data has classes, from the first step on."""
        values = super().monitors(batch, positives, positives_g, anchors)
        if "label" in batch:
            rows = positives_g if self.mine_before_head else positives
            queue = self.queue.features if self.mine_before_head else self.queue.keys
            neighbors = nearest_rows(rows[:, 0], queue, self.num_neighbors, self.max_scores)
            values["neighbor_purity"] = neighbor_purity(neighbors, batch["label"].to(self.device), self.queue.labels)
        return values
