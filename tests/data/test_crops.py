"""Boxes of the views: random resized crops against torchvision's, the overlap constraint against rasterised boxes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop

from revisit.data import crops
from revisit.data.crops import ConstrainedMultiCrop, overlap_share, random_resized_crop

SIDES = st.one_of(st.integers(1, 12), st.integers(13, 700), st.sampled_from([1, 2, 5000]))
SCALES = st.sampled_from([(0.2, 1.0), (0.05, 0.14), (0.5, 0.5), (1.0, 1.0)])
SEEDS = st.integers(0, 2**32)
TOO_LARGE = (4.0, 4.0)  # shares of the image area: no box fits, so the fallback shows


def interval(limit):
    return st.lists(st.integers(0, limit), min_size=2, max_size=2, unique=True).map(sorted)


def box_in(height, width):
    return st.tuples(interval(width), interval(height)).map(
        lambda xy: np.array([xy[0][0], xy[1][0], xy[0][1], xy[1][1]])
    )


def mask_of(box, height, width):
    mask = np.zeros((height, width), dtype=bool)
    x0, y0, x1, y1 = box
    mask[y0:y1, x0:x1] = True
    return mask


def rasterised_share(box, reference, height, width):
    mask = mask_of(box, height, width)
    return (mask & mask_of(reference, height, width)).sum() / mask.sum()


def torchvision_box(height, width, scale):
    y0, x0, h, w = RandomResizedCrop.get_params(torch.empty(3, height, width), list(scale), [3 / 4, 4 / 3])
    return np.array([x0, y0, x0 + w, y0 + h])


def is_random_crop(box, height, width, scale):
    """Whether some real-valued size in bounds rounds to this box's size."""
    w, h = box[2] - box[0], box[3] - box[1]
    area = height * width
    return (
        (w - 0.5) * (h - 0.5) <= scale[1] * area
        and (w + 0.5) * (h + 0.5) >= scale[0] * area
        and (w - 0.5) / (h + 0.5) <= 4 / 3
        and (w + 0.5) / (h - 0.5) >= 3 / 4
    )


@settings(max_examples=300)
@given(SIDES, SIDES, SCALES, SEEDS)
def test_random_crop_lies_inside_and_keeps_its_bounds(height, width, scale, seed):
    box = random_resized_crop(height, width, scale, np.random.default_rng(seed))
    x0, y0, x1, y1 = box
    assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height
    assert is_random_crop(box, height, width, scale) or np.array_equal(box, torchvision_box(height, width, TOO_LARGE))


@given(SIDES, SIDES, SEEDS)
def test_when_no_draw_fits_the_box_is_torchvisions_fallback(height, width, seed):
    box = random_resized_crop(height, width, TOO_LARGE, np.random.default_rng(seed))
    assert np.array_equal(box, torchvision_box(height, width, TOO_LARGE))


@pytest.mark.parametrize("size", [(1, 50), (50, 1), (2, 300), (300, 2), (30, 1000), (1000, 30)])
def test_a_thin_image_always_gets_the_fallback(size):
    # 90 % of its area never have a ratio between 3/4 and 4/3.
    boxes = [random_resized_crop(*size, (0.9, 1.0), np.random.default_rng(seed)) for seed in range(20)]
    assert all(np.array_equal(box, torchvision_box(*size, TOO_LARGE)) for box in boxes)


def statistics(boxes, height, width):
    x0, y0, x1, y1 = np.array(boxes).T.astype(float)
    return {
        "area share": (x1 - x0) * (y1 - y0) / (height * width),
        "log ratio": np.log((x1 - x0) / (y1 - y0)),
        "centre x": (x0 + x1) / 2,
        "centre y": (y0 + y1) / 2,
    }


@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.05, 0.14)])
def test_random_crops_are_distributed_as_torchvisions(scale):
    height, width, count = 240, 400, 10_000
    rng = np.random.default_rng(5)
    ours = statistics([random_resized_crop(height, width, scale, rng) for _ in range(count)], height, width)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs = statistics([torchvision_box(height, width, scale) for _ in range(count)], height, width)
    # Two samples of one distribution exceed this Kolmogorov-Smirnov distance with probability 1e-6.
    limit = 2.7 * np.sqrt(2 / count)
    for name, sample in ours.items():
        points = np.concatenate([sample, theirs[name]])
        ranks = [np.searchsorted(np.sort(values), points, side="right") / count for values in (sample, theirs[name])]
        assert np.abs(ranks[0] - ranks[1]).max() < limit, name


@given(st.integers(1, 90), st.integers(1, 90), st.floats(0, 1), SEEDS)
def test_every_small_crop_that_misses_the_overlap_is_counted(height, width, min_overlap, seed):
    draw = ConstrainedMultiCrop(large_scale=(0.1, 0.4), num_small=6, min_overlap=min_overlap)
    boxes = draw(height, width, np.random.default_rng(seed))
    shares = [rasterised_share(box, boxes.anchor, height, width) for box in boxes.small]
    assert boxes.num_fallbacks == sum(share < min_overlap for share in shares)


def test_the_constraint_is_met_often_but_not_always():
    draw = ConstrainedMultiCrop(large_scale=(0.1, 0.2), min_overlap=0.6)
    counts = [draw(100, 120, np.random.default_rng(seed)).num_fallbacks for seed in range(200)]
    assert 0 < sum(counts) < 200 * 4 / 2


@pytest.mark.parametrize("min_overlap, draws_per_crop", [(0.0, 1), (1.1, 10)])
def test_a_small_crop_is_drawn_at_most_ten_times(monkeypatch, min_overlap, draws_per_crop):
    calls = []

    def counted(*args):
        calls.append(args)
        return random_resized_crop(*args)

    monkeypatch.setattr(crops, "random_resized_crop", counted)
    boxes = ConstrainedMultiCrop(num_small=3, min_overlap=min_overlap)(80, 60, np.random.default_rng(0))
    assert len(calls) == 2 + 3 * draws_per_crop
    assert boxes.num_fallbacks == (3 if min_overlap else 0)


@given(SIDES, SIDES, SEEDS, st.sampled_from([0, 4]), st.sampled_from([0.2, 1.0]))
def test_boxes_lie_inside_any_image_and_without_a_constraint_none_is_a_fallback(height, width, seed, num, max_iou):
    draw = ConstrainedMultiCrop(min_overlap=0.0, num_small=num, max_iou=max_iou)
    boxes = draw(height, width, np.random.default_rng(seed))
    assert boxes.small.shape == (num, 4)
    assert boxes.num_fallbacks == 0 or max_iou < 1
    for x0, y0, x1, y1 in (boxes.anchor, boxes.positive, *boxes.small):
        assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height


def test_each_kind_of_box_has_its_own_scale():
    draw = ConstrainedMultiCrop(large_scale=(0.5, 0.6), small_scale=(0.05, 0.1), min_overlap=0.2)
    for seed in range(100):
        boxes = draw(200, 200, np.random.default_rng(seed))
        for box in (boxes.anchor, boxes.positive):
            assert is_random_crop(box, 200, 200, (0.5, 0.6))
        for box in boxes.small:
            assert is_random_crop(box, 200, 200, (0.05, 0.1))


@given(SIDES, SIDES, SEEDS)
def test_the_same_generator_gives_the_same_boxes(height, width, seed):
    one, two = (ConstrainedMultiCrop()(height, width, np.random.default_rng(seed)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a, b)


def test_the_boxes_of_one_image_differ():
    boxes = ConstrainedMultiCrop()(480, 640, np.random.default_rng(0))
    every = [tuple(box) for box in (boxes.anchor, boxes.positive, *boxes.small)]
    assert len(set(every)) == 6


@pytest.mark.parametrize("max_iou", [0.6, 0.4, 0.2, 0.0])
def test_anchor_and_positive_stay_below_the_iou_limit_or_count_as_a_fallback(max_iou):
    draw = ConstrainedMultiCrop(max_iou=max_iou, num_small=0)
    fallbacks = 0
    for seed in range(60):
        boxes = draw(48, 64, np.random.default_rng(seed))
        pair = [mask_of(box, 48, 64) for box in (boxes.anchor, boxes.positive)]
        iou = (pair[0] & pair[1]).sum() / (pair[0] | pair[1]).sum()
        assert (iou > max_iou) == boxes.num_fallbacks
        assert all(is_random_crop(box, 48, 64, (0.2, 1.0)) for box in (boxes.anchor, boxes.positive))
        fallbacks += boxes.num_fallbacks
    assert fallbacks <= 3


def test_an_iou_limit_that_no_pair_can_meet_leaves_the_closest_one():
    boxes = ConstrainedMultiCrop(large_scale=(0.7, 1.0), max_iou=0.0)(60, 80, np.random.default_rng(0))
    assert boxes.num_fallbacks >= 1
    usual = ConstrainedMultiCrop(large_scale=(0.7, 1.0))
    others = [usual(60, 80, np.random.default_rng(seed)) for seed in range(100)]
    iou = crops.intersection_over_union(boxes.anchor, boxes.positive)
    assert iou < min(crops.intersection_over_union(b.anchor, b.positive) for b in others)


@given(box_in(13, 17), box_in(13, 17))
def test_shares_and_unions_are_those_of_pixels(box, other):
    masks = [mask_of(each, 13, 17) for each in (box, other)]
    assert overlap_share(box, other) == pytest.approx(rasterised_share(box, other, 13, 17))
    expected = (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum()
    assert crops.intersection_over_union(box, other) == pytest.approx(expected)
