"""FCN, DeepLab-v3 and depth against plain torch, over a backbone of torchvision's."""

import pytest
import torch
from checkpoints import maps_of, random_resnet
from tiny import tiny_config
from torch import nn
from torch.nn import functional as F

from revisit.checkpoint.convert import convert
from revisit.errors import UserError
from revisit.modeling.backbone.resnet import INPUT
from revisit.modeling.meta_arch.depth_estimator import depth_loss
from revisit.modeling.sem_seg.pixel_heads import PixelHead, RevisitDeepLabV3Head, RevisitFCNHead, check_head

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import SemanticSegmentor, build_model

MEAN, STD = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
SIZES = [(64, 96), (65, 81), (33, 50)]
FCN = ("MODEL.SEM_SEG_HEAD.NAME", "RevisitFCNHead")
DEEPLAB = ("MODEL.SEM_SEG_HEAD.NAME", "RevisitDeepLabV3Head")
DEPTH = (*DEEPLAB, "MODEL.META_ARCHITECTURE", "DepthEstimator", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", 1)


def config(*options: object, depth: int = 50) -> CfgNode:
    return tiny_config(
        "MODEL.META_ARCHITECTURE", "SemanticSegmentor",
        "MODEL.RESNETS.DEPTH", depth,
        "MODEL.RESNETS.STEM_OUT_CHANNELS", 64,
        "MODEL.RESNETS.RES2_OUT_CHANNELS", 256 if depth > 34 else 64,
        "MODEL.RESNETS.RES5_DILATION", 2,
        "MODEL.SEM_SEG_HEAD.IN_FEATURES", ["res5"],
        "MODEL.SEM_SEG_HEAD.NORM", "BN",
        "MODEL.SEM_SEG_HEAD.NUM_CLASSES", 5,
        "MODEL.SEM_SEG_HEAD.CONVS_DIM", 16,
        *options,
    )  # fmt: skip


def head_of(kind: type[PixelHead], shape: ShapeSpec, *options: object) -> PixelHead:
    cfg = config()
    cfg.MODEL.SEM_SEG_HEAD.merge_from_list(list(options))
    return kind(cfg, {"res5": shape})


def fill(head: nn.Module) -> nn.Module:
    """Random weights and BN statistics, so that nothing is an identity by chance."""
    generator = torch.Generator().manual_seed(2)
    for name, tensor in head.state_dict().items():
        if name.endswith("running_var"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        elif tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (2 / max(1, tensor[0].numel())) ** 0.5)
    return head


def dilated_torchvision(depth: int) -> nn.Module:
    """torchvision's ResNet, whose last stage has 3x3 convolutions of dilation 2, and stride 1."""
    resnet = random_resnet(f"resnet{depth}")
    for conv in (module for module in resnet.layer4.modules() if isinstance(module, nn.Conv2d)):
        conv.stride = (1, 1)
        if conv.kernel_size == (3, 3):
            conv.dilation = conv.padding = (2, 2)
    return resnet


def predictor(cfg: CfgNode, resnet: nn.Module) -> nn.Module:
    model = build_model(cfg).eval()
    assert isinstance(model, SemanticSegmentor) or cfg.MODEL.META_ARCHITECTURE == "DepthEstimator"
    model.backbone.load_state_dict(convert(resnet.state_dict()).tensors)
    return model


def image_of(size: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def normalized(image: torch.Tensor) -> torch.Tensor:
    return ((image.float() - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1))[None]


def conv_bn_relu(x: torch.Tensor, conv: nn.Module, **options: int) -> torch.Tensor:
    x, norm = F.conv2d(x, conv.weight, **options), conv.norm
    return F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-5))


def assert_close(found: torch.Tensor, logits: torch.Tensor, size: tuple[int, int]) -> None:
    """The output is the enlarged logits of a single image."""
    expected = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)[0]
    assert found.shape[-2:] == size and torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize("depth, dilation, size", [(50, 6, SIZES[0]), (50, 6, SIZES[1]), (18, 1, SIZES[2])])
@torch.no_grad()
def test_fcn_equals_plain_torch(depth, dilation, size):
    resnet = dilated_torchvision(depth)
    model = predictor(config(*FCN, "MODEL.SEM_SEG_HEAD.DILATION", dilation, depth=depth), resnet)
    *convs, last = fill(model.sem_seg_head).layers
    assert last.bias is None and len(convs) == 2
    x = maps_of(resnet, normalized(image_of(size)))
    for conv in convs:
        x = conv_bn_relu(x, conv, padding=dilation, dilation=dilation)
    assert_close(model([{"image": image_of(size)}])[0]["sem_seg"], F.conv2d(x, last.weight), size)


def plain_deeplab(head: RevisitDeepLabV3Head, x: torch.Tensor, dilations: tuple[int, ...]) -> torch.Tensor:
    aspp, last = head.layers
    point, *atrous, pooling = aspp.convs
    branches = [conv_bn_relu(x, point)]
    for conv, dilation in zip(atrous, dilations, strict=True):
        branches.append(conv_bn_relu(x, conv, padding=dilation, dilation=dilation))
    pooled = F.relu(F.conv2d(x.mean(dim=(2, 3), keepdim=True), pooling[1].weight, pooling[1].bias))
    branches.append(pooled.expand(-1, -1, *x.shape[-2:]))
    return F.conv2d(conv_bn_relu(torch.cat(branches, dim=1), aspp.project), last.weight, last.bias)


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_deeplab_and_depth_equal_plain_torch(size):
    resnet = dilated_torchvision(50)
    model = predictor(config(*DEEPLAB), resnet)
    head = fill(model.sem_seg_head)
    logits = plain_deeplab(head, maps_of(resnet, normalized(image_of(size))), (12, 24, 36))
    assert_close(model([{"image": image_of(size)}])[0]["sem_seg"], logits, size)

    estimator = predictor(config(*DEPTH), resnet)
    state = head.state_dict()
    state |= {name: state[name][:1] for name in ("layers.1.weight", "layers.1.bias")}
    estimator.head.load_state_dict(state)
    assert_close(estimator([{"image": image_of(size)}])[0]["depth"], logits[:, :1], size)


def plain_norm(x: torch.Tensor, state: dict, name: str, training: bool) -> torch.Tensor:
    mean, var = (state[f"{name}.norm.running_{what}"] for what in ("mean", "var"))
    if training:
        mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=False)
    scale = state[f"{name}.norm.weight"] / (var + 1e-5).sqrt()
    return (x - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + state[f"{name}.norm.bias"].view(-1, 1, 1)


def plain_multi_task_head(state: dict, x: torch.Tensor, dilations: tuple, training: bool) -> torch.Tensor:
    """By the head's tensors by name, in float64: ASPP whose pooling has BN, dropout 0.5, 3x3 with BN, 1x1."""

    def layer(x: torch.Tensor, name: str, dilation: int | None = None) -> torch.Tensor:
        options = {"padding": dilation, "dilation": dilation} if dilation else {}
        return plain_norm(F.conv2d(x, state[f"{name}.weight"], **options), state, name, training).clamp(min=0)

    branches = [layer(x, "layers.0.convs.0")]
    branches += [layer(x, f"layers.0.convs.{n}", dilation) for n, dilation in enumerate(dilations, start=1)]
    pooled = layer(x.mean(dim=(2, 3), keepdim=True), "layers.0.convs.4.1")
    x = layer(torch.cat([*branches, pooled.expand(-1, -1, *x.shape[2:])], dim=1), "layers.0.project")
    if training:
        x = x * 2 * F.dropout(torch.ones_like(x), 0.5).bool()  # dropout's generator alone
    return F.conv2d(layer(x, "layers.1", 1), state["layers.2.weight"], state["layers.2.bias"])


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_the_multi_task_head_equals_a_plain_evaluation_in_float64(training):
    options = ("CONVS_DIM", 8, "NUM_CLASSES", 3, "ASPP_DILATIONS", (2, 4, 6), "VARIANT", "multi_task_code")
    head = head_of(RevisitDeepLabV3Head, ShapeSpec(channels=6, stride=8), *options)
    head = fill(head).double().train(training)
    x = torch.randn(4, 6, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    results = []
    for forward in (head.layers, lambda x: plain_multi_task_head(state, x, (2, 4, 6), training)):
        torch.manual_seed(5)
        results.append(forward(x))
    assert torch.allclose(*results, rtol=1e-10, atol=1e-12) and results[0].shape == (4, 3, 9, 12)


@pytest.mark.parametrize(("kind", "key"), [(DEEPLAB, "sem_seg"), (DEPTH, "depth")])
@torch.no_grad()
def test_the_multi_task_variant_has_stride_8_and_its_head(kind, key):
    options = ("MODEL.RESNETS.RES4_DILATION", 2, "MODEL.RESNETS.RES5_DILATION", 4)
    options += ("MODEL.SEM_SEG_HEAD.VARIANT", "multi_task_code")
    model = build_model(config(*kind, *options, depth=18)).eval()
    head = model.head if key == "depth" else model.sem_seg_head
    assert head.stride == 8 and len(head.layers) == 3
    assert model([{"image": image_of((48, 64))}])[0][key].shape[-2:] == (48, 64)


@pytest.mark.parametrize("norm, processes, parts, fits", [
    ("BN", 2, 1, True), ("BN", 4, 1, False), ("BN", 2, 2, False), ("SyncBN", 4, 1, True), ("SyncBN", 4, 4, False),
    ("GN", 4, 4, True),
])  # fmt: skip
def test_a_pass_of_one_image_cannot_normalise_its_pooled_map(norm, processes, parts, fits):
    options = ("SOLVER.IMS_PER_BATCH", 4, "SOLVER.ACCUMULATION_STEPS", parts, "MODEL.SEM_SEG_HEAD.NORM", norm)
    check_head(config(*DEEPLAB, *options), processes)
    cfg = config(*DEEPLAB, *options, "MODEL.SEM_SEG_HEAD.VARIANT", "multi_task_code")
    if fits:
        check_head(cfg, processes)
        return
    with pytest.raises(
        UserError, match="multi_task_code normalises pooled maps over the images of a pass, which is one"
    ):
        check_head(cfg, processes)


def fcn_head() -> RevisitFCNHead:
    torch.manual_seed(0)
    options = ("CONVS_DIM", 8, "NUM_CLASSES", 3, "DILATION", 2)
    return head_of(RevisitFCNHead, ShapeSpec(channels=4, stride=16), *options)


def test_the_loss_is_the_mean_cross_entropy_of_the_labelled_pixels_and_0_without_any():
    head, features = fcn_head(), {"res5": torch.randn(2, 4, 3, 3), INPUT: torch.zeros(2, 0, 40, 33)}
    targets = torch.randint(0, 3, (2, 40, 33))
    targets[:, :7] = 255
    _, losses = head(features, targets)
    log_p = head.predict(features).double().log_softmax(dim=1)
    labelled = [(n, y, x) for n in range(2) for y in range(7, 40) for x in range(33)]
    expected = -sum(log_p[n, targets[n, y, x], y, x] for n, y, x in labelled) / len(labelled)
    assert losses["loss_sem_seg"].item() == pytest.approx(expected.item(), rel=1e-5)
    _, losses = head(features, torch.full((2, 40, 33), 255))
    losses["loss_sem_seg"].backward()
    assert losses["loss_sem_seg"].item() == 0
    assert all(not p.grad.any() for p in head.parameters())


def test_where_a_foreign_backbone_does_not_say_its_input_the_size_is_the_targets_or_in_whole_strides():
    logits, _ = fcn_head().eval()({"res5": torch.randn(1, 4, 3, 5)})
    assert logits.shape == (1, 3, 48, 80)
    _, losses = fcn_head()({"res5": torch.randn(2, 4, 3, 3)}, torch.zeros(2, 40, 33, dtype=torch.int64))
    assert losses["loss_sem_seg"] > 0


@torch.no_grad()
def test_what_a_foreign_backbone_learns_lies_where_it_is_evaluated():
    head, features = fcn_head(), {"res5": torch.randn(2, 4, 3, 3)}
    whole = head.predict(features)
    assert whole.shape == (2, 3, 48, 48) and torch.equal(head.predict(features, (40, 33)), whole[:, :, :40, :33])
    assert head.predict(features, (50, 33)).shape == (2, 3, 50, 33)  # of a backbone that leaves the last pixels out


def test_depth_is_learnt_over_a_foreign_backbone_from_crops_of_any_size(monkeypatch):
    model = build_model(config(*DEPTH, depth=18)).eval()
    sample = {"image": image_of((40, 33)), "depth": torch.rand(40, 33) + 1}
    maps = model.backbone(model.normalized(sample["image"])[None])
    del maps[INPUT]
    monkeypatch.setattr(model.backbone, "forward", lambda images: maps)
    (answer,) = model([sample])
    model.training = True
    expected = (answer["depth"] - sample["depth"]).square().mean()
    assert model([sample])["loss_depth"].item() == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
def test_depth_comes_in_the_size_that_is_asked_for():
    model, image = build_model(config(*DEPTH, depth=18)).eval(), image_of((32, 48))
    assert model([{"image": image}])[0]["depth"].shape == (32, 48)
    assert model([{"image": image, "height": 64, "width": 90}])[0]["depth"].shape == (64, 90)


def test_a_map_that_the_backbone_lacks_is_named():
    with pytest.raises(UserError, match=r"IN_FEATURES is \['res4'\], expected one of res5"):
        build_model(config(*FCN, "MODEL.SEM_SEG_HEAD.IN_FEATURES", ["res4"]))


@pytest.mark.parametrize("kind, expected", [("mse", (1 + 4 + 9) / 3), ("l1", (1 + 2 + 3) / 3)])
def test_depth_is_learnt_where_it_is_known(kind, expected):
    depth = torch.tensor([[[1.0, 0.0], [2.0, 4.0]]])
    predicted = torch.tensor([[[2.0, 9.0], [0.0, 1.0]]], requires_grad=True)
    loss = depth_loss(predicted, depth, kind)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert predicted.grad[0, 0, 1] == 0 and predicted.grad.count_nonzero() == 3
    assert depth_loss(predicted, torch.zeros(1, 2, 2), kind).item() == 0


@torch.no_grad()
def test_the_loss_of_depth_is_of_what_is_predicted_where_depth_is_known():
    model = build_model(config(*DEPTH, "MODEL.SEM_SEG_HEAD.LOSS_WEIGHT", 0.5, depth=18)).eval()
    record = {"image": image_of((32, 48)), "depth": torch.full((32, 48), 3.0)}
    record["depth"][:20] = 0
    known = model([record])[0]["depth"][20:].double()
    model.training = True  # the parts stay as they are: no dropout, the same statistics
    assert model([record])["loss_depth"].item() == pytest.approx(0.5 * (known - 3).square().mean().item(), rel=1e-5)
