"""Heads that turn one map of the backbone into a value for every pixel of its input: FCN and DeepLab-v3."""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from revisit.errors import expect
from revisit.keys import PIXELWISE, declare, integer, list_of, one_of
from revisit.modeling.backbone.resnet import INPUT

from detectron2.config import CfgNode
from detectron2.layers import ASPP, Conv2d, ShapeSpec, get_norm
from detectron2.modeling import SEM_SEG_HEADS_REGISTRY
from fvcore.nn import weight_init

DEEPLAB, MULTI_TASK = "deeplab", "multi_task_code"
DROPOUT = {DEEPLAB: 0.1, MULTI_TASK: 0.5}  # DeepLab's own, since the paper does not say; the published code's


pixelwise = partial(declare, read_by=PIXELWISE)
pixelwise("MODEL.SEM_SEG_HEAD.DILATION", 1, "Of RevisitFCNHead's 3 x 3 convolutions; 6 for VOC.", integer(1, 64))
pixelwise("MODEL.SEM_SEG_HEAD.ASPP_DILATIONS", (12, 24, 36), "Of RevisitDeepLabV3Head.", list_of(integer(1, 256), 3))
pixelwise(
    "MODEL.SEM_SEG_HEAD.VARIANT",
    DEEPLAB,
    "Of RevisitDeepLabV3Head: deeplab, or multi_task_code, the network of the code that the paper names for NYUD.",
    one_of(DEEPLAB, MULTI_TASK),
)


class PixelHead(nn.Module):
    """A head for Detectron2's SemanticSegmentor over the one map that MODEL.SEM_SEG_HEAD.IN_FEATURES names; subclasses
    build the layers that make the logits."""

    def __init__(self, cfg: CfgNode, input_shape: dict[str, ShapeSpec]):
        super().__init__()
        options = cfg.MODEL.SEM_SEG_HEAD
        names = list(options.IN_FEATURES)
        expect(
            len(names) == 1 and names[0] in input_shape,
            f"MODEL.SEM_SEG_HEAD.IN_FEATURES is {names}, expected one of {', '.join(input_shape)}",
        )
        (self.in_feature,) = names
        self.stride = input_shape[self.in_feature].stride
        self.ignore_value = options.IGNORE_VALUE
        self.loss_weight = options.LOSS_WEIGHT
        self.layers = nn.Sequential(*self.build_layers(options, input_shape[self.in_feature].channels))

    def build_layers(self, options: CfgNode, in_channels: int) -> list[nn.Module]:
        """The layers that turn a map (N, in_channels, h, w) into logits (N, NUM_CLASSES, h, w)."""
        raise NotImplementedError

    def predict(self, features: dict[str, Tensor], size: tuple[int, int] | None = None) -> Tensor:
        """Logits (N, classes, H, W) in float32, bilinearly enlarged to the size of the backbone's input.

        Revisit's backbones give that size. With others it is the map's size times the stride, cut to ``size`` (height,
        width) px, as Detectron2 cuts what it evaluates.
        """
        maps = features[self.in_feature]
        if INPUT in features:
            whole = size = features[INPUT].shape[-2:]
        else:
            covered = [self.stride * side for side in maps.shape[-2:]]
            size = size or covered
            whole = [max(pair) for pair in zip(covered, size, strict=True)]
        logits = F.interpolate(self.layers(maps).float(), size=whole, mode="bilinear", align_corners=False)
        return logits[:, :, : size[0], : size[1]]

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
    """MoCo's FCN (arXiv 1911.05722, A.1): two dilated 3x3 convolutions with BN and ReLU, then a 1x1 without bias."""

    def build_layers(self, options: CfgNode, in_channels: int) -> list[nn.Module]:
        channels = options.CONVS_DIM
        convs = [
            _conv_norm_relu(width, channels, 3, options.NORM, options.DILATION) for width in (in_channels, channels)
        ]
        for conv in convs:
            weight_init.c2_msra_fill(conv)
        predictor = Conv2d(channels, options.NUM_CLASSES, kernel_size=1, bias=False)
        nn.init.normal_(predictor.weight, std=0.01)
        return [*convs, predictor]


@SEM_SEG_HEADS_REGISTRY.register()
class RevisitDeepLabV3Head(PixelHead):
    """DeepLab-v3 (arXiv 1706.05587, Section 3.3): Detectron2's ASPP, projection, dropout, 1x1 classifier.

    In the variant ``multi_task_code``, the network of the code that the paper names for NYUD (docs/method.md: Paper and
    published code), image pooling has a norm too, and a 3x3 convolution with norm and ReLU precedes the classifier.

    Detectron2's DeepLab project registers a DeepLabV3Head, whose pooling window is fixed: it refuses crops of 513
    px and images of 480 x 640. This one pools over whatever it gets.
    """

    def build_layers(self, options: CfgNode, in_channels: int) -> list[nn.Module]:
        channels = options.CONVS_DIM
        norm = options.NORM
        aspp = ASPP(
            in_channels,
            channels,
            list(options.ASPP_DILATIONS),
            norm=norm,
            activation=F.relu,
            dropout=DROPOUT[options.VARIANT],
        )
        layers = [aspp]
        if options.VARIANT == MULTI_TASK:
            aspp.convs[-1][1] = _conv_norm_relu(in_channels, channels, 1, norm)
            layers.append(_conv_norm_relu(channels, channels, 3, norm))
            for conv in (aspp.convs[-1][1], layers[1]):
                weight_init.c2_msra_fill(conv)
        predictor = Conv2d(channels, options.NUM_CLASSES, kernel_size=1)
        nn.init.normal_(predictor.weight, std=0.01)
        nn.init.zeros_(predictor.bias)
        return [*layers, predictor]


def _conv_norm_relu(in_channels: int, channels: int, size: int, norm: str, dilation: int = 1) -> Conv2d:
    """A convolution of ``size`` x ``size`` that keeps the map's size, without bias."""
    return Conv2d(
        in_channels,
        channels,
        size,
        padding=dilation * (size // 2),
        dilation=dilation,
        bias=False,
        norm=get_norm(norm, channels),
        activation=F.relu,
    )


def check_head(cfg: CfgNode, num_processes: int) -> None:
    """Raise UserError where BN would have a single value of each channel to normalise: image pooling of one image."""
    options = cfg.MODEL.SEM_SEG_HEAD
    batch = cfg.SOLVER.IMS_PER_BATCH // cfg.SOLVER.ACCUMULATION_STEPS
    if options.NAME != RevisitDeepLabV3Head.__name__ or options.VARIANT != MULTI_TASK:
        return
    images = batch if "Sync" in options.NORM else batch // num_processes
    expect(
        images > 1 or options.NORM not in ("BN", "SyncBN", "naiveSyncBN", "nnSyncBN"),
        f"MODEL.SEM_SEG_HEAD.VARIANT {MULTI_TASK} normalises pooled maps over the images of a pass, which is one: "
        "expected a larger SOLVER.IMS_PER_BATCH, or NORM SyncBN over several processes",
    )
