"""SwAV: from each view, predict the code of another one: its share in prototypes that a batch fills evenly.

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS 2020.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from projects.Objectives.all_views import AllViews, Objective
from revisit.errors import expect
from revisit.keys import POSITIVE, declare, integer, number
from revisit.modeling.bn_groups import whole_batch
from revisit.modeling.distributed import gather_rows, own_share, unwrap
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.neighbors import warn_of_late_start
from revisit.modeling.projection_head import BNProjectionHead
from revisit.modeling.queue import AlignedQueue

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY

# The values of SwAV's paper; the queue is of its run with batches of 256.
swav = partial(declare, read_by="SwAV")
swav("SWAV.PROTOTYPES", 3000, "Number of prototypes.", integer(1))
swav("SWAV.FROZEN_EPOCHS", 1, "Epochs at the beginning in which prototypes do not learn.", integer(unit="epochs"))
swav("SWAV.EMBEDDING_DIM", 128, "C, width after the projection head.", integer(1))
swav("SWAV.HIDDEN_DIM", 2048, "Hidden width of the projection head.", integer(1))
swav("SWAV.TEMPERATURE", 0.1, "tau.", POSITIVE)
# exp(-2 / 0.02) is not 0 in float32.
swav("SWAV.EPSILON", 0.05, "Of Sinkhorn: the smaller, the nearer are codes to one prototype.", number(0.02))
swav("SWAV.SINKHORN_ITERATIONS", 3, "Of Sinkhorn.", integer(1))
swav("SWAV.QUEUE_SIZE", 3840, "Earlier rows of each large view that help to fill prototypes; 0: none.", integer())
swav(
    "SWAV.QUEUE_FROM_EPOCH",
    15,
    "They are used from this epoch on, counted from 0, once the queue is full.",
    integer(unit="epochs"),
)


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes (N, P), rows of sum 1, whose columns have about equal sums: exp(scores / epsilon) with its columns scaled
    to 1 / P and its rows to 1 / N, in turns."""
    codes = (scores - scores.max()).div(epsilon).exp()
    for _ in range(iterations):
        codes = codes / codes.sum(dim=0) / codes.shape[1]
        codes = codes / codes.sum(dim=1, keepdim=True) / len(codes)
    return codes * len(codes)


def cross_entropy(codes: Tensor, logs: Tensor) -> Tensor:
    """The mean over rows of - sum_p code_p log_p, of codes (N, P) and logarithms of shares (N, P)."""
    return -(codes * logs).sum(dim=1).mean()


class PrototypeSchedule(HookBase):
    """Decides before a step whether prototypes learn and whether the queue counts. After it prototypes become unit
    rows, or what they were before."""

    def __init__(self, frozen: int, queue_from: int):
        self._frozen = frozen  # iterations
        self._queue_from = queue_from

    def before_step(self) -> None:
        model = unwrap(self.trainer.model)
        model.prototypes_learn = self.trainer.iter >= self._frozen
        model.queue_counts = self.trainer.iter >= self._queue_from
        self._before = model.prototypes.detach().clone()

    @torch.no_grad()
    def after_step(self) -> None:
        model = unwrap(self.trainer.model)
        model.prototypes.copy_(F.normalize(model.prototypes) if model.prototypes_learn else self._before)
        if model.views is not None:
            model.views.enqueue(**model.pending_views)


@META_ARCH_REGISTRY.register()
class SwAV(AllViews):
    """Swapped prediction: for both large views v, the mean over an image's other views w of the cross entropy between
    v's code and softmax(w . prototypes / tau). L_nn has the neighbours' codes, as they were in their own batch."""

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        options = cfg.SWAV
        self.options = options
        self.projection_head = BNProjectionHead(self.feature_dim, options.HIDDEN_DIM, options.EMBEDDING_DIM)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(options.PROTOTYPES, options.EMBEDDING_DIM)))
        self.views = None
        if options.QUEUE_SIZE:
            self.views = AlignedQueue(
                options.QUEUE_SIZE, anchors=options.EMBEDDING_DIM, positives=options.EMBEDDING_DIM
            )
        self.add_queue(options.PROTOTYPES)
        if self.queue is not None:
            self.queue.keys.fill_(1 / options.PROTOTYPES)  # codes that say nothing
        self.prototypes_learn = self.queue_counts = True
        group_batch_norm([self.backbone, self.projection_head], whole_batch(cfg))

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        batch = cfg.SOLVER.IMS_PER_BATCH
        size = cfg.SWAV.QUEUE_SIZE
        expect(not size or batch <= size, f"SWAV.QUEUE_SIZE {size}: expected 0, or at least the batch of {batch}")
        mining = cfg.NEIGHBORS.MINING
        expect(mining == "before_head", f"NEIGHBORS.MINING {mining}: SwAV's queue holds codes; expected before_head")

    @classmethod
    def warn(cls, cfg: CfgNode, num_images: int, share: int) -> None:
        super().warn(cfg, num_images, share)
        per_epoch = num_images // cfg.SOLVER.IMS_PER_BATCH
        consequences = {"FROZEN_EPOCHS": "prototypes never learn"}
        if cfg.SWAV.QUEUE_SIZE:
            consequences["QUEUE_FROM_EPOCH"] = "its queue is never used"
        for name, consequence in consequences.items():
            epochs = cfg.SWAV[name]
            warn_of_late_start(f"SWAV.{name} {epochs}", epochs * per_epoch, cfg.SOLVER.MAX_ITER, consequence)

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        frozen = cfg.SWAV.FROZEN_EPOCHS * iterations_per_epoch
        queue_from = cfg.SWAV.QUEUE_FROM_EPOCH * iterations_per_epoch
        full = math.ceil(cfg.SWAV.QUEUE_SIZE / cfg.SOLVER.IMS_PER_BATCH)  # asking the ring would make the host wait
        return [PrototypeSchedule(frozen, max(queue_from, full)), *super().hooks(cfg, iterations_per_epoch)]

    def objective(self, encoded: dict[str, Tensor]) -> Objective:
        views = torch.cat([encoded["anchors"][:, None], encoded["positives"]], dim=1)
        frozen = self.prototypes.detach()
        prototypes = frozen + float(self.prototypes_learn) * (self.prototypes - frozen)  # gradients of 0 while frozen
        logs = F.log_softmax(views @ prototypes.T / self.options.TEMPERATURE, dim=2)  # (B, 1 + L, P)
        large = {"anchors": views[:, 0], "positives": views[:, 1]}
        self.pending_views = {name: gather_rows(rows.detach()) for name, rows in large.items()}
        codes = [self.codes(rows, name) for name, rows in self.pending_views.items()]
        losses = []
        for v, code in enumerate(codes):
            others = (logs.sum(dim=1) - logs[:, v]) / (views.shape[1] - 1)
            losses.append(cross_entropy(code, others))

        def neighbor_loss(keys: Tensor) -> Tensor:
            return cross_entropy(keys.mean(dim=1), logs[:, 1:].flatten(0, 1))

        return Objective(sum(losses) / 2, codes[0], encoded["anchors_g"], neighbor_loss)

    @torch.no_grad()
    def codes(self, rows: Tensor, view: str) -> Tensor:
        """This process's (B/P, prototypes) of the (B, C) rows of a large view of all processes, with the queue's."""
        count = len(rows)
        if self.queue_counts and self.views is not None:
            rows = torch.cat([getattr(self.views, view), rows])
        codes = sinkhorn(rows @ self.prototypes.T, self.options.EPSILON, self.options.SINKHORN_ITERATIONS)
        return own_share(codes[-count:])
