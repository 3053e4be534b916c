"""What tells the classes apart, and what must not."""

import dataclasses

import numpy as np
import pytest

from projects.ToyScenes import CLASS_NAMES, Split, draw_scene, plan_image
from projects.ToyScenes.appearance import HELDOUT, TRAIN, Appearance, draw_from
from projects.ToyScenes.classes import SHAPES, TEXTURES, class_quotas, class_weights, shape_of, texture_of, unit_polygon

CHANCE_AT_MOST = 0.165  # three standard deviations above 1 in 10, for 400 judged images


def test_classes_are_all_pairs_of_shape_and_texture_of_the_same_area():
    pairs = {(shape_of(c), texture_of(c)) for c in range(len(CLASS_NAMES))}
    assert pairs == {(shape, texture) for shape in SHAPES for texture in TEXTURES}
    assert CLASS_NAMES[0] == "striped_disk" and CLASS_NAMES[-1] == "dotted_cross"
    for class_id in range(len(CLASS_NAMES)):
        x, y = unit_polygon(class_id).T
        assert abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2 == pytest.approx(1)


def test_mean_colour_does_not_tell_the_class():
    scenes = [draw_scene(plan_image(5, Split.OBJECT_TRAIN, index, num_train=800), 64) for index in range(800)]
    classes = np.array([scene.class_ids[0] for scene in scenes])
    objects = np.array([scene.image[scene.instances == 1].mean(axis=0) for scene in scenes])
    images = np.array([scene.image.mean(axis=(0, 1)) for scene in scenes])
    for colours in (objects, images):
        assert max(_accuracies(colours, classes)) <= CHANCE_AT_MOST
    tints = np.random.default_rng(0).uniform(-80, 80, (len(CLASS_NAMES), 3))
    assert min(_accuracies(objects + tints[classes], classes)) > CHANCE_AT_MOST  # both do see a tint


def _accuracies(colours: np.ndarray, classes: np.ndarray) -> tuple[float, float]:
    """Of nearest class centroids and of linear least squares, fitted on even images, judged on odd ones."""
    fitted, judged = slice(0, None, 2), slice(1, None, 2)
    centroids = np.stack([colours[fitted][classes[fitted] == c].mean(axis=0) for c in range(10)])
    nearest = np.linalg.norm(colours[judged, None] - centroids, axis=2).argmin(axis=1)
    inputs = np.c_[colours, np.ones(len(colours))]
    weights = np.linalg.lstsq(inputs[fitted], np.eye(10)[classes[fitted]], rcond=None)[0]
    linear = (inputs[judged] @ weights).argmax(axis=1)
    return np.mean(nearest == classes[judged]), np.mean(linear == classes[judged])


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Appearance)])
def test_heldout_draws_nothing_that_train_draws(field: str):
    train, heldout = getattr(TRAIN, field), getattr(HELDOUT, field)
    if isinstance(train[0], str):
        assert not set(train) & set(heldout)
    else:
        assert all(a[1] < b[0] or b[1] < a[0] for a in train for b in heldout)


def test_numbers_come_from_the_listed_intervals_in_proportion_to_their_width():
    rng = np.random.default_rng(0)
    numbers = np.array([draw_from(rng, ((0, 1), (5, 8))) for _ in range(400)])
    in_first = (numbers >= 0) & (numbers <= 1)
    assert np.all(in_first | ((numbers >= 5) & (numbers <= 8)))
    assert in_first.mean() == pytest.approx(0.25, abs=0.07)


def test_quotas_are_uniform_or_fall_as_documented():
    assert class_quotas(60, long_tailed=False).tolist() == [6] * 10
    assert sorted(class_quotas(15, long_tailed=False)) == [1] * 5 + [2] * 5
    weights = class_weights(long_tailed=True)
    assert weights[0] / weights[3] == pytest.approx(4**1.5)
    quotas = class_quotas(2000, long_tailed=True)
    assert quotas.sum() == 2000
    assert np.all(np.diff(quotas) < 0) and quotas[-1] >= 10
