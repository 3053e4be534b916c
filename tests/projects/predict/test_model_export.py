"""Exported networks compute what the network does: on other sizes, on images of nothing, with masks, by the command."""

import json
import math
import re
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, one_line_error, run
from PIL import Image
from torch import Tensor
from torchvision.ops import box_iou

from projects.Predict import model_export
from projects.Predict.file_predictions import FilePredictor, find_sources
from projects.Predict.model_export import (
    SUFFIXES,
    ExportedNetwork,
    compare,
    export,
    load_network,
    load_torchscript,
    noise_images,
    run_exported,
)
from projects.Predict.predictions import finetuned_config
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.engine.same_experiment import plain_config
from revisit.engine.setup import make_config, plan
from revisit.keys import RUN, declaration

from detectron2.config import CfgNode
from detectron2.modeling import build_model

HAS_ONNX = find_spec("onnx") and find_spec("onnxruntime")  # a ready environment (PYTHON=...) may do without
FORMATS = [pytest.param(s, marks=pytest.mark.skipif(s == ".onnx" and not HAS_ONNX, reason="no onnx")) for s in SUFFIXES]
RECIPES = ("detection", "convnext_detection", "mask_rcnn_fpn", "retinanet_fpn", "segmentation_nyud", "depth")
THRESHOLD = 0.15


def test_a_torchscript_is_opened_without_a_word_of_its_deprecation(tmp_path, monkeypatch):
    torch.jit.trace(torch.nn.Identity(), (torch.ones(2),)).save(str(tmp_path / "a.ts"))
    load = torch.jit.load

    def of_newest_torch(path: str) -> torch.jit.ScriptModule:
        warnings.warn("`torch.jit.load` is deprecated. Please switch to `torch.export`.", FutureWarning, stacklevel=2)
        return load(path)

    monkeypatch.setattr(torch.jit, "load", of_newest_torch)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert load_torchscript(tmp_path / "a.ts")(torch.ones(2)) == [1, 1]
    assert not [warning for warning in shown if warning.category is FutureWarning]


def config(recipe: str, folder: Path, *options: str) -> CfgNode:
    """Of a network with random weights, which finds many boxes of small scores in noise."""
    narrow = ("MODEL.RESNETS.STEM_OUT_CHANNELS", "8", "MODEL.RESNETS.RES2_OUT_CHANNELS", "8", "OUTPUT_DIR", str(folder))
    scores = ("MODEL.ROI_HEADS.SCORE_THRESH_TEST", str(THRESHOLD), "MODEL.RETINANET.SCORE_THRESH_TEST", str(THRESHOLD))
    return make_config(f"configs/toy/{recipe}.yaml", [*narrow, *scores, "MODEL.DEVICE", "cpu", *options])


def trained(recipe: str, folder: Path) -> ExportedNetwork:
    """A network whose scores differ from box to box as those of a trained one do, from a checkpoint."""
    cfg = config(recipe, folder)
    torch.manual_seed(0)
    model = build_model(cfg)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean over what it sees
    with torch.no_grad():
        for image in images()[:2]:
            model.train().backbone((image[None] - model.pixel_mean) / model.pixel_std)
    for name, value in model.state_dict().items():
        if name.endswith("weight") and name.startswith(("proposal_generator", "roi_heads", "head")) and value.dim() > 1:
            gain = 0.3 if "deltas" in name or "bbox_pred" in name else 1.4
            value.normal_(std=gain / value[0].numel() ** 0.5)
    RevisitCheckpointer(model, cfg).save("model_final", iteration=9, trainer={"config": plain_config(cfg)})
    cfg.MODEL.WEIGHTS = str(folder / "model_final.pth")
    return load_network(cfg)


def images() -> list[Tensor]:
    """Of two sizes, neither of which it was traced with alone, and one without anything."""
    generator = torch.Generator().manual_seed(1)
    noise = [torch.rand(3, *size, generator=generator) * 255 for size in ((96, 160), (128, 128))]
    return [*noise, torch.zeros(3, 96, 96)]


def assert_same_detections(found: list[Tensor], expected: tuple[Tensor, ...]) -> None:
    """Each of either list has a partner in the other, unless its score is at the threshold."""
    for one, other in ((found, expected), (expected, found)):
        ious = box_iou(one[0], other[0]) * (one[2][:, None] == other[2][None])
        for n, score in enumerate(one[1]):
            m = int(ious[n].argmax()) if ious.shape[1] else None
            if m is None or (one[0][n] - other[0][m]).abs().max() > 0.1:
                assert abs(score - THRESHOLD) <= 1e-3
                continue
            assert abs(score - other[1][m]) <= 1e-3
            if len(one) > 3:
                assert (one[3][n] - other[3][m]).abs().max() <= 1e-3


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory) -> Callable[[str], tuple[ExportedNetwork, Path]]:
    """``trained`` of a recipe, and its checkpoint. To read."""

    @cache
    def of(recipe: str) -> tuple[ExportedNetwork, Path]:
        folder = tmp_path_factory.mktemp(recipe)
        return trained(recipe, folder), folder / "model_final.pth"

    return of


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_file_computes_what_the_network_does(recipe, suffix, trained_once, tmp_path):
    (network, _), path = trained_once(recipe), tmp_path / f"model{suffix}"
    export(network, path)
    counts = []
    for image in images():
        found, expected = run_exported(path, image), network(image)
        if "boxes" in network.outputs:
            assert_same_detections(found, expected)
            counts.append(len(expected[0]))
        else:
            assert (found[0] - expected[0]).abs().max() <= 1e-4
            counts.append(len(expected[0].unique()))
    assert max(counts) > 5


def test_a_file_that_computes_something_else_is_found_out(tmp_path):
    network, path = trained("detection", tmp_path), tmp_path / "model.ts"
    export(network, path)
    same = compare(network, path, noise_images())
    assert same.is_close and same.boxes > 10
    network.model.roi_heads.box_predictor.cls_score.bias[0] += 0.5
    assert not compare(network, path, noise_images()).is_close
    network.threshold = 1.0
    assert compare(network, path, noise_images()).boxes == 0


def test_a_file_that_orders_equal_scores_otherwise_computes_the_same(tmp_path, monkeypatch):
    network = trained("mask_rcnn_fpn", tmp_path)
    classifier = network.model.roi_heads.box_predictor.cls_score
    classifier.weight.zero_()
    classifier.bias[0] += 5
    image = noise_images()[0]
    outputs = network(image)
    assert len(outputs[1]) > 10 and np.ptp(outputs[1].numpy()) < 1e-6
    found = [[output.flip(0) for output in outputs]]
    monkeypatch.setattr(model_export, "run_exported", lambda path, image: found[-1])
    network.most = len(outputs[1]) + 1
    same = compare(network, tmp_path, [image])
    assert same.is_close and same.boxes == len(outputs[1])
    for place, change in enumerate((0.1, 0.1, 1, 0.1)):  # of a box, of its score, class or mask
        other = [output.clone() for output in found[0]]
        other[place][3] += change
        found.append(other)
        assert not compare(network, tmp_path, [image]).is_close
    found.append([output[1:] for output in outputs])
    assert not compare(network, tmp_path, [image]).is_close


def test_a_file_that_computes_no_numbers_is_found_out(tmp_path, monkeypatch):
    network = trained("segmentation_nyud", tmp_path)
    (image,) = noise_images()[:1]
    outputs = [output.double() for output in network(image)]
    monkeypatch.setattr(model_export, "run_exported", lambda path, image: [output * math.nan for output in outputs])
    assert not compare(network, tmp_path, [image]).is_close


def test_which_of_equal_scores_are_the_last_of_the_most_does_not_count(tmp_path, monkeypatch):
    network, image = trained("detection", tmp_path), noise_images()[0]
    boxes, scores, classes = (output[:6].clone() for output in network(image))
    scores[:] = torch.tensor([0.9, 0.9, 0.8, 0.7, 0.7, 0.7])
    results = [(boxes, scores, classes), (boxes + 50.0 * (scores == 0.7)[:, None], scores, classes)]
    network.most = 6
    monkeypatch.setattr(model_export, "run_exported", lambda path, image: results[1])
    monkeypatch.setattr(type(network), "forward", lambda self, image: results[0])
    compared = compare(network, tmp_path, [image])
    assert compared.is_close and compared.boxes == 3
    network.most = 7
    assert not compare(network, tmp_path, [image]).is_close


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_detector_that_finds_nothing_says_so(suffix, trained_once, tmp_path):
    cfg = config("mask_rcnn_fpn", tmp_path, "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.999")
    cfg.MODEL.WEIGHTS = str(trained_once("mask_rcnn_fpn")[1])
    network, path = load_network(cfg), tmp_path / f"model{suffix}"
    export(network, path)
    assert [len(found) for found in run_exported(path, images()[0])] == [0] * 4


def test_the_command_writes_file_and_card_and_compares(trained_once, write_pictures, toy_root, tmp_path):
    _, weights = trained_once("detection")
    command = f"python tools/export_model.py --output {tmp_path}/out"
    write_pictures(tmp_path / "photos", 1)
    text = run(f"{command}/a.ts --weights {weights} --data {tmp_path}/photos", toy_root)
    assert "image -> boxes, scores, classes" in text and "arning" not in text
    assert re.search(r"over [1-9]\d* boxes in images of --data its outputs .* differ by \d.\de[-+]\d", text)
    card = json.loads((tmp_path / "out/a.json").read_text())
    assert (card["channels"], card["short_side"], card["outputs"]) == ("RGB", 128, ["boxes", "scores", "classes"])
    assert "dotted_star" in card["classes"] and card["box"].startswith("x0, y0, x1, y1 in px")
    line = one_line_error(f"{command}/a.pb --weights {weights}", toy_root)
    assert "expected a name in .onnx or .ts" in line
    (tmp_path / "out/labels.json").write_text('{"boxes": []}')
    line = one_line_error(f"{command}/labels.ts --weights {weights}", toy_root)
    assert "labels.json would be replaced" in line and (tmp_path / "out/labels.json").read_text() == '{"boxes": []}'
    (tmp_path / "film.mp4").touch()
    line = one_line_error(f"{command}/a.ts --weights {weights} --data {tmp_path}/film.mp4", toy_root)
    assert "--data names videos alone: expected images" in line
    recipe = "--config-file configs/toy/detection.yaml"
    assert "no weights to predict with" in one_line_error(f"{command}/a.ts {recipe}", toy_root)


def test_an_earlier_card_is_replaced(tmp_path):
    (tmp_path / "boxes.json").write_text('{"network": "GeneralizedRCNN", "image": "", "outputs": []}')
    model_export.check_place_of_card(tmp_path / "boxes.ts")


def test_five_spellings_of_four_commands_have_one_config_and_find_the_same(trained_once, toy_datasets, tmp_path):
    network, weights = trained_once("detection")
    weights = str(weights)
    photo = tmp_path / "photo/a.png"
    photo.parent.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    Image.fromarray(pixels).save(photo)
    listed = [{"id": n, "name": name} for n, name in enumerate(network.classes, start=1)]
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [5, 5, 50, 50]}
    truth = {"images": [{"id": 1, "file_name": "a.png"}], "categories": listed, "annotations": [box]}
    (tmp_path / "a.json").write_text(json.dumps(truth))

    own, recipe = ["MODEL.WEIGHTS", weights], str(tmp_path / "recipe.yaml")
    widths = "{STEM_OUT_CHANNELS: 8, RES2_OUT_CHANNELS: 8}"
    Path(recipe).write_text(f"_BASE_: {ROOT}/configs/toy/detection.yaml\nMODEL:\n  RESNETS: {widths}\n")
    test = ["DATASETS.TEST", f"('coco:{photo.parent}:{tmp_path}/a.json',)", "OUTPUT_DIR", str(tmp_path / "out")]
    again = ["MODEL.ROI_HEADS.NUM_CLASSES", "10", "MODEL.RESNETS.RES2_OUT_CHANNELS", "8"]
    score = ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", str(THRESHOLD)]  # the recipe says another
    spellings = [(weights, "", test), (weights, "", test + again), ("", "", own + test)]
    spellings += [(weights, recipe, test + score), ("", recipe, own + test + score)]
    cfgs = [finetuned_config(Namespace(weights=w, config_file=file, opts=opts)) for w, file, opts in spellings]
    switches = {"resume": False, "dry_run": False, "eval_only": True}
    cfgs.append(plan(Namespace(config_file="", opts=own + test, **switches), 1).cfg)  # of train_net.py --eval-only
    said = [{key: value for key, value in plain_config(cfg).items() if declaration(key).scope != RUN} for cfg in cfgs]
    assert all(values == said[0] for values in said)

    expected = network(torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float())
    assert len(expected[0]) > 5 and len(set(expected[2].tolist())) > 2
    predictor = FilePredictor(cfgs[2], tmp_path)
    predictor.run(find_sources([photo], tmp_path))
    found = json.loads((tmp_path / "predictions.json").read_text())
    x0, y0, width, height = torch.tensor([result["bbox"] for result in found]).T
    scores, ids = (torch.tensor([result[name] for result in found]) for name in ("score", "category_id"))
    assert_same_detections([torch.stack([x0, y0, x0 + width, y0 + height], dim=1), scores, ids - 1], expected)
