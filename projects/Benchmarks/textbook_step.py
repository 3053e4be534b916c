"""The losses and the training step of kNN-MoCo as a user of torch writes them: eager, float32, all logits in memory.

What ``chunked_losses`` and the project's step are measured against: written to be correct, not to be slow.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize

from revisit.modeling.projection_head import ProjectionHead

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone


def textbook_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    positives_g: Tensor,
    queue_g: Tensor,
    *,
    temperature: float,
    num_neighbors: int,
) -> dict[str, Tensor]:
    """L_inst and L_nn as ``contrastive_losses`` has them, by cross-entropy over logits (B*L, 1 + K)."""
    queue = queue.clone()  # as MoCo's code: new keys enter the queue before backward needs the old ones
    p = positives.flatten(0, 1)
    a = anchors.repeat_interleave(positives.shape[1], dim=0)
    own = (p * a).sum(dim=1, keepdim=True)
    negatives = p @ queue.T
    logits = torch.cat([own, negatives], dim=1) / temperature
    loss_inst = cross_entropy(logits, torch.zeros(len(p), dtype=torch.int64, device=p.device))
    with torch.no_grad():
        neighbors = (positives_g.flatten(0, 1) @ queue_g.T).topk(num_neighbors, dim=1).indices
    log_shares = log_softmax(negatives / temperature, dim=1)
    loss_nn = -log_shares.gather(1, neighbors).mean()
    return {"loss_inst": loss_inst, "loss_nn": loss_nn}


class TextbookEncoder(nn.Module):
    """(B, 3, H, W) float images -> g (B, Cg) and h (B, C), unit rows."""

    def __init__(self, cfg: CfgNode):
        super().__init__()
        self.backbone = build_backbone(cfg)
        ((self.feature, shape),) = self.backbone.output_shape().items()
        self.feature_dim = shape.channels
        self.head = ProjectionHead(shape.channels, cfg.MOCO.EMBEDDING_DIM)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        g = self.backbone(images)[self.feature].mean(dim=(2, 3))
        return normalize(g, dim=1), normalize(self.head(g), dim=1)


class TextbookStep:
    """Call it with a batch of float views, ``anchor``, ``positive`` (B, 3, H, W) and ``small`` (B, N, 3, h, w), on the
    host; returns the loss."""

    def __init__(self, cfg: CfgNode):
        self._device = torch.device(cfg.MODEL.DEVICE)
        self.encoder = TextbookEncoder(cfg).to(self._device)
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        solver, moco, knn = cfg.SOLVER, cfg.MOCO, cfg.KNN_MOCO
        self._optimizer = torch.optim.SGD(
            self.encoder.parameters(), solver.BASE_LR, momentum=solver.MOMENTUM, weight_decay=solver.WEIGHT_DECAY
        )
        self._momentum, self._neighbor_weight = moco.MOMENTUM, knn.WEIGHT
        self._options = {"temperature": moco.TEMPERATURE, "num_neighbors": knn.NUM_NEIGHBORS}
        widths = (self.encoder.feature_dim, moco.EMBEDDING_DIM)
        self.queue_g, self.queue = (
            normalize(torch.randn(moco.QUEUE_SIZE, width, device=self._device), dim=1) for width in widths
        )
        self._pointer = 0

    def __call__(self, batch: dict[str, Tensor]) -> float:
        batch = {name: views.to(self._device) for name, views in batch.items()}
        with torch.no_grad():
            for mean, value in zip(self.momentum_encoder.parameters(), self.encoder.parameters(), strict=True):
                mean.data = mean.data * self._momentum + value.data * (1 - self._momentum)
            anchors_g, anchors = self.momentum_encoder(batch["anchor"])
        g, h = (rows[:, None] for rows in self.encoder(batch["positive"]))
        if "small" in batch:
            small = [rows.unflatten(0, batch["small"].shape[:2]) for rows in self.encoder(batch["small"].flatten(0, 1))]
            g, h = torch.cat([g, small[0]], dim=1), torch.cat([h, small[1]], dim=1)
        losses = textbook_losses(h, anchors, self.queue, g, self.queue_g, **self._options)
        loss = losses["loss_inst"] + self._neighbor_weight * losses["loss_nn"]
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._enqueue(anchors_g, anchors)
        return loss.item()

    def _enqueue(self, anchors_g: Tensor, anchors: Tensor) -> None:
        places = torch.arange(self._pointer, self._pointer + len(anchors), device=self._device) % len(self.queue)
        self.queue_g[places], self.queue[places] = anchors_g, anchors
        self._pointer = (self._pointer + len(anchors)) % len(self.queue)
