"""kNN-MoCo in whose queue an image's own older rows are neither negatives nor neighbours: OtherImages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.modeling.distributed import gather_rows
from revisit.modeling.losses.contrastive import info_nce
from revisit.modeling.meta_arch.knn_moco import KNNMoCo
from revisit.modeling.meta_arch.moco import Encoded

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY


@dataclass(frozen=True)
class EncodedImages(Encoded):
    index: Tensor | None = None  # (B,) int64, of the images


@META_ARCH_REGISTRY.register()
class OtherImages(KNNMoCo):
    """All B x L x K scores are in memory at once. The monitors count an image's own rows too."""

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.register_buffer("image_of_row", torch.full((self.queue.length,), -1))  # in checkpoints, as all buffers

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        expect(not cfg.NEIGHBORS.ENQUEUE_FIRST, "NEIGHBORS.ENQUEUE_FIRST mines among own rows: expected False")

    def keep_keys(self, batch: dict, rows: dict[str, Tensor]) -> None:
        super().keep_keys(batch, rows | {"index": gather_rows(batch["index"])})

    def enqueue(self, rows: dict[str, Tensor]) -> None:
        index = rows.pop("index")
        self.image_of_row[self.queue.next_rows(len(index))] = index
        super().enqueue(rows)

    def encode_positives(self, batch: dict) -> Encoded:
        return EncodedImages(**vars(super().encode_positives(batch)), index=batch["index"])

    def losses(self, encoded: EncodedImages) -> dict[str, Tensor]:
        own = encoded.index[:, None, None] == self.image_of_row  # (B, 1, K)
        with torch.autocast(self.device.type, enabled=False):
            p = encoded.positives / self.temperature
            scores = (p @ self.queue.keys.to(p.dtype).T).masked_fill(own, -torch.inf)  # (B, L, K)
            lse = scores.logsumexp(dim=2)
            losses = {"loss_inst": info_nce((p * encoded.anchors[:, None]).sum(dim=2), lse)}
            if self.neighbor_weight:
                rows, ring = self.mining_space(encoded.positives, encoded.positives_g)
                cosines = rows.detach() @ getattr(self.queue, ring).to(rows.dtype).T
                nearest = cosines.masked_fill(own, -torch.inf).topk(self.num_neighbors, dim=2).indices
                losses["loss_nn"] = self.weighted((lse - scores.gather(2, nearest).mean(dim=2)).mean())
        return losses
