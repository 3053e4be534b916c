"""What the heads for pixelwise prediction share: from one map of the backbone to a value for every pixel of its input."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from revisit.modeling.backbone.resnet import INPUT

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec


class PixelHead(nn.Module):
    """A head for Detectron2's SemanticSegmentor; subclasses say which layers make the logits.

    Args:
        layers: maps the feature (N, C, h, w) to logits (N, ``num_classes``, h, w).
        in_feature: name of the backbone's map.
        stride: of that map.
        ignore_value: label of pixels without class; they count nowhere.
        loss_weight: factor of the cross entropy.
    """

    def __init__(
        self, layers: nn.Module, *, in_feature: str, stride: int, ignore_value: int = 255, loss_weight: float = 1.0
    ):
        super().__init__()
        self.layers = layers
        self.in_feature = in_feature
        self.stride = stride
        self.ignore_value = ignore_value
        self.loss_weight = loss_weight

    def predict(self, features: dict[str, Tensor], size: tuple[int, int] | None = None) -> Tensor:
        """Logits (N, classes, H, W) in float32, bilinearly enlarged to the size of the backbone's input.

        Where the backbone does not tell that size (Revisit's does) it is ``size``, or the map's in whole strides.
        """
        maps = features[self.in_feature]
        if INPUT in features:
            size = features[INPUT].shape[-2:]
        elif size is None:
            size = [self.stride * side for side in maps.shape[-2:]]
        return F.interpolate(self.layers(maps).float(), size=size, mode="bilinear", align_corners=False)

    def forward(
        self, features: dict[str, Tensor], targets: Tensor | None = None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Detectron2's contract of a semantic segmentation head.

        Args:
            features: maps of the backbone.
            targets: int64 (N, H, W) class of each pixel, in training.

        Returns:
            (None, {"loss_sem_seg": mean cross entropy over the labelled pixels}) in training, else (logits, {}).
        """
        logits = self.predict(features, targets.shape[-2:] if targets is not None else None)
        if not self.training:
            return logits, {}
        loss = F.cross_entropy(logits, targets, ignore_index=self.ignore_value, reduction="sum")
        # A batch of void pixels alone has a loss of 0, not 0 / 0.
        labelled = (targets != self.ignore_value).sum().clamp(min=1)
        return None, {"loss_sem_seg": self.loss_weight * loss / labelled}


def head_options(cfg: CfgNode, shapes: dict[str, ShapeSpec]) -> dict[str, object]:
    """What every head takes from MODEL.SEM_SEG_HEAD and the shapes of the backbone's maps.

    Raises:
        ValueError: IN_FEATURES is not one of the backbone's maps.
    """
    options = cfg.MODEL.SEM_SEG_HEAD
    names = list(options.IN_FEATURES)
    if len(names) != 1 or names[0] not in shapes:
        raise ValueError(f"MODEL.SEM_SEG_HEAD.IN_FEATURES is {names}, expected one of {', '.join(shapes)}")
    shape = shapes[names[0]]
    return {
        "in_channels": shape.channels,
        "num_classes": options.NUM_CLASSES,
        "channels": options.CONVS_DIM,
        "norm": options.NORM,
        "in_feature": names[0],
        "stride": shape.stride,
        "ignore_value": options.IGNORE_VALUE,
        "loss_weight": options.LOSS_WEIGHT,
    }
