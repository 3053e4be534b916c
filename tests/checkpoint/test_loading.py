"""Converted weights in the models that start from them: whole, under their flags, for a family of one's own too."""

import importlib
import logging
import re
import subprocess
import sys
from functools import partial, reduce
from pathlib import Path

import pytest
import torch
import yaml
from checkpoints import load_into, moco, random_resnet, run_checkpoint, write_converted
from commands import ROOT, run
from PIL import Image
from runs import assert_same
from tiny import tiny_config, tiny_model
from trees import refused

from projects.Weights.export import model_card
from revisit import keys
from revisit.checkpoint.backbone_file import load_backbone, write_tensors
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.convert import convert
from revisit.checkpoint.flags import read_flags, write_flags
from revisit.checkpoint.sources import origin_of
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.keys import with_values
from revisit.modeling.backbone.description import BACKBONE_DESCRIPTIONS
from revisit.plugins import load_plugins

from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.modeling import BACKBONE_REGISTRY, build_model
from detectron2.modeling.meta_arch import RetinaNet, SemanticSegmentor
from detectron2.modeling.meta_arch.dense_detector import permute_to_N_HWA_K
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead

DOCUMENT = (ROOT / "docs/weights.md").read_text()


def detector_config(*options: object) -> CfgNode:
    return tiny_config(
        "MODEL.META_ARCHITECTURE", "GeneralizedRCNN",
        "MODEL.BACKBONE.NAME", "build_dilated_c5_backbone", "MODEL.RESNETS.RES5_DILATION", 2,
        "MODEL.RPN.IN_FEATURES", ["c5"], "MODEL.ROI_HEADS.IN_FEATURES", ["c5"],
        "MODEL.ROI_HEADS.NAME", "StandardROIHeads", "MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC", 1, "MODEL.ROI_BOX_HEAD.FC_DIM", 32, *options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint() -> dict:
    """Of a run whose BN statistics are not those of the start any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])
        found = run_checkpoint()
    for name, value in found["model"].items():
        if "running" in name:
            value.uniform_(0.5, 2)
    return found


@pytest.fixture
def weights(checkpoint, tmp_path) -> Path:
    return write_converted(checkpoint, tmp_path / "backbone.pth")


def backbone_of_run(checkpoint: dict) -> dict:
    return {k.removeprefix("backbone."): v for k, v in checkpoint["model"].items() if k.startswith("backbone.")}


def test_the_detectors_backbone_gives_the_very_features_of_the_pretrained_one(checkpoint, weights):
    detector = load_into(detector_config("MODEL.RESNETS.RES5_DILATION", 1), weights)
    pretrained = tiny_model().eval()
    pretrained.load_state_dict(checkpoint["model"])
    x = torch.randn(2, 3, 64, 96)
    assert torch.equal(pretrained.backbone(x)["res5"], detector.backbone.bottom_up(x)["res5"])


@pytest.mark.parametrize("source", ["SimCLR", "MoCo", "KNNMoCo"])
@pytest.mark.parametrize("method", ["DenseCL", "BYOL", "SimCLR"])
def test_a_checkpoint_of_any_method_starts_what_its_converted_backbone_would(source, method, tmp_path, caplog):
    content, cfg = (
        run_checkpoint("MODEL.META_ARCHITECTURE", source),
        tiny_config("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", 0),
    )
    torch.save(content, tmp_path / "model_final.pth")
    with caplog.at_level(logging.INFO):
        model = load_into(cfg, tmp_path / "model_final.pth")
    encoders = [name for name, _ in model.named_children() if name.endswith("backbone")]
    for encoder in encoders:
        assert_same(getattr(model, encoder).state_dict(), backbone_of_run(content))
    assert_same(model.state_dict(), load_into(cfg, write_converted(content, tmp_path / "backbone.pth")).state_dict())
    left = "momentum_backbone, momentum_projection_head, projection_head, queue" if "MoCo" in source else "projection_"
    assert f"the backbone starts {' and '.join(encoders)}; not taken: {left}" in caplog.text


def test_weights_of_a_run_that_diverged_are_refused(checkpoint, tmp_path):
    tensors = backbone_of_run(checkpoint)
    tensors["stem.conv1.weight"] = torch.full_like(tensors["stem.conv1.weight"], float("nan"))
    torch.save({"model": tensors, "matching_heuristics": True}, tmp_path / "nan.pth")
    with pytest.raises(UserError, match="nan.pth: stem.conv1.weight has values that are not finite"):
        load_into(detector_config(), tmp_path / "nan.pth")


ODD_NUMBERS = {
    "int8": (lambda value: (100 * value).to(torch.int8), "holds torch.int8: expected weights of floating point"),
    "complex": (lambda value: value.to(torch.complex64), "is a torch.complex64 tensor .*: expected plain numbers"),
    "float8": (lambda value: value.to(torch.float8_e4m3fn), "is a torch.float8_e4m3fn tensor .*: expected plain"),
    "sparse": (lambda value: value.to_sparse(), "is a .* tensor of layout torch.sparse_coo: expected plain numbers"),
    "meta": (lambda value: value.to("meta"), ".*: expected plain numbers"),
    "few": (lambda value: value[:1, :1, :1, :1].clone().expand(10**8, 10**4, 1, 1), r"claims .* and has fewer"),
}


@pytest.mark.parametrize("kind", ODD_NUMBERS)
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_a_model_starts_from_plain_numbers_alone(checkpoint, tmp_path, kind):
    """Codes of a quantised network, without their scales, would load as its weights."""
    change, message = ODD_NUMBERS[kind]
    tensors = backbone_of_run(checkpoint)
    tensors["stem.conv1.weight"] = change(tensors["stem.conv1.weight"])
    torch.save({"model": tensors, "matching_heuristics": True}, tmp_path / "odd.pth")
    refused(f"odd.pth: stem.conv1.weight {message}", load_into, detector_config(), tmp_path / "odd.pth")


@pytest.mark.parametrize("place", ["state_dict", "teacher"])
def test_a_checkpoint_of_another_program_is_to_be_converted_first(tmp_path, place):
    torch.save({place: {"module.conv1.weight": torch.zeros(1)}, "epoch": 3}, tmp_path / "moco.pth.tar")
    refused(
        f"moco.pth.tar has its tensors under {place}.*: convert it first, tools/convert_to_d2.py",
        load_into,
        detector_config(),
        tmp_path / "moco.pth.tar",
    )


@pytest.mark.parametrize("prefixes", [5, [1], "student."])
def test_names_in_a_file_that_are_none_are_refused_in_one_line(checkpoint, tmp_path, prefixes):
    torch.save({**checkpoint, "training_only": prefixes}, tmp_path / "odd.pth")
    refused("training_only has no names", load_into, detector_config(), tmp_path / "odd.pth")


def test_facts_of_a_training_that_are_no_words_are_left_out(checkpoint, tmp_path):
    torch.save({**checkpoint, "method": ["MoCo"]}, tmp_path / "odd.pth")
    assert load_backbone(tmp_path / "odd.pth").origin == "revisit: odd.pth"


def test_flags_with_channels_that_are_no_names_are_refused_in_one_line(checkpoint, tmp_path):
    torch.save({**checkpoint, "flags": {**checkpoint["flags"], "INPUT.CHANNELS": 5}}, tmp_path / "odd.pth")
    refused("flags describe no ResNet", load_backbone, tmp_path / "odd.pth")


@pytest.mark.parametrize("suffix", [".pth", ".pkl"])
def test_detectron2s_own_checkpointer_loads_the_weights_too(suffix, checkpoint, tmp_path):
    detector = build_model(detector_config())
    DetectionCheckpointer(detector).load(str(write_converted(checkpoint, tmp_path / f"backbone{suffix}")))
    assert_same(detector.backbone.bottom_up.state_dict(), backbone_of_run(checkpoint))


@pytest.mark.parametrize("kind", ["FPN", "C4"])
def test_docs_plain_detectron2_finds_every_backbone_tensor(kind, tmp_path):
    """Without this repository: a backbone that arrives in part only shows in a log that nobody reads."""
    (snippet,) = re.findall(r"```python\nimport revisit .*?\n(\nfrom detectron2 import.*?)```", DOCUMENT, re.DOTALL)
    assert len(snippet.strip().splitlines()) <= 12 and "revisit" not in snippet.replace("output/", "")
    torch.manual_seed(0)
    tensors = convert(random_resnet("resnet50").state_dict()).tensors
    write_converted({"model": random_resnet("resnet50").state_dict()}, tmp_path / "moco.pth")
    snippet = snippet.replace("output/", f"{tmp_path}/").replace("R_50_FPN", f"R_50_{kind}")
    names: dict = {}
    exec(snippet.replace("model = build", 'cfg.MODEL.DEVICE = "cpu"\nmodel = build'), names)
    found = names["model"].state_dict()
    prefixes = {"FPN": ("backbone.bottom_up.",), "C4": ("backbone.", "roi_heads.")}[kind]
    for name, value in tensors.items():
        places = [f"{prefix}{name}" for prefix in prefixes if f"{prefix}{name}" in found]
        assert len(places) == 1 and torch.equal(found[places[0]], value), name


def only_core(cfg):
    """The config without keys that projects and other tests have declared in this process."""
    cfg = cfg.clone()
    for name in [name for name, key in keys.declarations.KEYS.items() if not key.owner.startswith("revisit.")]:
        *sections, leaf = name.split(".")
        nodes = [reduce(getattr, sections[:depth], cfg) for depth in range(len(sections) + 1)]
        del nodes[-1][leaf]
        for section, node, parent in zip(sections[::-1], nodes[:0:-1], nodes[-2::-1], strict=True):
            if not node:
                del parent[section]
    return cfg


def test_docs_plain_detectron2_predicts_by_a_finetuned_detector(tmp_path):
    """In a process of its own, which has imported nothing."""
    (snippet,) = re.findall(r"```python\n(import revisit  # before.*?)```", DOCUMENT, re.DOTALL)
    narrow = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.ROI_BOX_HEAD.FC_DIM 16"
    sizes = "INPUT.MIN_SIZE_TEST 64 MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.0 MODEL.DEVICE cpu"
    cfg = make_config("configs/toy/detection.yaml", f"{narrow} {sizes}".split())
    (tmp_path / "config.yaml").write_text(only_core(cfg).dump())
    torch.save({"model": build_model(cfg).state_dict()}, tmp_path / "model_final.pth")
    Image.new("RGB", (80, 64), (200, 30, 90)).save(tmp_path / "photo.jpg")
    code = snippet.replace("output/own/detection/", f"{tmp_path}/").replace("photo.jpg", f"{tmp_path}/photo.jpg")
    code += "print('image', boxes.image_size, len(boxes) > 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert "image (64, 80) True" in done.stdout, done.stderr[-2000:]


def predicted(model: torch.nn.Module, names: list[str]) -> dict[str, list[torch.Tensor]]:
    """What the predictors say of noise, by the name of a class."""
    noise = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    if isinstance(model, RetinaNet):
        scores = permute_to_N_HWA_K(model.head.cls_score(noise(1, 256, 2, 2)), len(names))
        return {name: [scores[..., n]] for n, name in enumerate(names)}
    if isinstance(model, SemanticSegmentor):
        head = model.sem_seg_head
        layer = head.predictor if isinstance(head, SemSegFPNHead) else head.layers[-1]
        scores = layer(noise(1, layer.in_channels, 2, 2))
        return {name: [scores[:, n]] for n, name in enumerate(names)}
    heads = model.roi_heads
    scores, sides = heads.box_predictor(noise(3, heads.box_predictor.cls_score.in_features))
    sides = sides.unflatten(1, (-1, 4)).expand(-1, len(names), -1)
    masks = heads.mask_head.predictor(noise(3, 8, 2, 2)) if heads.mask_on else scores
    of_classes = {name: [scores[:, n], sides[:, n], masks[:, n]] for n, name in enumerate(names)}
    return of_classes | {"background": [scores[:, -1]]}


@pytest.mark.parametrize("kind", ["thing_classes", "stuff_classes"])
def test_a_network_keeps_its_predictors_for_data_that_have_its_classes_in_another_order(kind, tmp_path):
    load_plugins()
    classes, other = ["left", "dog", "cat", "owl"], ["cat", "owl", "left", "dog"]
    MetadataCatalog.get(f"{kind}_in_another_order").set(**{kind: other})
    counts = " ".join(f"MODEL.{name}.NUM_CLASSES 4" for name in ("ROI_HEADS", "RETINANET", "SEM_SEG_HEAD"))
    common = f"MODEL.DEVICE cpu {counts} OUTPUT_DIR {tmp_path}"
    maps = "MODEL.RESNETS.OUT_FEATURES ['res3','res4'] MODEL.FPN.IN_FEATURES ['res3','res4']"
    pyramid = f"MODEL.BACKBONE.NAME build_resnet_fpn_backbone {maps} MODEL.SEM_SEG_HEAD.IN_FEATURES ['p4']"
    detectors = {
        "detection/coco_mask_rcnn_R50_FPN": "MODEL.ROI_MASK_HEAD.CONV_DIM 8",
        "detection/coco_faster_rcnn_R50_FPN": "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG True",
        "detection/coco_retinanet_R50_FPN": "MODEL.RETINANET.NUM_CONVS 1",
    }
    segmentations = {
        "segmentation/voc_fcn_R50": "MODEL.SEM_SEG_HEAD.CONVS_DIM 8",
        "segmentation/nyud_deeplab_R50": "MODEL.SEM_SEG_HEAD.CONVS_DIM 8",
        "segmentation/cityscapes_fcn_R50": f"{pyramid} MODEL.SEM_SEG_HEAD.NAME SemSegFPNHead",
    }
    for recipe, own in (detectors if kind == "thing_classes" else segmentations).items():
        cfg = make_config(f"{recipe}.yaml", f"{common} {own}".split())
        torch.manual_seed(0)
        model = build_model(cfg)
        RevisitCheckpointer(model, with_values(cfg, {"DATASETS.TRAIN": ()})).save("detector", classes=classes)
        torch.manual_seed(1)
        cfg = with_values(cfg, {"DATASETS.TRAIN": (f"{kind}_in_another_order",)})
        started = build_model(cfg)
        RevisitCheckpointer(started, cfg).resume_or_load(str(tmp_path / "detector.pth"), resume=False)
        expected = predicted(model, classes)
        for name, values in predicted(started, other).items():
            assert all(map(torch.equal, values, expected[name])), (recipe, name)


def test_a_retinanet_fpn_starts_from_the_weights_within_its_wrapper(checkpoint, weights):
    name = ("MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.NAME", "build_retinanet_resnet_fpn_backbone")
    maps = ["res3", "res4", "res5"]
    basic = ("MODEL.RESNETS.RES2_OUT_CHANNELS", 64)  # Detectron2's builder of ResNet-18 has no other width
    content = run_checkpoint(*basic)
    cfg = tiny_config(*name, *basic, "MODEL.RESNETS.OUT_FEATURES", maps, "MODEL.FPN.IN_FEATURES", maps)
    model = load_into(cfg, write_converted(content, weights))
    assert_same(model.backbone.bottom_up.state_dict(), backbone_of_run(content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("INPUT.FORMAT", "BGR"), "INPUT.FORMAT is BGR here and RGB there"),
        (("MODEL.RESNETS.STRIDE_IN_1X1", True), "STRIDE_IN_1X1 is True here and False there"),
        (("MODEL.PIXEL_STD", [1.0, 1.0, 1.0]), "PIXEL_STD is"),
        (("MODEL.PIXEL_MEAN", [0.0, 0.0, 0.0]), "PIXEL_MEAN is"),
        (("MODEL.RESNETS.DEPTH", 34), "DEPTH is 34 here and 18 there"),
        (("MODEL.RESNETS.STEM_TYPE", "cifar"), "STEM_TYPE is cifar here and basic there"),
    ],
)
def test_finetuning_under_other_flags_is_refused_by_name(weights, options, message):
    refused(message, load_into, detector_config(*options), weights)


def test_one_missing_backbone_tensor_is_refused_unless_allowed(weights):
    content = torch.load(weights)
    del content["model"]["res4.1.conv2.weight"]
    torch.save(content, weights)
    lacking = "only 99 of 100 backbone tensors .*first without: backbone.bottom_up.res4.1.conv2.weight"
    refused(lacking, load_into, detector_config(), weights)
    load_into(detector_config("MODEL.ALLOW_PARTIAL_BACKBONE", True), weights)


@pytest.mark.parametrize("text", ["depth 50", "- 1", "{source: x}", "a: ["])
def test_an_unreadable_flag_file_is_named(text, tmp_path):
    (tmp_path / "backbone.yaml").write_text(text)
    refused(r"backbone.yaml is not a flag file", read_flags, tmp_path / "backbone.pth")


IMPORTS = "--imports tests.checkpoint.conv_net"  # as it is called from the repository


@pytest.fixture(autouse=True)
def conv_net(monkeypatch):
    """The module, whose registrations end with the test."""
    load_plugins()  # before the keys are copied: else those of plug-ins would end with the first test that loads them
    for registry in (BACKBONE_DESCRIPTIONS, BACKBONE_REGISTRY):
        monkeypatch.setattr(registry, "_obj_map", dict(registry._obj_map))
    declared = dict(keys.KEYS)
    monkeypatch.setattr(keys.declarations, "KEYS", declared)
    monkeypatch.setattr(keys.auto, "KEYS", declared)
    monkeypatch.delitem(sys.modules, "conv_net", raising=False)
    return importlib.import_module("conv_net")


@pytest.fixture
def undescribed(conv_net, monkeypatch):
    monkeypatch.delitem(BACKBONE_DESCRIPTIONS._obj_map, "ConvNetDescription")


def pretraining(*options: object) -> CfgNode:
    return tiny_config("MODEL.META_ARCHITECTURE", "MoCo", "MODEL.BACKBONE.NAME", "build_conv_net", *options)


def finetuning(*options: object) -> CfgNode:
    head = ("NAME", "RevisitFCNHead", "IN_FEATURES", ["last"], "CONVS_DIM", 8, "NORM", "BN")
    pairs = [f"MODEL.SEM_SEG_HEAD.{item}" if n % 2 == 0 else item for n, item in enumerate(head)]
    return pretraining("MODEL.META_ARCHITECTURE", "SemanticSegmentor", *pairs, *options)


def pretrain(output: Path) -> Path:
    """A checkpoint of a run as the trainer saves it, before its first step."""
    cfg = pretraining("OUTPUT_DIR", str(output))
    RevisitCheckpointer(build_model(cfg), cfg).save("model_final", iteration=0, trainer={"seed": 1})
    return output / "model_final.pth"


def test_with_a_description_it_is_converted_and_loaded_strictly(tmp_path):
    trained = pretrain(tmp_path)
    command = f"python tools/convert_to_d2.py {trained} {tmp_path}/a.pth {IMPORTS}"
    assert "revisit layout, ConvNet, 14 tensors" in run(command, tmp_path)
    flags = yaml.safe_load((tmp_path / "a.yaml").read_text())["config"]
    assert list(flags) == ["MODEL.CONV_NET.WIDTH", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD", "INPUT.FORMAT"]
    expected = torch.load(trained)["model"]
    for name, value in load_into(finetuning(), tmp_path / "a.pth").backbone.state_dict().items():
        assert torch.equal(value, expected[f"backbone.{name}"]), name
    with pytest.raises(UserError, match="MODEL.CONV_NET.WIDTH is 4 here and 8 there"):
        load_into(finetuning("MODEL.CONV_NET.WIDTH", 4), tmp_path / "a.pth")
    content = torch.load(tmp_path / "a.pth")
    del content["model"]["layers.2.weight"]
    torch.save(content, tmp_path / "a.pth")
    write_flags(tmp_path / "a.pth", flags, "a test")  # of weights that somebody has changed, without a checksum
    with pytest.raises(UserError, match=r"only 11 of 12 backbone tensors .* first without: backbone.layers.2.weight"):
        load_into(finetuning(), tmp_path / "a.pth")


def test_it_comes_from_other_projects_and_goes_to_the_library_that_has_it(conv_net, tmp_path):
    tensors = {f"body.{key.removeprefix('layers.')}": value for key, value in conv_net.ConvNet(8).state_dict().items()}
    assert convert(moco(tensors)).tensors.keys() == conv_net.ConvNet(8).state_dict().keys()
    refused("cannot place body.9.weight", convert, {**tensors, "body.9.weight": torch.zeros(1)})
    torch.save(tensors, tmp_path / "in.pth")
    command = f"python tools/export_weights.py {tmp_path}/in.pth {tmp_path}/out.pth {IMPORTS} --format"
    run(f"{command} timm", tmp_path)
    assert_same(torch.load(tmp_path / "out.pth"), tensors)
    assert "A net of 8 channels by `torch.load" in (tmp_path / "out.md").read_text()
    line = run(f"{command} torchvision", tmp_path, expect=2)  # the tests' own process knows the module by another name
    assert "torchvision is not known to have a ConvNet" in line


def test_without_a_description_nothing_is_loaded_or_converted(undescribed, tmp_path):
    trained = pretrain(tmp_path)
    refusal = "the backbone, a ConvNet, is of no family that is described: expected ResNet"
    for cfg in (finetuning(), pretraining(), finetuning("MODEL.ALLOW_PARTIAL_BACKBONE", True)):
        refused(refusal, load_into, cfg, trained)
    refused(r"a backbone with tensors such as layers.0.weight is of no family", convert, torch.load(trained))


def test_without_a_description_a_run_starts_from_nothing_and_resumes_exactly(undescribed, tmp_path):
    expected = torch.load(pretrain(tmp_path))["model"]
    cfg = pretraining("OUTPUT_DIR", str(tmp_path))
    model = build_model(cfg)
    RevisitCheckpointer(model, cfg).resume_or_load("", resume=False)
    RevisitCheckpointer(model, cfg).resume_or_load("")
    assert_same(dict(model.state_dict()), expected)


def test_origin_and_licence_of_the_start_stay_with_a_run_its_children_and_its_exports(tmp_path):
    options = ("MODEL.RESNETS.STEM_OUT_CHANNELS", 64, "MODEL.RESNETS.RES2_OUT_CHANNELS", 64)
    cfg, first = tiny_config(*options), tmp_path / "moco.pth"
    converted = convert(run_checkpoint(*options))
    write_tensors(converted.tensors, first)
    write_flags(first, converted.flags, "moco: moco_v2.pth.tar", "CC BY-NC 4.0, non-commercial")
    weights = first
    for generation in range(3):  # from a converted file, then from a run's own checkpoint, then resumed and converted
        cfg.OUTPUT_DIR = str(tmp_path / str(generation))
        Path(cfg.OUTPUT_DIR).mkdir()
        for resume in (False, True):
            checkpointer = RevisitCheckpointer(build_model(cfg), cfg)
            checkpointer.resume_or_load(str(weights), resume=resume)
            checkpointer.save("model_final", iteration=9, trainer={})
        weights = Path(cfg.OUTPUT_DIR, "model_final.pth")
    last = load_backbone(weights)
    assert last.source == "revisit" and last.licence == "CC BY-NC 4.0, non-commercial"
    assert last.origin.count("started from revisit: model_final.pth") == 2
    assert last.origin.endswith("started from moco: moco_v2.pth.tar")
    again = tmp_path / "again.pth"
    write_tensors(last.tensors, again)
    write_flags(again, last.flags, last.origin, last.licence)
    card = model_card(load_backbone(again), weights, "timm")
    assert "CC BY-NC 4.0, non-commercial: that of the weights that the training started from" in card


@pytest.mark.parametrize(
    ("author", "source", "licence", "expected"),
    [
        ("", "", "", ("x.pth, of unknown origin", "unknown, because")),
        ("Caffe2", "", "", ("detectron2: x.pth", "CC BY-SA 3.0")),
        ("", "swav: swav.pth.tar", "", ("swav: swav.pth.tar", "CC BY-NC 4.0")),  # flags of an older version
        ("", "revisit: a.pth", "", ("revisit: a.pth", "")),
    ],
)
def test_what_is_kept_of_the_origin_of_weights_that_a_run_starts_from(author, source, licence, expected):
    origin = origin_of({"__author__": author, "model": {}}, "x.pth", source, licence)
    assert origin["source"] == expected[0] and origin["licence"].startswith(expected[1])
    assert bool(origin["licence"]) == bool(expected[1])
