"""A temperature per view: MODEL.META_ARCHITECTURE ViewTemperatures is kNN-MoCo with VIEW_TEMPERATURES."""

import torch

from revisit.errors import expect
from revisit.keys import POSITIVE, declare, list_of
from revisit.modeling.meta_arch.knn_moco import KNNMoCo

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY

declare(
    "VIEW_TEMPERATURES",
    (0.2, 0.1, 0.1, 0.1, 0.1),
    "tau of the large positive, then of each small one.",
    list_of(POSITIVE),
    read_by="ViewTemperatures",
)


@META_ARCH_REGISTRY.register()
class ViewTemperatures(KNNMoCo):
    """Both losses have the positive's own temperature; the monitors do not depend on it."""

    unread = ("MOCO.TEMPERATURE",)

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        del self.temperature
        values = torch.tensor(cfg.VIEW_TEMPERATURES)[:, None]  # (L, 1), as contrastive_losses takes them
        self.register_buffer("temperature", values, persistent=False)

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        found, expected = len(cfg.VIEW_TEMPERATURES), 1 + cfg.VIEWS.NUM_SMALL
        expect(found == expected, f"VIEW_TEMPERATURES has {found} values, expected {expected}: 1 + VIEWS.NUM_SMALL")
