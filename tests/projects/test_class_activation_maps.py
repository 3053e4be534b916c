"""Class activation maps: the map by hand, a flat one, the comparison sheet, bad input."""

import json
import re
import sys

import cv2
import numpy as np
import pytest
import torch
from commands import ROOT

sys.path.insert(0, str(ROOT / "projects/ClassActivationMaps"))
from class_activation_maps.cam import activation_map, overlay

from revisit.errors import UserError

NARROW = " MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 CAM.IMAGE_SIZE 64 CAM.NUM_IMAGES 3"


def test_the_map_is_the_weighted_sum_between_its_extremes():
    features = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(5, generator=torch.Generator().manual_seed(1))
    expected = np.array([[sum(weight[c] * features[c, y, x] for c in range(5)) for x in range(4)] for y in range(3)])
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert np.allclose(activation_map(features, weight).numpy(), expected, atol=1e-5)


def test_a_flat_map_stays_dark():
    assert not activation_map(torch.ones(3, 2, 2), torch.ones(3)).any()


def test_the_overlay_goes_from_blue_to_red():
    image = np.full((20, 30, 3), 100, np.uint8)
    painted = overlay(image, np.array([[0.0, 0.0], [1.0, 1.0]], np.float32))
    assert painted.shape == image.shape
    assert painted[0, 0].tolist() == [50, 50, 114] and painted[-1, 0].tolist() == [114, 50, 50]  # 128 at JET's ends


@pytest.fixture
def classifier(tmp_path):
    path = tmp_path / "classifier.pth"
    torch.save(
        {"weight": torch.randn(10, 64, generator=torch.Generator().manual_seed(0)), "bias": torch.zeros(10)}, path
    )
    return path


def test_two_networks_stand_side_by_side(classifier, pretrained, study):
    weights = pretrained / "backbone.pth"
    options = f"{NARROW} CAM.CLASSIFIER {classifier} CAM.OTHER_WEIGHTS {weights} CAM.OTHER_CLASSIFIER {classifier}"
    output = study("ClassActivationMaps", "toy", options)
    images = json.loads((output / "results.json").read_text())["images"]
    assert len(images) == 3 and all(len(image["taken_for"]) == 2 for image in images)
    picture = cv2.imread(str(output / "cams.png"))
    assert picture.shape[1] > 3 * 420 and picture.std() > 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "classifier (none) not found: projects/LinearClassification writes classifier.pth"),
        ("CAM.CLASSIFIER {torn}", "torn.pth is no classifier"),
        ("CAM.CLASSIFIER {wide}", "is for 9 channels, but the network has 64"),
        ("CAM.CLASSIFIER {short}", "tells 3 classes apart, the data set has 10"),
        ("CAM.CLASSIFIER {good} CAM.OTHER_WEIGHTS x.pth", "needs both CAM.OTHER_WEIGHTS and CAM.OTHER_CLASSIFIER"),
        ("CAM.OTHER_WEIGHTS x.pth CAM.OTHER_CLASSIFIER {good}", "CAM.OTHER_WEIGHTS x.pth not found"),
        ("CAM.CLASSIFIER {good} DATASETS.TEST \"('toy_scenes_train',)\"", "has no class for each image"),
    ],
)
def test_bad_options_are_refused(options, expected, classifier, tmp_path, study):
    (tmp_path / "torn.pth").write_bytes(b"torn")
    for name, shape in (("wide", (10, 9)), ("short", (3, 64))):
        torch.save({"weight": torch.zeros(shape), "bias": torch.zeros(shape[0])}, tmp_path / f"{name}.pth")
    files = {name: tmp_path / f"{name}.pth" for name in ("torn", "wide", "short")}
    with pytest.raises(UserError, match=re.escape(expected)):
        study("ClassActivationMaps", "toy", NARROW + " " + options.format(good=classifier, **files))
