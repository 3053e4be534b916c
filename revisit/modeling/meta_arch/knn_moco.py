"""kNN-MoCo: MoCo whose positives are also drawn to their nearest neighbours in the queue (paper, Section 4.3)."""

from torch import Tensor

from revisit.errors import expect
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.meta_arch.moco import Encoded, MoCo
from revisit.modeling.neighbors import MinesNeighbors
from revisit.modeling.queue import AlignedQueue

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY


@META_ARCH_REGISTRY.register()
class KNNMoCo(MinesNeighbors, MoCo):
    """L = L_inst + lambda * L_nn (docs/method.md: Losses), with the second, aligned queue Q_g to mine in."""

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        k = cfg.NEIGHBORS.NUM_NEIGHBORS
        queue_size = cfg.MOCO.QUEUE_SIZE
        expect(k <= queue_size, f"NEIGHBORS.NUM_NEIGHBORS {k} is more than MOCO.QUEUE_SIZE {queue_size} holds")

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue: Q_h, and Q_g where neighbours are mined before the head."""
        return super().queue_widths() | ({"features": self.row_dim} if self.mine_before_head else {})

    def losses(self, encoded: Encoded, queue: AlignedQueue | None = None) -> dict[str, Tensor]:
        """L_inst and, once it has joined, lambda * L_nn, both on the queues as they are before this step.

        With ``enqueue_first`` neighbours alone are mined in the queues as they will be after it: the newest columns
        point at the scores of the rows that they will replace. ``queue`` may be another one.
        """
        queue = queue or self.queue
        options = {"temperature": self.temperature, "max_scores": self.max_scores}
        if self.neighbor_weight:
            rows, ring = self.mining_space(encoded.positives, encoded.positives_g)
            mined = self.mined_ring(ring, queue)
            options |= {"positives_g": rows, "queue_g": mined, "num_neighbors": self.num_neighbors}
        losses = contrastive_losses(encoded.positives, encoded.anchors, queue.keys, **options)
        if "loss_nn" in losses:
            losses["loss_nn"] = self.weighted(losses["loss_nn"], is_logged=queue is self.queue)
        return losses

    def monitors(self, batch: dict, encoded: Encoded) -> dict[str, Tensor]:
        """MoCo's, and ``neighbor_purity`` where the data has classes, from the first step on."""
        values = super().monitors(batch, encoded)
        if "label" in batch:
            large = encoded.positives[:, 0]
            large_g = encoded.positives_g[:, 0]
            values["neighbor_purity"] = self.purity(large, large_g, batch["label"])
        return values
