"""The base class of every pretraining method.

A method is a Detectron2 meta-architecture in a file of its own, with its config keys, losses and hooks. No other file
knows its name.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from revisit.compat.private_names import BatchNorm
from revisit.data.to_device import to_device
from revisit.data.views.annotation import ViewAnnotator
from revisit.errors import expect
from revisit.keys import Architecture, declare, integer
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.sees_pixels import SeesPixels

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.layers import FrozenBatchNorm2d
from detectron2.modeling import META_ARCH_REGISTRY, build_backbone
from detectron2.utils.events import get_event_storage

declare(
    "SOLVER.METRICS_PERIOD",
    0,
    "Steps between two readings of losses and monitors, for which the host waits for the device. A loss that is not "
    "finite is noticed as late, but before any checkpoint. 0: 20 on a GPU, 1 on a CPU.",
    integer(),
    may_change=True,
    read_by="Pretraining",
)


def metrics_period(cfg: CfgNode) -> int:
    """SOLVER.METRICS_PERIOD, decided."""
    return cfg.SOLVER.METRICS_PERIOD or (1 if cfg.MODEL.DEVICE == "cpu" else 20)


class Pretraining(SeesPixels, Architecture):
    """An encoder g, the ``backbone``, that learns from views; subclasses say by which losses.

    A part named ``...backbone`` starts from the backbone of MODEL.WEIGHTS; converted weights are those of ``backbone``.

    In training ``forward`` takes a ViewBatch and returns ``training_losses``. It changes nothing but parameters'
    gradients. ``hooks`` change a queue or a momentum encoder after the optimiser's step, so that a checkpoint holds one
    moment.

    In evaluation it takes Detectron2's list of dicts with ``image``, (3, H, W) uint8 RGB of one size, and returns for
    each the ``feature`` g(x), (Cg,) float32, a unit row.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.backbone = build_backbone(cfg)
        kinds = {type(module) for module in self.backbone.modules()}
        expect(
            FrozenBatchNorm2d not in kinds or any(issubclass(kind, BatchNorm) for kind in kinds),
            "MODEL.RESNETS.NORM is FrozenBN, whose statistics stay as they are: expected BN or SyncBN",
        )
        *_, (self.feature, shape) = self.backbone.output_shape().items()  # the last map
        self.feature_dim = shape.channels
        self.metrics_period = metrics_period(cfg)

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        """Raise UserError where a run would be silently wrong; ``share`` images are a process's batch."""

    @classmethod
    def warn(cls, cfg: CfgNode, num_images: int, share: int) -> None:
        """Log a warning about each key that has less effect than it states.

        Args:
            num_images: images of the training.
            share: images of a process's batch.
        """

    @classmethod
    def iterations_before_learning(cls, cfg: CfgNode) -> int:
        """How many iterations at the beginning have a learning rate of 0, before the schedule begins."""
        return 0

    @classmethod
    def view_annotator(cls, cfg: CfgNode) -> ViewAnnotator:
        """What it adds to views besides their pixels: nothing."""
        return ViewAnnotator()

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        """Hooks that run directly after the optimiser's step and the learning rate's, in this order."""
        return []

    def rate_factors(self) -> dict[str, float]:
        """By name of a parameter, what its learning rate is multiplied by; 1 by default."""
        return {}

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        """Scalars by name; their sum is the loss."""
        raise NotImplementedError

    def forward(self, batch: dict | list[dict]) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        if self.training:
            on_device = {
                name: to_device(value, self.device) if isinstance(value, Tensor) else value
                for name, value in batch.items()
            }
            return self.training_losses(on_device)
        images = torch.stack([to_device(record["image"], self.device) for record in batch])
        with torch.no_grad():
            return [{"feature": row} for row in unit_rows(self.pooled(self.backbone, images))]

    def feature_map(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """The last map of g, or of another ``backbone``; (B, 3, H, W) uint8 RGB -> (B, Cg, h, w)."""
        return backbone(self.normalized(images))[self.feature]

    def pooled(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """``feature_map`` averaged over its pixels, (B, Cg)."""
        return self.feature_map(backbone, images).mean(dim=(2, 3))

    def rows_of(self, passes: list[Tensor], head: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Unit rows of views by resolution, (B, n, 3, H, W), after a head and before it: (B, V, C) and (B, V, Cg)."""
        rows, rows_g = [], []
        for views in passes:
            g = self.pooled(self.backbone, views.flatten(0, 1))
            rows.append(unit_rows(head(g)).unflatten(0, views.shape[:2]))
            rows_g.append(unit_rows(g).unflatten(0, views.shape[:2]))
        return torch.cat(rows, dim=1), torch.cat(rows_g, dim=1)

    @property
    def watched(self) -> bool:
        """Whether this is one of the steps, every SOLVER.METRICS_PERIOD-th, whose monitors are read."""
        return (get_event_storage().iter + 1) % self.metrics_period == 0


def unit_rows(x: Tensor) -> Tensor:
    """Rows divided by their Euclidean norm, in float32 under autocast."""
    return F.normalize(at_least_float32(x), dim=-1)


def positive_passes(batch: dict) -> list[Tensor]:
    """The positives of a ViewBatch by resolution: the large one (B, 1, 3, H, W), then (B, N, 3, h, w) if there are any.

    Each is a pass of its own, so that BN statistics do not mix large and small crops (docs/method.md: One step).
    """
    large = batch["positive"][:, None]
    return [large, batch["small"]] if "small" in batch else [large]


def all_passes(batch: dict) -> list[Tensor]:
    """All views of a ViewBatch by resolution: the large ones (B, 2, 3, H, W), anchors first, then the small ones
    (B, N, 3, h, w) if there are any."""
    large = torch.stack([batch["anchor"], batch["positive"]], dim=1)
    return [large, batch["small"]] if "small" in batch else [large]


def method_of(cfg: CfgNode) -> type[Pretraining] | None:
    """The method that MODEL.META_ARCHITECTURE names; None where it names another kind of network, or nothing known."""
    return {cls.__name__: cls for cls in methods()}.get(cfg.MODEL.META_ARCHITECTURE)


def methods() -> list[type[Pretraining]]:
    """Every registered method, subclasses before what they extend."""
    subclasses = [cls for _, cls in META_ARCH_REGISTRY if isinstance(cls, type) and issubclass(cls, Pretraining)]
    return sorted(subclasses, key=lambda cls: -len(cls.__mro__))
