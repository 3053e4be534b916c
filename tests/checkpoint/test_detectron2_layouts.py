"""Backbones out of Detectron2's own files, with the names and shapes that it gives them: the same features here."""

import pickle
import re
from pathlib import Path

import pytest
import torch
from checkpoints import backbone_of, load_into, random_resnet, run_checkpoint
from runs import assert_same
from tiny import tiny_config
from trees import refused

from revisit.checkpoint.backbone_file import write_tensors
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import BackboneWeights, as_rgb, convert
from revisit.checkpoint.flags import flags_path, flags_to_config, write_flags
from revisit.checkpoint.reading import read_checkpoint
from revisit.errors import UserError

from detectron2 import model_zoo
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import CfgNode
from detectron2.modeling import build_model

BGR = {
    "MODEL.PIXEL_MEAN": [103.53, 116.28, 123.675],
    "MODEL.PIXEL_STD": [1.0, 1.0, 1.0],
    "INPUT.FORMAT": "BGR",
    "MODEL.RESNETS.NORM": "FrozenBN",
}


def zoo_config(name: str) -> CfgNode:
    cfg = model_zoo.get_config(name)
    cfg.MODEL.DEVICE, cfg.MODEL.WEIGHTS = "cpu", ""
    cfg.MODEL.ROI_BOX_HEAD.FC_DIM, cfg.MODEL.RPN.CONV_DIMS = 8, [8]  # of heads, which no test here reads
    return cfg


def with_random_affine(model: torch.nn.Module) -> torch.nn.Module:
    """Scales and biases of its frozen batch norms as training might have left them, statistics as MSRA's files do."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.named_buffers():
        if name.endswith("norm.weight"):
            value.uniform_(0.5, 1.0, generator=generator)
        elif name.endswith("norm.bias"):
            value.uniform_(-0.2, 0.2, generator=generator)
    return model.eval()


def zoo_file(model: torch.nn.Module, path: Path) -> Path:
    arrays = {key: value.numpy() for key, value in model.state_dict().items()}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "Detectron2 Model Zoo"}))
    return path


def caffe2_names(tensors: dict[str, torch.Tensor]) -> dict:
    """A ResNet's tensors as MSRA's files call them: no statistics, a classifier, a bias of the first convolution."""
    blobs = {}
    for key, value in tensors.items():
        name = re.sub(r"^stem\.conv1\.norm", "res_conv1_bn", key)
        name = re.sub(r"^stem\.conv1", "conv1", name)
        name = name.replace("shortcut", "branch1").replace("conv1.", "branch2a.").replace("conv2.", "branch2b.")
        name = "conv1_w" if key == "stem.conv1.weight" else name.replace("conv3.", "branch2c.")
        name = name.replace(".norm.weight", "_bn_s").replace(".norm.bias", "_bn_b").replace("bn.weight", "bn_s")
        name = name.replace("bn.bias", "bn_b").replace(".weight", "_w").replace(".", "_")
        if "running" not in key and "num_batches" not in key:
            blobs[name] = value.numpy()
    ones = torch.ones(4).numpy()
    return {**blobs, "fc1000_w": ones, "fc1000_b": ones, "conv1_b": torch.zeros(64).numpy()}


def features_of(weights: BackboneWeights, images: torch.Tensor) -> torch.Tensor:
    """res5's map of the converted backbone over normalised images."""
    model = weights.description.build(flags_to_config(weights.flags)).eval()
    model.load_state_dict(weights.tensors, strict=False)
    return model(images)["res5"]


def is_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max()) and bool(expected.std() > 1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml",
        "COCO-Detection/faster_rcnn_R_50_C4_1x.yaml",
        "COCO-Detection/faster_rcnn_R_50_DC5_1x.yaml",
        "COCO-Detection/retinanet_R_50_FPN_1x.yaml",
    ],
)
@torch.no_grad()
def test_the_backbone_of_a_zoo_detector_gives_the_detectors_features(name, tmp_path):
    torch.manual_seed(0)
    cfg = zoo_config(name)
    cfg.MODEL.RESNETS.RES5_DILATION = 1  # adds no tensor
    detector = with_random_affine(build_model(cfg))
    converted = convert(read_checkpoint(zoo_file(detector, tmp_path / "model_final.pkl")))
    assert (converted.source, converted.title) == ("detectron2", "ResNet-50")
    assert converted.flags.items() >= {**BGR, "MODEL.RESNETS.STRIDE_IN_1X1": True}.items()
    images = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 60
    resnet = getattr(detector.backbone, "bottom_up", detector.backbone)
    resnet._out_features = ["res4"]
    expected = resnet(images)["res4"]
    res5 = getattr(resnet, "res5", None) or detector.roi_heads.res5
    assert is_close(features_of(converted, images), res5(expected))


@torch.no_grad()
def test_msras_weights_give_the_features_that_detectron2_loads_from_them(tmp_path):
    torch.manual_seed(0)
    cfg = zoo_config("COCO-Detection/faster_rcnn_R_50_DC5_1x.yaml")
    cfg.MODEL.RESNETS.RES5_DILATION = 1
    source, loaded = with_random_affine(build_model(cfg)), build_model(cfg).eval()
    path = tmp_path / "R-50.pkl"
    path.write_bytes(pickle.dumps(caffe2_names(source.backbone.state_dict())))
    DetectionCheckpointer(loaded).load(str(path))
    there, here = source.backbone.state_dict(), loaded.backbone.state_dict()
    learned = [key for key in there if "running" not in key]
    assert_same([here[key] for key in learned], [there[key] for key in learned])  # the names are Detectron2's own
    converted = convert(read_checkpoint(path))
    assert converted.source == "detectron2"
    assert converted.flags.items() >= BGR.items()
    images = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 60
    assert is_close(features_of(converted, images), loaded.backbone(images)["res5"])


def test_msras_weights_are_found_under_blobs_too():
    tensors = convert(backbone_of(random_resnet("resnet50"))).tensors
    blobs = caffe2_names(tensors)
    assert_same(convert({"blobs": {**blobs, "fc1000_w_momentum": blobs["fc1000_w"]}})[:2], convert(blobs)[:2])


def test_weights_that_the_zoo_has_of_torchvision_keep_torchvisions_flags():
    plain = convert(backbone_of(random_resnet("resnet50")))
    arrays = {**plain.tensors, "stem.fc.weight": torch.ones(2), "stem.fc.bias": torch.ones(2)}
    zoo = {"model": arrays, "__author__": "torchvision", "matching_heuristics": True}
    found = convert(zoo)
    assert_same(found[:2], plain[:2])
    assert found.source == "detectron2"
    del zoo["__author__"]
    with pytest.raises(UserError, match="use it as MODEL.WEIGHTS"):  # nothing says whose they are
        convert(zoo)


def in_detector(name: str, *, folded: bool = True) -> dict[str, torch.Tensor]:
    """The tensors of a torchvision ResNet as a detector with FPN has them."""
    tensors = convert(backbone_of(random_resnet(name))).tensors
    still = {"running_mean": torch.zeros_like, "running_var": torch.ones_like} if folded else {}
    kept = {key: still.get(key.rpartition(".")[2], torch.clone)(value) for key, value in tensors.items()}
    return {f"backbone.bottom_up.{key}": value for key, value in kept.items()}


def test_flags_are_those_of_the_zoos_configs():
    """Strides and pixel statistics that its configs of a ResNeXt state differ from those of MSRA's ResNets."""
    ours = convert({"model": in_detector("resnext50_32x4d")}).flags
    cfg = zoo_config("COCO-Detection/faster_rcnn_X_101_32x8d_FPN_3x.yaml")
    assert ours["MODEL.PIXEL_STD"] == cfg.MODEL.PIXEL_STD and ours["INPUT.FORMAT"] == cfg.INPUT.FORMAT
    assert ours["MODEL.RESNETS.STRIDE_IN_1X1"] is cfg.MODEL.RESNETS.STRIDE_IN_1X1 is False
    ours = convert({"model": in_detector("resnet50")}).flags
    cfg = zoo_config("COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml")
    assert ours["MODEL.PIXEL_STD"] == cfg.MODEL.PIXEL_STD and ours["MODEL.PIXEL_MEAN"] == cfg.MODEL.PIXEL_MEAN
    assert ours["MODEL.RESNETS.STRIDE_IN_1X1"] is cfg.MODEL.RESNETS.STRIDE_IN_1X1 is True
    assert ours["MODEL.RESNETS.NORM"] == "FrozenBN"


def test_a_detector_whose_batch_norm_was_trained_needs_the_config_that_says_its_flags():
    checkpoint = {"model": in_detector("resnet50", folded=False)}
    refused("nothing says which channel order, .* or --config-file with their config.yaml", convert, checkpoint)
    config = {"INPUT.FORMAT": "RGB", "MODEL.RESNETS.STRIDE_IN_1X1": False, "MODEL.OF_A_PROJECT.KEY": 3}
    flags = convert(checkpoint, stated=config).flags
    assert (flags["INPUT.FORMAT"], flags["MODEL.RESNETS.STRIDE_IN_1X1"]) == ("RGB", False)
    assert flags["MODEL.PIXEL_STD"] == [1.0, 1.0, 1.0] and "MODEL.RESNETS.NORM" not in flags  # Detectron2's default
    refused("no value for res4.*of a ResNet-101", convert, checkpoint, stated={**config, "MODEL.RESNETS.DEPTH": 101})


def test_group_norm_is_refused():
    blobs = {"res2_0_branch2a_w": torch.ones(2), "res2_0_branch2a_gn_s": torch.ones(2)}
    tensors = {key: value for key, value in in_detector("resnet18").items() if "running" not in key}
    for checkpoint in (blobs, {"model": tensors}):
        refused("the backbone has group norm, or batch norm without statistics", convert, checkpoint)


@torch.no_grad()
def test_turned_round_for_rgb_the_network_is_the_same():
    weights = convert({"model": in_detector("resnet18")})
    turned = as_rgb(weights)
    assert turned.flags["INPUT.FORMAT"] == "RGB" and as_rgb(turned) is turned
    assert turned.flags["MODEL.PIXEL_MEAN"] == BGR["MODEL.PIXEL_MEAN"][::-1]
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 60
    assert is_close(features_of(turned, images.flip(1)), features_of(weights, images))


def test_heads_are_left_and_what_has_no_place_in_the_backbone_is_refused():
    tensors = in_detector("resnet50")
    heads = {name: torch.ones(2) for name in ("proposal_generator.x", "roi_heads.y", "backbone.fpn_lateral2.weight")}
    assert_same(convert({"model": {**tensors, **heads}})[:2], convert({"model": tensors})[:2])
    with pytest.raises(UserError, match="cannot place res2.0.conv9.weight"):
        convert({"model": {**tensors, "backbone.bottom_up.res2.0.conv9.weight": torch.ones(2)}}, "detectron2")


DETECTOR = (
    "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.BACKBONE.NAME", "build_dilated_c5_backbone",
    "MODEL.RPN.IN_FEATURES", ["c5"], "MODEL.ROI_HEADS.IN_FEATURES", ["c5"],
    "MODEL.ROI_HEADS.NAME", "StandardROIHeads", "MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_FC", 1, "MODEL.ROI_BOX_HEAD.FC_DIM", 32,
)  # fmt: skip


def test_the_backbone_of_a_detector_that_was_finetuned_here_keeps_its_flags():
    checkpoint = run_checkpoint(*DETECTOR, iteration=399)
    for key, value in checkpoint["model"].items():
        if "running" in key:
            value += 0.5  # trained
    converted = convert(checkpoint, name="model_final.pth")
    assert converted.flags == checkpoint["flags"]
    assert converted.origin == "revisit: model_final.pth, 400 iterations"
    prefix = "backbone.bottom_up."
    expected = {key.removeprefix(prefix): v for key, v in checkpoint["model"].items() if key.startswith(prefix)}
    assert_same(converted.tensors, expected)


@pytest.fixture
def folded(tmp_path) -> Path:
    """A folded ResNet-18 of an eighth of its width, as tools/convert_to_d2.py leaves it."""
    content = run_checkpoint(*DETECTOR)
    content.pop("flags")
    converted = convert(content)
    path = tmp_path / "folded.pth"
    write_tensors(converted.tensors, path, matching_heuristics=True)
    write_flags(path, converted.flags, converted.origin)
    return path


AS_FOLDED = ("INPUT.FORMAT", "BGR", "MODEL.PIXEL_MEAN", BGR["MODEL.PIXEL_MEAN"], "MODEL.PIXEL_STD", [1.0, 1.0, 1.0])


def test_what_was_finetuned_from_folded_weights_stays_folded_and_files_without_flags_are_looked_at(folded, tmp_path):
    cfg = tiny_config(*DETECTOR, *AS_FOLDED, "MODEL.RESNETS.NORM", "FrozenBN", "OUTPUT_DIR", str(tmp_path))
    RevisitCheckpointer(load_into(cfg, folded), cfg).save("model_final", iteration=9)
    trained = tiny_config(*DETECTOR, *AS_FOLDED)
    refused("NORM is BN here and FrozenBN there", load_into, trained, tmp_path / "model_final.pth")
    flags_path(folded).unlink()
    refused("NORM is BN here and FrozenBN there", load_into, trained, folded)
    load_into(cfg, folded)


def test_folded_batch_norm_is_never_trained_silently(folded):
    load_into(tiny_config(*DETECTOR, *AS_FOLDED, "MODEL.RESNETS.NORM", "FrozenBN"), folded)
    with pytest.raises(UserError, match="NORM is BN here and FrozenBN there.* --data IMAGES"):
        load_into(tiny_config(*DETECTOR, *AS_FOLDED), folded)
    with pytest.raises(UserError, match="INPUT.FORMAT is RGB here and BGR there") as error:
        load_into(tiny_config(*DETECTOR, "MODEL.RESNETS.NORM", "FrozenBN"), folded)
    assert "recalibrate" not in str(error.value)
