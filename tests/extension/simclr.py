"""SimCLR (Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020).

The worked example of docs/extending.md: a method outside Revisit's tree, brought in by ``IMPORTS: ("simclr",)``.
"""

import torch
from torch import Tensor
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F

from revisit.config import adds_keys
from revisit.errors import expect
from revisit.modeling.meta_arch.pretraining import Pretraining, unit_rows
from revisit.modeling.monitors import feature_std
from revisit.modeling.projection_head import ProjectionHead

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage


@adds_keys
def add_simclr_keys(cfg: CfgNode) -> None:
    """SIMCLR.*: the values of SimCLR's paper."""
    cfg.SIMCLR = CfgNode()
    cfg.SIMCLR.TEMPERATURE = 0.5  # tau
    cfg.SIMCLR.EMBEDDING_DIM = 128  # C, width after the projection head


def nt_xent(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """The normalised temperature-scaled cross entropy, a scalar.

        L = mean_i [ logsumexp_{n != i} z_i . z_n / tau - z_i . z_partner(i) / tau ]

    Args:
        one, other: (B, C) unit rows of two views of the same B images; z is both, of all processes.
        temperature: tau > 0.
    """
    if comm.get_world_size() > 1:  # with gradient; each process's loss is that of the whole batch
        one, other = torch.cat(all_gather(one)), torch.cat(all_gather(other))
    rows = torch.cat([one, other])
    scores = rows @ rows.T / temperature
    scores = scores.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), -torch.inf)
    partners = torch.arange(len(rows), device=rows.device).roll(len(one))
    return F.cross_entropy(scores, partners)


@META_ARCH_REGISTRY.register()
class SimCLR(Pretraining):
    """Every other view of the batch is a negative: no queue and no momentum encoder, so no hook of its own."""

    TITLE = "SimCLR"
    HEADS = ("projection_head.",)
    KEYS = ("SIMCLR.*",)

    @configurable
    def __init__(self, *, embedding_dim: int, temperature: float, **shared: object):
        """``add_simclr_keys`` says what each option means."""
        super().__init__(**shared)
        self.temperature = temperature
        self.projection_head = ProjectionHead(self.feature_dim, embedding_dim)

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        return {
            **super().from_config(cfg),
            "embedding_dim": cfg.SIMCLR.EMBEDDING_DIM,
            "temperature": cfg.SIMCLR.TEMPERATURE,
        }

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        parts, small, tau = cfg.SOLVER.ACCUMULATION_STEPS, cfg.VIEWS.NUM_SMALL, cfg.SIMCLR.TEMPERATURE
        expect(parts == 1, f"SOLVER.ACCUMULATION_STEPS {parts}: SimCLR's negatives are the whole batch; expected 1")
        expect(small == 0, f"VIEWS.NUM_SMALL {small}: SimCLR has two large views; expected 0")
        expect(tau > 0, f"SIMCLR.TEMPERATURE {tau}: expected a positive number")

    @classmethod
    def describe(cls, cfg: CfgNode, iterations_per_epoch: int, share: int) -> dict[str, object]:
        return {"temperature": cfg.SIMCLR.TEMPERATURE, "negatives": 2 * cfg.SOLVER.IMS_PER_BATCH - 2}

    def encode(self, batch: dict) -> dict[str, Tensor]:
        """Unit rows (B, C) of both views, of one pass."""
        g = self.pooled(self.backbone, torch.cat([batch["anchor"], batch["positive"]]))
        one, other = unit_rows(self.projection_head(g)).chunk(2)
        return {"anchors": one, "positives": other}

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        encoded = self.encode(batch)
        one, other = encoded["anchors"], encoded["positives"]
        if self.watched:
            get_event_storage().put_scalar("embedding_std", feature_std(other).item())  # the collapse alarm reads it
        with torch.autocast(one.device.type, enabled=False):
            return {"loss_inst": nt_xent(one, other, self.temperature)}
