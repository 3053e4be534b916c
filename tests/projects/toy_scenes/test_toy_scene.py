"""What drawn scenes and videos promise about their pixels; what tells the classes apart, and what must not."""

import dataclasses

import cv2
import numpy as np
import pytest

from projects.ToyScenes import CLASS_NAMES, GENERATOR_VERSION, Scene, Split, draw_scene, plan_image
from projects.ToyScenes.appearance import HELDOUT, TRAIN, Appearance
from projects.ToyScenes.classes import SHAPES, TEXTURES, class_quotas, class_weights, shape_of, texture_of, unit_polygon
from projects.ToyScenes.plan import NUM_FRAMES, plan_video

PLANS = [plan_image(3, split, index) for split in (Split.SCENE_TRAIN, Split.SCENE_HELDOUT) for index in range(40)]


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(plan, 128) for plan in PLANS]


def test_every_listed_object_is_visible_in_its_box_and_has_its_class(scenes: list[Scene]):
    for scene in scenes:
        assert 2 <= len(scene.class_ids) <= 8
        assert np.all((scene.semantic == 0) == (scene.instances == 0))
        for mask, class_id, (x0, y0, x1, y1) in zip(scene.masks, scene.class_ids, scene.boxes, strict=True):
            assert 0.005 * 128**2 <= mask.sum() == mask[y0:y1, x0:x1].sum()
            assert mask[y0].any() and mask[y1 - 1].any() and mask[:, x0].any() and mask[:, x1 - 1].any()
            assert np.all(scene.semantic[mask] == class_id + 1)


def test_the_nearest_object_wins_every_pixel(scenes: list[Scene]):
    overlaps = 0
    for plan, scene in zip(PLANS, scenes, strict=True):
        alone = [draw_scene(dataclasses.replace(plan, objects=(thing,)), 128) for thing in plan.objects]
        stack = np.stack([single.depth for single in alone])
        assert np.array_equal(scene.depth, stack.min(axis=0))
        claimed = np.stack([single.instances for single in alone]).astype(bool)
        nearest = np.where(claimed.any(axis=0), stack.argmin(axis=0) + 1, 0)
        assert np.array_equal(scene.instances, nearest)
        overlaps += np.count_nonzero(claimed.sum(axis=0) > 1)
    assert overlaps > 1000  # otherwise this test saw no occlusion


def test_background_is_a_smooth_ramp_behind_all_objects(scenes: list[Scene]):
    for scene in scenes:
        free = scene.instances == 0
        assert scene.depth[free].min() > scene.depth[~free].max() > 0
        empty = np.where(free, scene.depth, np.nan)
        assert np.nanmax(np.abs(np.diff(empty, axis=0))) < 0.06
        assert np.nanmax(np.abs(np.diff(empty, axis=1))) == 0


def test_borders_are_the_pixels_that_have_a_neighbour_of_another_object():
    instances = ["000000", "011330", "011330", "022000"]
    scene = Scene(np.zeros((4, 6, 3), np.uint8), _digits(instances), [4, 4, 4], np.ones((4, 6), np.float32))
    # The right column of object 3 is none: its other neighbours are background and object 3 itself.
    assert np.array_equal(scene.borders, _digits(["011110", "101101", "111101", "111110"]))


def _digits(rows: list[str]) -> np.ndarray:
    return np.array([list(row) for row in rows]).astype(np.int32)


def test_object_centric_images_show_one_large_object_in_the_middle_that_borders_do_not_hide():
    for index in range(40):
        scene = draw_scene(plan_image(3, Split.OBJECT_TRAIN, index, num_train=40), 128)
        assert len(scene.class_ids) == 1
        assert 0.1 < (scene.instances == 1).mean() < 0.4
        x0, y0, x1, y1 = scene.boxes[0]
        assert abs((x0 + x1) / 256 - 0.5) < 0.2 and abs((y0 + y1) / 256 - 0.5) < 0.2
        assert scene.borders.any() and not scene.borders[scene.instances == 1].any()


@pytest.mark.parametrize("size", [64, 100, 300])
def test_the_same_plan_gives_the_same_scene_at_any_size(size: int, scenes: list[Scene]):
    for plan, reference in zip(PLANS[:4], scenes, strict=False):
        scene = draw_scene(plan, size)
        assert scene.class_ids == reference.class_ids
        resized = cv2.resize(reference.instances, (size, size), interpolation=cv2.INTER_NEAREST)
        assert np.mean(scene.instances == resized) > 0.96
        assert np.allclose(scene.image.mean(axis=(0, 1)), reference.image.mean(axis=(0, 1)), atol=4)


def test_seed_split_and_index_each_change_the_image_and_the_video():
    variants = [(0, Split.SCENE_TRAIN, 0), (1, Split.SCENE_TRAIN, 0), (0, Split.SCENE_TRAIN, 1)]
    variants += [(0, Split.SCENE_HELDOUT, 0)]
    assert len({draw_scene(plan_image(*variant), 64).image.tobytes() for variant in variants}) == len(variants)
    assert len({plan_video(*variant)[0].objects[0].centre for variant in ((0, 1), (0, 2), (1, 1))}) == 3


@pytest.mark.parametrize("index", range(8))
def test_objects_of_a_video_change_places_and_keep_what_they_are(index: int):
    plans = plan_video(0, index)
    first, last = plans[0].objects, plans[-1].objects
    assert len(plans) == NUM_FRAMES and 2 <= len(first) <= 3
    assert np.allclose([thing.centre for thing in last], [thing.centre for thing in (*first[1:], first[0])])
    kinds = [[(thing.class_id, thing.distance, thing.extent) for thing in plan.objects] for plan in plans]
    assert all(kind == kinds[0] for kind in kinds)
    steps = np.diff([[thing.centre for thing in plan.objects] for plan in plans], axis=0)
    assert np.allclose(steps, steps[0])


def test_nearer_objects_of_a_video_hide_farther_ones_on_the_way():
    hidden = 0
    for index in range(8):
        plans = plan_video(0, index)
        areas = np.array([np.bincount(draw_scene(plan, 64).instances.ravel(), minlength=4)[1:4] for plan in plans])
        assert (areas[0][: len(plans[0].objects)] > 0).all()  # all are there at the start
        hidden += (areas.min(axis=0) < 0.6 * areas.max(axis=0)).sum()
    assert hidden >= 8


# Per set, of one image with seed 0 and 128 px: its index, its objects' classes, its mean RGB, and the grey
# levels of an 8 x 8 grid of blocks in hexadecimal. Where a picture no longer matches, generator 1 is not what
# it was: undo the change, or raise GENERATOR_VERSION, because data sets drawn before and after differ.
FROZEN = {
    Split.OBJECT_TRAIN: (1500, [7], [52, 105, 118],
        "6f726c656d7f7b5b676d646166757755625b5a6c5e6b5b525c5348595e665154"
        "67684963635558706d6748354c4e616b5e5b3f3f36475e6c4c444348455b3e4c"),
    Split.OBJECT_HELDOUT: (400, [8], [116, 105, 101],
        "76715d544a5b5d4b70726a524e62596569809182566056547896929089535c55"
        "7499b9947358636c716b61a85a635b5d71746d936459535b7475656e58626c60"),
    Split.SCENE_TRAIN: (7, [3, 6, 2], [116, 132, 94],
        "848d828a88877fa3736a62747e8b988384636e83808188816a78808e7e776c7a"
        "606b6a6e6a8d8b896e4d54746a7875688a433e5052596464885c3a4550566775"),
    Split.SCENE_HELDOUT: (7, [5, 0, 3, 0, 5, 9, 8, 3], [138, 119, 114],
        "72726d545955759075726d5c74828a9474785d6e798297a96a6b518f69838571"
        "6653598c95a27f85557c5c95a3b09495708376ab8a5f598290a09d9b9a746c7f"),
}  # fmt: skip


@pytest.mark.parametrize("split", Split, ids=lambda split: split.name)
def test_the_generator_is_frozen(split: Split):
    index, class_ids, mean_rgb, blocks = FROZEN[split]
    scene = draw_scene(plan_image(0, split, index), 128)
    assert GENERATOR_VERSION == 1
    assert scene.class_ids == class_ids
    assert np.allclose(scene.image.mean(axis=(0, 1)), mean_rgb, atol=1)
    expected = np.frombuffer(bytes.fromhex(blocks), np.uint8).reshape(8, 8)
    assert np.allclose(scene.image.reshape(8, 16, 8, 16, 3).mean(axis=(1, 3, 4)), expected, atol=2)


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


def test_quotas_are_uniform_or_fall_as_documented():
    assert class_quotas(60, long_tailed=False).tolist() == [6] * 10
    assert sorted(class_quotas(15, long_tailed=False)) == [1] * 5 + [2] * 5
    weights = class_weights(long_tailed=True)
    assert weights[0] / weights[3] == pytest.approx(4**1.5)
    quotas = class_quotas(2000, long_tailed=True)
    assert quotas.sum() == 2000
    assert np.all(np.diff(quotas) < 0) and quotas[-1] >= 10
