"""LARS for the backbone alone, SGD for all else: SOLVER.OPTIMIZER BackboneLARS (You et al., arXiv 1708.03888)."""

import torch
from torch import optim

from revisit.engine.optimizers import OPTIMIZER_REGISTRY
from revisit.keys import POSITIVE, declare

from detectron2.config import CfgNode

declare("SOLVER.TRUST", 0.001, "eta of SOLVER.OPTIMIZER BackboneLARS.", POSITIVE)


class PartlyLARS(optim.Optimizer):
    """v = m v + ratio (g + decay w), w -= lr v; ratio is trust |w| / (|g| + decay |w|), without ``trust`` 1."""

    def __init__(self, groups: list[dict], momentum: float):
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: torch.Tensor, group: dict) -> None:
        decay = group["weight_decay"]
        change = weight.grad + decay * weight
        if group["trust"]:
            size = weight.norm()
            change *= group["trust"] * size / (weight.grad.norm() + decay * size + 1e-12)
        speed = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        speed.mul_(group["momentum"]).add_(change)
        weight.sub_(group["lr"] * speed)


@OPTIMIZER_REGISTRY.register()
def BackboneLARS(cfg: CfgNode, groups: list[dict]) -> optim.Optimizer:
    parts = [part for group in groups for part in split(group, cfg.SOLVER.TRUST)]
    return PartlyLARS(parts, cfg.SOLVER.MOMENTUM)


def split(group: dict, trust: float) -> list[dict]:
    """A group as two, the second with ``trust``: the weights below ``backbone`` of two dimensions and more."""
    kinds: dict[bool, list] = {False: [], True: []}
    for name, weight in zip(group["names"], group["params"], strict=True):
        kinds[name.startswith("backbone.") and weight.ndim > 1].append((name, weight))
    parts = [(trust * adapts, *zip(*pairs, strict=True)) for adapts, pairs in kinds.items() if pairs]
    return [group | {"trust": trust, "names": list(names), "params": list(weights)} for trust, names, weights in parts]
