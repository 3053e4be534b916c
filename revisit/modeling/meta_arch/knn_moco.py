"""kNN-MoCo: MoCo whose positives are also drawn to their nearest neighbours in the queue (paper, Section 4.3)."""

from functools import partial

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.keys import SWITCH, declare, one_of, real, whole
from revisit.modeling.losses.chunked import chunked_losses, nearest_rows
from revisit.modeling.meta_arch.moco import Encoded, MoCo
from revisit.modeling.monitors import neighbor_purity
from revisit.modeling.neighbors import NeighborLossSchedule, check_wait

from detectron2.config import CfgNode, configurable
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage

knn = partial(declare, read_by="KNNMoCo")
knn("KNN_MOCO.NUM_NEIGHBORS", 20, "k, neighbours of a positive.", whole(1), paper=20)
knn("KNN_MOCO.WEIGHT", 0.4, "lambda, the weight of L_nn.", real(0, 1e6), paper=0.4)
knn(
    "KNN_MOCO.WARMUP_EPOCHS",
    5,
    "Epochs before L_nn joins the loss; 20 in the authors' 800-epoch run.",
    whole(unit="epochs"),
    paper=5,
)
knn(
    "KNN_MOCO.MINING",
    "before_head",
    "Where neighbours are mined: before_head, in g-space, or after_head, in h-space.",
    one_of("before_head", "after_head"),
    paper="before_head",
)
knn(
    "KNN_MOCO.ENQUEUE_FIRST",
    False,
    "Mine in the queues as this step's keys will leave them, instead of waiting WARMUP_EPOCHS (paper, Appendix B); the "
    "newest neighbours then carry stale scores, on purpose.",
    SWITCH,
)


@META_ARCH_REGISTRY.register()
class KNNMoCo(MoCo):
    """L = L_inst + lambda * L_nn (docs/method.md: Losses), with the second, aligned queue Q_g to mine in.

    The hook NeighborLossSchedule sets ``neighbor_weight``: 0 while L_nn waits, then lambda.
    """

    TITLE = "kNN-MoCo"
    MARK = "queue.features"
    KEYS = ("KNN_MOCO.*",)

    @configurable
    def __init__(self, *, num_neighbors: int, neighbor_weight: float, mining: str, enqueue_first: bool, **moco: object):
        """``add_knn_moco_keys`` says what each option means."""
        self.mine_before_head = mining == "before_head"
        super().__init__(**moco)
        self.num_neighbors = num_neighbors
        self.neighbor_weight = neighbor_weight
        self.enqueue_first = enqueue_first

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        knn = cfg.KNN_MOCO
        options = {"num_neighbors": knn.NUM_NEIGHBORS, "neighbor_weight": knn.WEIGHT, "mining": knn.MINING}
        return {**super().from_config(cfg), **options, "enqueue_first": knn.ENQUEUE_FIRST}

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        knn, queue_size, parts = cfg.KNN_MOCO, cfg.MOCO.QUEUE_SIZE, cfg.SOLVER.ACCUMULATION_STEPS
        expect(
            knn.NUM_NEIGHBORS <= queue_size,
            f"KNN_MOCO.NUM_NEIGHBORS {knn.NUM_NEIGHBORS} is more than MOCO.QUEUE_SIZE {queue_size} holds",
        )
        expect(
            parts == 1 or not knn.ENQUEUE_FIRST,
            "KNN_MOCO.ENQUEUE_FIRST mines among the whole batch's keys inside its forward: expected "
            f"SOLVER.ACCUMULATION_STEPS 1 with it, got {parts}",
        )

    @classmethod
    def check_length(cls, cfg: CfgNode, iterations_per_epoch: int) -> None:
        super().check_length(cfg, iterations_per_epoch)
        if cfg.KNN_MOCO.WEIGHT:
            check_wait(
                "KNN_MOCO.WARMUP_EPOCHS", epochs_without_neighbors(cfg), iterations_per_epoch, cfg.SOLVER.MAX_ITER
            )

    @classmethod
    def describe(cls, cfg: CfgNode, iterations_per_epoch: int, share: int) -> dict[str, object]:
        knn, wait = cfg.KNN_MOCO, epochs_without_neighbors(cfg)
        said = {"lambda": knn.WEIGHT, "k": knn.NUM_NEIGHBORS, "mining": knn.MINING, "enqueue_first": knn.ENQUEUE_FIRST}
        warmup = {"warmup_epochs": wait, "warmup_iterations": wait * iterations_per_epoch}
        return {**super().describe(cfg, iterations_per_epoch, share), **said, **warmup}

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        wait = epochs_without_neighbors(cfg) * iterations_per_epoch
        return [*super().hooks(cfg, iterations_per_epoch), NeighborLossSchedule(cfg.KNN_MOCO.WEIGHT, wait)]

    def queue_widths(self) -> dict[str, int]:
        """Rings of the queue: Q_h, and Q_g where neighbours are mined before the head."""
        return super().queue_widths() | ({"features": self.feature_dim} if self.mine_before_head else {})

    def losses(self, encoded: Encoded) -> dict[str, Tensor]:
        """L_inst and, once it has joined, lambda * L_nn, both on the queues as they are before this step.

        With ``enqueue_first`` neighbours alone are mined in the queues as they will be after it: the newest columns
        point at the scores of the rows that they will replace.
        """
        k = self.num_neighbors if self.neighbor_weight else 0
        mining = {}
        if k and (self.mine_before_head or self.enqueue_first):  # else by the scores themselves, in Q_h
            rows, ring = self._mining_space(encoded)
            new_keys = self.pending_keys[-1][ring]
            queue = self.queue.after_enqueue(ring, new_keys) if self.enqueue_first else getattr(self.queue, ring)
            mining = {"positives_g": rows, "queue_g": queue}
        options = {"temperature": self.temperature, "num_neighbors": k, "max_scores": self.max_scores}
        losses = chunked_losses(encoded.positives, encoded.anchors, self.queue.keys, **mining, **options)
        if k:
            if self.watched:
                get_event_storage().put_scalar("loss_nn_raw", losses["loss_nn"].item())
            losses["loss_nn"] = self.neighbor_weight * losses["loss_nn"]
        return losses

    def _mining_space(self, encoded: Encoded) -> tuple[Tensor, str]:
        """The positives' rows that neighbours are mined for, and the ring that they are mined in."""
        return (encoded.positives_g, "features") if self.mine_before_head else (encoded.positives, "keys")

    @torch.no_grad()
    def monitors(self, batch: dict, encoded: Encoded) -> dict[str, Tensor]:
        """MoCo's, and ``neighbor_purity`` where the data has classes, from the first step on."""
        values = super().monitors(batch, encoded)
        if "label" in batch:
            rows, ring = self._mining_space(encoded)
            neighbors = nearest_rows(rows[:, 0], getattr(self.queue, ring), self.num_neighbors, self.max_scores)
            values["neighbor_purity"] = neighbor_purity(neighbors, batch["label"].to(self.device), self.queue.labels)
        return values


def epochs_without_neighbors(cfg: CfgNode) -> int:
    """Epochs before L_nn joins the loss: none where neighbours are mined among this step's keys."""
    return 0 if cfg.KNN_MOCO.ENQUEUE_FIRST else cfg.KNN_MOCO.WARMUP_EPOCHS
