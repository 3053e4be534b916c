"""The projection MLPs: MoCo's h (docs/method.md: Notation), and one with batch normalisation."""

from torch import nn


class ProjectionHead(nn.Sequential):
    """h: linear Cg -> Cg, ReLU, linear Cg -> C, without BN. (B, Cg) float -> (B, C) float, not normalised."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__(
            nn.Linear(in_dim, in_dim),
            nn.ReLU(inplace=True),
            nn.Linear(in_dim, out_dim),
        )


class BNProjectionHead(nn.Sequential):
    """Linear Cg -> hidden, BN, ReLU, linear hidden -> C. (B, Cg) float -> (B, C) float, not normalised.

    A BatchNorm2d of maps of one pixel, because ``group_batch_norm`` knows those.
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__(
            nn.Linear(in_dim, hidden_dim),
            nn.Unflatten(1, (hidden_dim, 1, 1)),
            nn.BatchNorm2d(hidden_dim),
            nn.Flatten(),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_dim, out_dim),
        )
