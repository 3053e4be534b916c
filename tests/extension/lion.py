"""Lion: SOLVER.OPTIMIZER Lion (Chen et al., arXiv 2302.06675, Algorithm 2)."""

import torch
from torch import optim

from revisit.engine.optimizers import OPTIMIZER_REGISTRY
from revisit.keys import declare, list_of, number

from detectron2.config import CfgNode

declare("SOLVER.LION_BETAS", (0.9, 0.99), "Of SOLVER.OPTIMIZER Lion.", list_of(number(0, 1), 2))


class SignMomentum(optim.Optimizer):
    """w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w), then m = beta2 m + (1 - beta2) g."""

    def __init__(self, groups: list[dict], lr: float, betas: tuple[float, float], weight_decay: float):
        super().__init__(groups, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                momentum = state.setdefault("momentum", torch.zeros_like(weight))
                direction = torch.lerp(weight.grad, momentum, beta1).sign()
                weight.sub_(group["lr"] * (direction + group["weight_decay"] * weight))
                momentum.lerp_(weight.grad, 1 - beta2)


@OPTIMIZER_REGISTRY.register()
def Lion(cfg: CfgNode, groups: list[dict]) -> optim.Optimizer:
    solver = cfg.SOLVER
    return SignMomentum(groups, lr=solver.BASE_LR, betas=solver.LION_BETAS, weight_decay=solver.WEIGHT_DECAY)
