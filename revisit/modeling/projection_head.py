"""The projection MLP h (docs/method.md: Notation)."""

from torch import nn


class ProjectionHead(nn.Sequential):
    """h: linear Cg -> Cg, ReLU, linear Cg -> C, without BN. (B, Cg) float -> (B, C) float, not normalised."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__(nn.Linear(in_dim, in_dim), nn.ReLU(inplace=True), nn.Linear(in_dim, out_dim))
