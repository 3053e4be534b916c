"""Heads that turn one map of the backbone into a value for every pixel of its input: FCN and DeepLab-v3."""

from torch import Tensor, nn
from torch.nn import functional as F

from revisit.errors import expect
from revisit.keys import PIXELWISE, declare, each, one_of, whole
from revisit.modeling.backbone.resnet import INPUT

from detectron2.config import CfgNode, configurable
from detectron2.layers import ASPP, Conv2d, ShapeSpec, get_norm
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from fvcore.nn import weight_init

DEEPLAB, MULTI_TASK = "deeplab", "multi_task_code"
DROPOUT = {DEEPLAB: 0.1, MULTI_TASK: 0.5}  # DeepLab's own, since the paper does not say; the published code's


declare(
    "MODEL.SEM_SEG_HEAD.DILATION",
    1,
    "Of RevisitFCNHead's 3 x 3 convolutions; 6 for VOC.",
    whole(1, 64),
    read_by=PIXELWISE,
)
declare(
    "MODEL.SEM_SEG_HEAD.ASPP_DILATIONS",
    (12, 24, 36),
    "Of RevisitDeepLabV3Head.",
    each(whole(1, 256), 3),
    read_by=PIXELWISE,
)
declare(
    "MODEL.SEM_SEG_HEAD.VARIANT",
    "deeplab",
    "Of RevisitDeepLabV3Head: deeplab, or multi_task_code, the network of the code that the paper names for NYUD.",
    one_of("deeplab", "multi_task_code"),
    read_by=PIXELWISE,
)


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

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict[str, object]:
        """What every head takes from MODEL.SEM_SEG_HEAD and the shapes of the backbone's maps: ``in_channels`` of the
        map, ``num_classes`` logits per pixel, ``channels`` in between, Detectron2's name of the ``norm``, and so on.

        Raises:
            UserError: IN_FEATURES is not one of the backbone's maps.
        """
        options = cfg.MODEL.SEM_SEG_HEAD
        names = list(options.IN_FEATURES)
        expect(
            len(names) == 1 and names[0] in input_shape,
            f"MODEL.SEM_SEG_HEAD.IN_FEATURES is {names}, expected one of {', '.join(input_shape)}",
        )
        shape = input_shape[names[0]]
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

    def predict(self, features: dict[str, Tensor], size: tuple[int, int] | None = None) -> Tensor:
        """Logits (N, classes, H, W) in float32, bilinearly enlarged to the size of the backbone's input.

        Where the backbone does not say that size (Revisit's does) it is ``size``, or the map's in whole strides.
        """
        maps = features[self.in_feature]
        if INPUT in features:
            size = features[INPUT].shape[-2:]
        size = size or [self.stride * side for side in maps.shape[-2:]]
        return F.interpolate(self.layers(maps).float(), size=size, mode="bilinear", align_corners=False)

    def forward(
        self, features: dict[str, Tensor], targets: Tensor | None = None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Detectron2's contract: maps of the backbone and, in training, int64 (N, H, W) classes of the pixels ->
        (None, {"loss_sem_seg": mean cross entropy over the labelled pixels}) in training, else (logits, {})."""
        logits = self.predict(features, targets.shape[-2:] if targets is not None else None)
        if not self.training:
            return logits, {}
        loss = F.cross_entropy(logits, targets, ignore_index=self.ignore_value, reduction="sum")
        # A batch of void pixels alone has a loss of 0, not 0 / 0.
        labelled = (targets != self.ignore_value).sum().clamp(min=1)
        return None, {"loss_sem_seg": self.loss_weight * loss / labelled}


@SEM_SEG_HEADS_REGISTRY.register()
class RevisitFCNHead(PixelHead):
    """MoCo's FCN (arXiv 1911.05722, A.1): two dilated 3x3 convolutions with BN and ReLU, then a 1x1 without bias.

    Args:
        channels: of the two convolutions (configs/segmentation/voc_fcn_R50.yaml: 256).
        dilation: of the two convolutions; 6 for VOC, 1 for Cityscapes.
        options: of PixelHead. ``PixelHead.from_config`` says what the others are.
    """

    @configurable
    def __init__(
        self, *, in_channels: int, num_classes: int, channels: int, dilation: int, norm: str, **options: object
    ):
        convs = [_conv_norm_relu(width, channels, 3, norm, dilation) for width in (in_channels, channels)]
        for conv in convs:
            weight_init.c2_msra_fill(conv)
        predictor = Conv2d(channels, num_classes, kernel_size=1, bias=False)
        nn.init.normal_(predictor.weight, std=0.01)
        super().__init__(nn.Sequential(*convs, predictor), **options)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict[str, object]:
        """From MODEL.SEM_SEG_HEAD."""
        return {**super().from_config(cfg, input_shape), "dilation": cfg.MODEL.SEM_SEG_HEAD.DILATION}


@SEM_SEG_HEADS_REGISTRY.register()
class RevisitDeepLabV3Head(PixelHead):
    """DeepLab-v3 (arXiv 1706.05587, Section 3.3): Detectron2's ASPP, projection, dropout, 1x1 classifier.

    In the variant ``multi_task_code``, the network of the code that the paper names for NYUD (docs/method.md: Paper and
    published code), image pooling has a norm too, and a 3x3 convolution with norm and ReLU precedes the classifier.

    Detectron2's DeepLab project registers a DeepLabV3Head, whose pooling window is fixed: it refuses crops of 513
    px and images of 480 x 640. This one pools over whatever it gets.

    Args:
        channels: of every branch and of the projection (configs/segmentation/nyud_deeplab_R50.yaml: 256).
        dilations: of the three 3x3 convolutions; 12, 24, 36 there.
        norm: of all layers but, in ``deeplab``, image pooling, whose map is 1 x 1.
        variant: ``deeplab`` or ``multi_task_code``.
        options: of PixelHead. ``PixelHead.from_config`` says what the others are.
    """

    @configurable
    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        channels: int,
        dilations: list[int],
        norm: str,
        variant: str = DEEPLAB,
        **options: object,
    ):
        aspp = ASPP(in_channels, channels, dilations, norm=norm, activation=F.relu, dropout=DROPOUT[variant])
        layers = [aspp]
        if variant == MULTI_TASK:
            aspp.convs[-1][1] = _conv_norm_relu(in_channels, channels, 1, norm)
            layers.append(_conv_norm_relu(channels, channels, 3, norm))
            for conv in (aspp.convs[-1][1], layers[1]):
                weight_init.c2_msra_fill(conv)
        predictor = Conv2d(channels, num_classes, kernel_size=1)
        nn.init.normal_(predictor.weight, std=0.01)
        nn.init.zeros_(predictor.bias)
        super().__init__(nn.Sequential(*layers, predictor), **options)

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict[str, object]:
        """From MODEL.SEM_SEG_HEAD."""
        options = cfg.MODEL.SEM_SEG_HEAD
        mine = {"dilations": list(options.ASPP_DILATIONS), "variant": options.VARIANT}
        return {**super().from_config(cfg, input_shape), **mine}


def _conv_norm_relu(in_channels: int, channels: int, size: int, norm: str, dilation: int = 1) -> Conv2d:
    """A convolution of ``size`` x ``size`` that keeps the map's size, without bias."""
    form = {"kernel_size": size, "padding": dilation * (size // 2), "dilation": dilation, "bias": False}
    return Conv2d(in_channels, channels, norm=get_norm(norm, channels), activation=F.relu, **form)


def check_head(cfg: CfgNode, num_processes: int) -> None:
    """Raise UserError where BN would have a single value of each channel to normalise: image pooling of one image."""
    options, batch = cfg.MODEL.SEM_SEG_HEAD, cfg.SOLVER.IMS_PER_BATCH // cfg.SOLVER.ACCUMULATION_STEPS
    if options.NAME != RevisitDeepLabV3Head.__name__ or options.VARIANT != MULTI_TASK:
        return
    images = batch if "Sync" in options.NORM else batch // num_processes
    expect(
        images > 1 or options.NORM not in ("BN", "SyncBN", "naiveSyncBN", "nnSyncBN"),
        f"MODEL.SEM_SEG_HEAD.VARIANT {MULTI_TASK} normalises pooled maps over the images of a pass, which is one here: "
        "expected a larger SOLVER.IMS_PER_BATCH, fewer ACCUMULATION_STEPS, or NORM SyncBN over several processes",
    )
