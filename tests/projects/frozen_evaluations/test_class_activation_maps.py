"""Class activation maps: the map by hand, a flat one, the comparison sheet."""

from unittest.mock import Mock

import cv2
import numpy as np
import torch
from tiny import tiny_config
from trees import refused

from projects.FrozenEvaluations.cams import Classifier, activation_map, class_of, in_order, load_networks, overlay
from projects.Pictures import tiles
from projects.Pictures.label_maps import enlarge_map
from projects.Pictures.tiles import fit
from projects.ToyScenes import CLASS_NAMES
from revisit.data.images.reader import read_image
from revisit.evaluation.features import whole_image
from revisit.network.network import Network


def test_the_map_is_the_weighted_sum_between_its_extremes_and_dark_where_it_is_flat():
    features = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(5, generator=torch.Generator().manual_seed(1))
    expected = np.array([[sum(weight[c] * features[c, y, x] for c in range(5)) for x in range(4)] for y in range(3)])
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert np.allclose(activation_map(features, weight).numpy(), expected, atol=1e-5)
    assert not activation_map(torch.ones(3, 2, 2), torch.ones(3)).any()


def test_the_overlay_goes_from_blue_to_red():
    image = np.full((20, 30, 3), 100, np.uint8)
    painted = overlay(image, np.linspace(0, 1, 20).repeat(30).reshape(20, 30))
    assert painted.shape == image.shape
    assert painted[0, 0].tolist() == [50, 50, 114] and painted[-1, 0].tolist() == [114, 50, 50]  # 128 at JET's ends


def test_a_cell_lies_where_the_network_saw_it_also_beyond_the_images_edge():
    """Of 40 px, 3 cells of 16: their centres are at 8, 24 and 40 px."""
    cells = np.array([[0.0, 16.0, 32.0]] * 2)
    large = enlarge_map(cells, (32, 40), 16, (32, 40))
    assert np.allclose(large, np.clip(np.arange(40) + 0.5 - 8, 0, 32))
    twice = enlarge_map(cells, (32, 40), 16, (64, 80))
    assert np.allclose(twice, np.clip((np.arange(80) + 0.5) / 2 - 8, 0, 32))


def save(path, weight, bias):
    torch.save({"weight": weight, "bias": bias, "transform": "square", "image_size": 64}, path)
    return path


def test_each_network_draws_the_row_of_the_true_class(tmp_path, pretrained, run_project, monkeypatch):
    sheet = Mock(wraps=tiles.save_sheet)
    monkeypatch.setattr("projects.FrozenEvaluations.cams.save_sheet", sheet)
    # Row c of the classifier is channel c of the map, the other network's is its negative.
    plain = save(tmp_path / "plain.pth", torch.eye(64)[:10], bias=1e6 * torch.eye(10)[4])
    turned = save(tmp_path / "turned.pth", -torch.eye(64)[:10], bias=1e6 * torch.eye(10)[7])
    weights = pretrained / "backbone.pth"
    options = f"CAM.NUM_IMAGES 3 CAM.CLASSIFIER {plain} CAM.OTHER_WEIGHTS {weights} CAM.OTHER_CLASSIFIER {turned}"
    output, results = run_project("FrozenEvaluations/cams", options, weights)
    images = results["images"]
    assert [image["taken_for"] for image in images] == [[CLASS_NAMES[4], CLASS_NAMES[7]]] * 3
    backbone = Network.of_config(tiny_config("MODEL.WEIGHTS", str(weights)))
    for row, image in zip(sheet.call_args.args[1], images, strict=True):
        pixels = read_image(image["file_name"])
        features = backbone.last_map(torch.from_numpy(whole_image(pixels, 64)).permute(2, 0, 1)[None])[0]
        own = features[CLASS_NAMES.index(image["truth"])].numpy()
        span = own.max() - own.min()
        for panel, cam in zip(row.tiles[1:], (own - own.min(), own.max() - own), strict=True):
            shown = enlarge_map(cam / span if span else 0 * cam, (64, 64), 32, pixels.shape[:2])
            assert np.array_equal(panel, fit(overlay(pixels, shown)))
    assert cv2.imread(str(output / "cams.png")).shape[1] > 3 * 420


def test_machines_see_features_at_a_length_of_about_one():
    generator = torch.Generator().manual_seed(0)
    features, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((5, 3, 4), (2, 5), (2,)))
    pooled = features.double().mean(dim=(1, 2))
    for unit, rows in ((False, pooled), (True, pooled / (pooled.norm() + 1e-5))):
        network = Classifier("one", None, weight, bias, "square", 64, unit=unit)
        assert torch.allclose(network.logits(features).double(), weight.double() @ rows + bias, atol=1e-6)


def test_a_drawn_network_is_one_to_compare_with(tmp_path, pretrained):
    plain = str(save(tmp_path / "plain.pth", torch.eye(64)[:10], torch.zeros(10)))
    compared = ("CAM.CLASSIFIER", plain, "CAM.OTHER_WEIGHTS", "random", "CAM.OTHER_CLASSIFIER", plain)
    cfg = tiny_config("MODEL.WEIGHTS", str(pretrained / "backbone.pth"), *compared)
    first, second = load_networks(cfg, 10)
    assert second.name == "random" and first.backbone.digest() != second.backbone.digest()


def test_images_of_several_classes_show_their_first():
    assert [class_of({"labels": labels}) for labels in ([0, 1, 1], [-1, 0, -1])] == [1, -1]
    assert class_of({"label": 3}) == 3 and class_of({}) == -1


def test_a_classifier_of_another_order_of_classes_is_turned_to_that_of_the_images():
    network = Classifier("one", None, torch.eye(3), torch.arange(3.0), "square", 64, ["auk", "kite", "owl"])
    turned = in_order(network, ["owl", "auk", "kite"], "birds")
    assert turned.bias.tolist() == [2, 0, 1] and turned.weight.argmax(dim=1).tolist() == [2, 0, 1]
    assert in_order(network._replace(classes=[]), ["bat"], "bats").bias.tolist() == [0, 1, 2]  # of an older version
    refused("'bats'", in_order, network, ["bat"], "bats")
