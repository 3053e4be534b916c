"""A temperature over time: HOOKS ("CosineTemperature",) (Kukleva et al., arXiv 2303.13664)."""

import math

from revisit.engine.hooks import HOOK_REGISTRY
from revisit.modeling.distributed import unwrap

from detectron2.config import CfgNode
from detectron2.engine import HookBase


@HOOK_REGISTRY.register()
class CosineTemperature(HookBase):
    """From MOCO.TEMPERATURE to half of it in the middle of the run, and back."""

    def __init__(self, cfg: CfgNode):
        self._highest = cfg.MOCO.TEMPERATURE

    def before_step(self) -> None:
        done = self.trainer.iter / self.trainer.max_iter  # 0 to 1
        share = 0.75 + 0.25 * math.cos(2 * math.pi * done)
        unwrap(self.trainer.model).temperature = self._highest * share
