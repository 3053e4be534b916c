"""From an image to its views: which look each view gets, what the views depend on, and how pixels are resized."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from revisit import add_revisit_config
from revisit.data import mapper as mapper_module
from revisit.data.augmentation import AutoAugmentLook, draw_look
from revisit.data.augmentation_on_arrays import apply_look
from revisit.data.crops import ConstrainedMultiCrop
from revisit.data.mapper import ViewMapper
from revisit.data.reader import read_record
from revisit.data.resize import crop_and_reduce

from detectron2.config import get_cfg

A_PLUS = "standard_or_autoaugment"


def make_mapper(policy="standard", num_small=3, seed=0):
    return ViewMapper(ConstrainedMultiCrop(num_small=num_small), large_size=32, small_size=16, policy=policy, seed=seed)


def same_views(one, other):
    return all(np.array_equal(one[name], other[name]) for name in ("anchor", "positive", "small"))


@pytest.fixture
def picture(make_picture):
    return make_picture(60, 80)


@pytest.fixture
def black_autoaugment(monkeypatch):
    """AutoAugment paints its view black, so that every view it touches shows."""
    monkeypatch.setattr(AutoAugmentLook, "operations", lambda look, size: [("Brightness", -1.0)])


@pytest.mark.parametrize("policy, low, high", [("standard", 0, 0), (A_PLUS, 0.35, 0.65), ("autoaugment", 1, 1)])
def test_autoaugment_touches_positives_by_policy_and_anchors_never(black_autoaugment, picture, policy, low, high):
    touched = {"anchor": [], "positive": [], "small": []}
    for index in range(150):
        views = make_mapper(policy)(picture, 0, index)
        for name, each in (("anchor", [views["anchor"]]), ("positive", [views["positive"]]), ("small", views["small"])):
            touched[name] += [not view.any() for view in each]
    assert not any(touched["anchor"])
    assert low <= np.mean(touched["positive"]) <= high
    assert low <= np.mean(touched["small"]) <= high


def test_each_positive_of_an_image_chooses_its_own_look(black_autoaugment, picture):
    choices = set()
    for index in range(60):
        views = make_mapper(A_PLUS)(picture, 0, index)
        choices.add(tuple(not view.any() for view in (views["positive"], *views["small"])))
    assert len(choices) == 2**4  # one large and three small positives: every combination


@pytest.mark.parametrize("policy", ["standard", "autoaugment", A_PLUS])
def test_a_view_is_its_box_with_its_look(monkeypatch, picture, policy):
    drawn = []

    def spy(asked, rng, **options):
        drawn.append((asked, draw_look(asked, rng, **options)))
        return drawn[-1][1]

    monkeypatch.setattr(mapper_module, "draw_look", spy)
    views = make_mapper(policy)(picture, 2, 5)
    boxes = views["boxes"]
    assert [asked for asked, _ in drawn] == ["standard"] + [policy] * 4
    triples = zip(
        [boxes.anchor, boxes.positive, *boxes.small],
        [views["anchor"], views["positive"], *views["small"]],
        drawn,
        strict=True,
    )
    for box, view, (_, look) in triples:
        assert np.array_equal(view, apply_look(crop_and_reduce(picture, box, len(view)), look))


def test_views_depend_on_seed_epoch_and_index_only(picture):
    calls = [(0, 0), (0, 1), (1, 0), (7, 123_456)]
    mapper = make_mapper(A_PLUS)
    first = {call: mapper(picture, *call) for call in calls}
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for call in reversed(calls):
        assert same_views(make_mapper(A_PLUS)(picture, *call), first[call])
        assert not same_views(make_mapper(A_PLUS, seed=1)(picture, *call), first[call])
    for n, call in enumerate(calls):
        assert not any(same_views(first[call], first[other]) for other in calls[:n])


def test_neither_a_global_generator_nor_the_image_is_changed(picture):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before, image = states(), picture.copy()
    for index in range(20):
        make_mapper(A_PLUS)(picture, 0, index)
    assert states() == before and np.array_equal(picture, image)


@pytest.mark.parametrize("size", [(5, 3), (3, 5), (1, 1), (1, 40), (60, 80)])
@pytest.mark.parametrize("policy", ["standard", "autoaugment"])
def test_shapes_and_dtypes_for_images_of_any_size(make_picture, size, policy):
    for index in range(30):  # AutoAugment has 25 sub-policies
        views = make_mapper(policy)(make_picture(*size), 0, index)
        assert views["anchor"].shape == views["positive"].shape == (32, 32, 3)
        assert views["small"].shape == (3, 16, 16, 3)
        assert all(views[name].dtype == np.uint8 for name in ("anchor", "positive", "small"))


def test_two_crops_have_no_small_views(picture):
    views = make_mapper(num_small=0)(picture, 0, 0)
    assert "small" not in views and views["boxes"].small.shape == (0, 4)


def test_records_hold_a_file_or_an_image(tmp_path, picture):
    Image.fromarray(picture).save(tmp_path / "a.png")
    assert np.array_equal(read_record({"file_name": str(tmp_path / "a.png")}), picture)
    assert np.array_equal(read_record({"image": picture}), picture)


def test_the_configuration_reaches_the_mapper(picture):
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.SEED = 11
    cfg.VIEWS.LARGE_SIZE, cfg.VIEWS.SMALL_SIZE, cfg.VIEWS.NUM_SMALL = 24, 12, 2
    cfg.VIEWS.LARGE_SCALE, cfg.VIEWS.SMALL_SCALE = (0.5, 0.6), (0.1, 0.11)
    cfg.VIEWS.MIN_OVERLAP, cfg.VIEWS.MAX_IOU, cfg.VIEWS.POLICY = 0.3, 0.7, "autoaugment"
    scales = {"large_scale": (0.5, 0.6), "small_scale": (0.1, 0.11)}
    crops = ConstrainedMultiCrop(**scales, num_small=2, min_overlap=0.3, max_iou=0.7)
    expected = ViewMapper(crops, large_size=24, small_size=12, policy="autoaugment", seed=11)
    for index in range(20):
        assert same_views(ViewMapper.from_config(cfg)(picture, 1, index), expected(picture, 1, index))
