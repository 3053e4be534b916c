"""A hook from outside the tree: HOOKS ("WeightAverage",) keeps the mean of all weights in every checkpoint."""

from torch import Tensor

from revisit.engine.hooks import HOOK_REGISTRY
from revisit.modeling.distributed import unwrap

from detectron2.config import CfgNode
from detectron2.engine import HookBase


@HOOK_REGISTRY.register()
class WeightAverage(HookBase):
    """The mean of each parameter over all steps, which the checkpoint of a step holds with that step."""

    def __init__(self, cfg: CfgNode):
        self._steps = 0
        self._means: dict[str, Tensor] = {}

    def state_dict(self) -> dict:
        return {"steps": self._steps, "means": self._means}

    def load_state_dict(self, state: dict) -> None:
        self._steps, self._means = state["steps"], state["means"]

    def after_step(self) -> None:
        self._steps += 1
        for name, parameter in unwrap(self.trainer.model).named_parameters():
            now = parameter.detach().cpu()
            mean = self._means.setdefault(name, now.clone())
            mean += (now - mean) / self._steps
