"""Boxes of the views against torchvision's and rasterised boxes; cutting and resizing against PIL and float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from revisit.data.views import crops, distant_pairs
from revisit.data.views.boxes import intersection_over_union, overlap_share, random_resized_crop
from revisit.data.views.crops import ConstrainedMultiCrop
from revisit.data.views.resampling import crop_and_reduce, crop_and_resize

SIDES = st.one_of(st.integers(1, 12), st.integers(13, 700), st.sampled_from([1, 2, 5000]))
SCALES = st.sampled_from([(0.2, 1.0), (0.05, 0.14), (0.5, 0.5), (1.0, 1.0)])
SEEDS = st.integers(0, 2**32)
TOO_LARGE = (4.0, 4.0)  # shares of the image area: no box fits, so the fallback shows


@st.composite
def box_in(draw, height, width):
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return np.array([x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))])


def mask_of(box, height, width):
    mask = np.zeros((height, width), dtype=bool)
    x0, y0, x1, y1 = box
    mask[y0:y1, x0:x1] = True
    return mask


def rasterised(box, other, height, width):
    """(share of the box inside of the other, intersection over union), by counting pixels."""
    mask, reference = mask_of(box, height, width), mask_of(other, height, width)
    shared = (mask & reference).sum()
    return shared / mask.sum(), shared / (mask | reference).sum()


def torchvision_box(height, width, scale):
    y0, x0, h, w = RandomResizedCrop.get_params(torch.empty(3, height, width), list(scale), [3 / 4, 4 / 3])
    return np.array([x0, y0, x0 + w, y0 + h])


def is_random_crop(box, height, width, scale):
    """Whether the box lies inside, and some real-valued size in bounds rounds to its size."""
    (x0, y0, x1, y1), area = box, height * width
    w, h = x1 - x0, y1 - y0
    return (
        (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height)
        and scale[0] * area <= (w + 0.5) * (h + 0.5)
        and (w - 0.5) * (h - 0.5) <= scale[1] * area
        and (w - 0.5) / (h + 0.5) <= 4 / 3
        and (w + 0.5) / (h - 0.5) >= 3 / 4
    )


@given(SIDES, SIDES, st.one_of(SCALES, st.just(TOO_LARGE)), SEEDS)
def test_random_crop_lies_inside_and_keeps_its_bounds_or_is_torchvisions_fallback(height, width, scale, seed):
    box = random_resized_crop(height, width, scale, np.random.default_rng(seed))
    fallback = np.array_equal(box, torchvision_box(height, width, TOO_LARGE))
    assert fallback if scale == TOO_LARGE else fallback or is_random_crop(box, height, width, scale)


@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.05, 0.14)])
def test_random_crops_are_distributed_as_torchvisions(scale):
    height, width, count = 240, 400, 10_000
    rng = np.random.default_rng(5)
    ours = [random_resized_crop(height, width, scale, rng) for _ in range(count)]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs = [torchvision_box(height, width, scale) for _ in range(count)]
    x0, y0, x1, y1 = np.array([ours, theirs], float).transpose(2, 0, 1)
    statistics = {"area": (x1 - x0) * (y1 - y0), "ratio": (x1 - x0) / (y1 - y0), "x": x0 + x1, "y": y0 + y1}
    # Two samples of one distribution exceed this Kolmogorov-Smirnov distance with probability 1e-6.
    limit = 2.7 * np.sqrt(2 / count)
    for name, samples in statistics.items():
        ranks = [np.searchsorted(np.sort(values), samples.ravel(), side="right") / count for values in samples]
        assert np.abs(ranks[0] - ranks[1]).max() < limit, name


@given(st.integers(1, 90), st.integers(1, 90), st.floats(0, 1), SEEDS)
def test_every_small_crop_that_misses_the_overlap_is_counted(height, width, min_overlap, seed):
    draw = ConstrainedMultiCrop(large_scale=(0.1, 0.4), num_small=6, min_overlap=min_overlap)
    boxes = draw(height, width, np.random.default_rng(seed))
    shares = [rasterised(box, boxes.anchor, height, width)[0] for box in boxes.small]
    assert boxes.num_fallbacks == sum(share < min_overlap for share in shares)


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
def test_boxes_lie_inside_any_image_and_the_same_generator_gives_the_same(height, width, seed, num, max_iou):
    draw = ConstrainedMultiCrop(min_overlap=0.0, num_small=num, max_iou=max_iou)
    boxes, again = (draw(height, width, np.random.default_rng(seed)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(boxes, again, strict=True))
    assert boxes.small.shape == (num, 4)
    assert boxes.num_fallbacks == 0 or max_iou < 1
    for x0, y0, x1, y1 in (boxes.anchor, boxes.positive, *boxes.small):
        assert 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height


def test_each_kind_of_box_has_its_own_scale_and_no_two_are_the_same():
    draw = ConstrainedMultiCrop(large_scale=(0.5, 0.6), small_scale=(0.05, 0.1), min_overlap=0.2)
    for seed in range(100):
        boxes = draw(200, 200, np.random.default_rng(seed))
        assert all(is_random_crop(box, 200, 200, (0.5, 0.6)) for box in (boxes.anchor, boxes.positive))
        assert all(is_random_crop(box, 200, 200, (0.05, 0.1)) for box in boxes.small)
        assert len({tuple(box) for box in (boxes.anchor, boxes.positive, *boxes.small)}) == 6


@pytest.mark.parametrize("max_iou", [0.6, 0.4, 0.2, 0.0])
def test_anchor_and_positive_stay_below_the_iou_limit_or_count_as_a_fallback(max_iou):
    draw = ConstrainedMultiCrop(max_iou=max_iou, num_small=0)
    fallbacks = 0
    for seed in range(60):
        boxes = draw(48, 64, np.random.default_rng(seed))
        _, iou = rasterised(boxes.anchor, boxes.positive, 48, 64)
        assert (iou > max_iou) == boxes.num_fallbacks
        assert all(is_random_crop(box, 48, 64, (0.2, 1.0)) for box in (boxes.anchor, boxes.positive))
        fallbacks += boxes.num_fallbacks
    assert fallbacks <= 3


def test_an_iou_limit_that_no_pair_can_meet_leaves_the_closest_one():
    boxes = ConstrainedMultiCrop(large_scale=(0.7, 1.0), max_iou=0.0)(60, 80, np.random.default_rng(0))
    assert boxes.num_fallbacks >= 1
    usual = ConstrainedMultiCrop(large_scale=(0.7, 1.0))
    others = [usual(60, 80, np.random.default_rng(seed)) for seed in range(100)]
    iou = intersection_over_union(boxes.anchor, boxes.positive)
    assert iou < min(intersection_over_union(b.anchor, b.positive) for b in others)


@pytest.mark.parametrize(("max_iou", "blocks"), [(0.0, 16), (0.99, 1)])
def test_pairs_are_drawn_in_at_most_sixteen_blocks(monkeypatch, max_iou, blocks):
    calls = []

    def counted(*args):
        calls.append(args)
        return fitting_crops(*args)

    fitting_crops = distant_pairs._fitting_crops
    monkeypatch.setattr(distant_pairs, "_fitting_crops", counted)
    boxes = ConstrainedMultiCrop(large_scale=(0.9, 1.0), max_iou=max_iou, num_small=0)(60, 80, np.random.default_rng(0))
    assert len(calls) == blocks
    assert boxes.num_fallbacks == (blocks > 1)


def test_a_pair_that_stays_too_near_is_the_farthest_of_all_blocks(monkeypatch):
    nearness = []
    for blocks in range(1, 8):
        monkeypatch.setattr(distant_pairs, "MAX_PAIR_BLOCKS", blocks)
        boxes = ConstrainedMultiCrop(large_scale=(0.9, 1.0), max_iou=0, num_small=0)(60, 80, np.random.default_rng(0))
        assert boxes.num_fallbacks == 1
        nearness.append(intersection_over_union(boxes.anchor, boxes.positive).item())
    assert nearness == sorted(nearness, reverse=True) and nearness[-1] < nearness[0]


@given(box_in(13, 17), box_in(13, 17))
def test_shares_and_unions_are_those_of_pixels(box, other):
    found = overlap_share(box, other), intersection_over_union(box, other)
    assert found == pytest.approx(rasterised(box, other, 13, 17))


@st.composite
def image_and_box(draw):
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    box = draw(box_in(height, width))
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([2 * y, 2 * x, y + x], axis=-1).astype(np.uint8)
    noise = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 256, smooth.shape, dtype=np.uint8)
    return draw(st.sampled_from([smooth, noise])), box


def resized_by_pil(image, box, size):
    """PIL's crop followed by its bilinear resize, torchvision's RandomResizedCrop."""
    return np.asarray(Image.fromarray(image).crop(tuple(box.tolist())).resize((size, size), Image.Resampling.BILINEAR))


def antialiased(image, box, size):
    """Means under a triangle of the scale's width, one pixel at least, without any rounding."""
    x0, y0, x1, y1 = box

    def weights(count):
        distances = np.arange(count) + 0.5 - (np.arange(size)[:, None] + 0.5) * count / size
        triangles = np.maximum(0, 1 - np.abs(distances) / max(count / size, 1))
        return triangles / triangles.sum(axis=1, keepdims=True)

    crop = image[y0:y1, x0:x1].astype(float)
    return np.einsum("ij,jkc,lk->ilc", weights(y1 - y0), crop, weights(x1 - x0), optimize=True)


def reduced(image, box, size):
    """Means of 2 x 2 pixels, rounded, as often as a crop of 1.5 times the size or more is left, then bilinear."""
    x0, y0, x1, y1 = (int(value) for value in box)
    pixels = image[y0:y1, x0:x1].astype(float)
    sides = np.array(pixels.shape[:2])
    halvings = next(n for n in range(20) if (sides >> n).prod() < 2.25 * size**2 or (sides >> n).min() <= 1)
    for axis, side in enumerate(sides):
        spare = side % 2**halvings
        pixels = pixels.take(range(spare // 2, spare // 2 + side - spare), axis)
    for _ in range(halvings):
        parts = [pixels[y::2, x::2] for y in (0, 1) for x in (0, 1)]
        pixels = np.floor(np.mean(parts, axis=0) + 0.5)
    for axis in (0, 1):
        count = pixels.shape[axis]
        lines = []
        for n in range(size):
            place = min(max((n + 0.5) * count / size - 0.5, 0), count - 1)
            low = int(place)
            high = min(low + 1, count - 1)
            lines.append((1 - place + low) * pixels.take(low, axis) + (place - low) * pixels.take(high, axis))
        pixels = np.stack(lines, axis)
    return pixels


@pytest.mark.parametrize(
    "resize, reference, limit",
    [(crop_and_resize, antialiased, 1.05), (resized_by_pil, antialiased, 1.05), (crop_and_reduce, reduced, 1.5)],
)
@given(picture_and_box=image_and_box(), size=st.one_of(st.integers(1, 60), st.integers(61, 150)))
def test_resizing_is_its_definition_within_roundings(resize, reference, limit, picture_and_box, size):
    view = resize(*picture_and_box, size)
    assert view.shape == (size, size, 3) and view.dtype == np.uint8 and view.flags["C_CONTIGUOUS"]
    assert np.abs(view - reference(*picture_and_box, size)).max() <= limit


@pytest.mark.parametrize("side", [40, 64, 96, 130, 200, 333])
def test_reducing_keeps_a_photographs_brightness_and_layout(make_picture, side):
    image, box = make_picture(360, 360), np.array([11, 7, 11 + side, 7 + side])
    fast, exact = crop_and_reduce(image, box, 64).astype(float), crop_and_resize(image, box, 64).astype(float)
    assert np.abs(fast.mean((0, 1)) - exact.mean((0, 1))).max() < 2
    assert np.abs(fast - exact).mean() < 4
