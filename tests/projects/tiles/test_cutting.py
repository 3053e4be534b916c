"""Labels of windows: together they are the whole image's, and each window's are right by themselves."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from projects.Tiles.cutting import cut
from projects.Tiles.windows import inside, windows
from revisit.data.sources.coco_truth import MIN_SIDE
from revisit.errors import UserError

from detectron2.structures import BoxMode

HEIGHT, WIDTH = 90, 120
seeds = st.integers(0, 2**31)


def parts_of(rng, length: int) -> np.ndarray:
    """Borders of windows along one axis."""
    return np.unique(np.concatenate([[0, length], rng.integers(1, length, rng.integers(0, 5))]))


def partition(rng, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Windows of many sizes, which cover each px once."""
    rows, columns = parts_of(rng, height), parts_of(rng, width)
    pairs = [(y, x) for y in range(len(rows) - 1) for x in range(len(columns) - 1)]
    return np.array([(columns[x], rows[y], columns[x + 1], rows[y + 1]) for y, x in pairs])


def boxed(number=0, **fields) -> dict:
    usual = {"bbox": [0, 0, WIDTH, HEIGHT], "bbox_mode": BoxMode.XYXY_ABS, "category_id": number % 3, "id": number}
    return usual | fields


def some_boxes(rng, height: int, width: int, count: int = 12) -> list[dict]:
    """On quarters of a px, some across the border of the image."""
    low = np.floor(rng.uniform(-0.1, 1, (count, 2)) * [width, height] * 4) / 4
    high = np.maximum(low + np.ceil(rng.uniform(0, 0.5, (count, 2)) * [width, height] * 4) / 4, 1)
    return [boxed(n, bbox=[*low[n], *high[n]]) for n in range(count)]


def star(rng) -> list[float]:
    """An outline without a crossing, around a point: corners by rising angles, on quarters of a px."""
    count = rng.integers(5, 12)
    angles = (np.arange(count) + 0.9 * rng.random(count)) / count * 2 * np.pi
    far = rng.uniform(4, 40, len(angles))
    corners = np.stack([np.cos(angles) * far + WIDTH / 2, np.sin(angles) * far + HEIGHT / 2], axis=1)
    return (np.round(corners * 4) / 4).ravel().tolist()


def enclosed(ring) -> float:
    """px^2 by the shoelace formula."""
    x, y = np.reshape(ring, (-1, 2)).T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def area(annotation: dict) -> float:
    mask = annotation.get("segmentation")
    if mask is None:
        x0, y0, x1, y1 = annotation["bbox"]
        return (x1 - x0) * (y1 - y0)
    return float(coco_mask.area(mask)) if isinstance(mask, dict) else sum(map(enclosed, mask))


def of_object(parts: list[list[dict]], number: int) -> list[dict]:
    return [each for window in parts for each in window if each["id"] == number]


@given(st.integers(2, 3000), st.integers(2, 3000), seeds)
def test_boxes_of_a_partition_are_the_whole_image_s(height, width, seed):
    rng = np.random.default_rng(seed)
    annotations, places = some_boxes(rng, height, width), partition(rng, height, width)
    parts = cut(annotations, places, height, width)
    assert {each["id"] for window in parts for each in window} == {each["id"] for each in annotations}
    for whole in annotations:
        x0, y0, x1, y1 = np.clip(whole["bbox"], 0, [width, height] * 2)
        found = of_object(parts, whole["id"])
        assert sum(map(area, found)) == pytest.approx((x1 - x0) * (y1 - y0), abs=1e-9)
        assert {each["category_id"] for each in found} == {whole["category_id"]}
        kept = [each for each in found if not each.get("ignored")]
        assert all(area(each) >= 0.5 * (x1 - x0) * (y1 - y0) for each in kept)
        assert all(area(each) < 0.5 * (x1 - x0) * (y1 - y0) for each in found if each.get("ignored"))
    for window, annotations_there in zip(places, parts, strict=True):
        sides = window[2:] - window[:2]
        boxes = np.reshape([each["bbox"] for each in annotations_there], (-1, 4))
        assert (boxes >= 0).all() and (boxes <= np.tile(sides, 2)).all()


@given(seeds)
def test_run_lengths_of_windows_are_the_mask_there(seed):
    rng = np.random.default_rng(seed)
    mask = (rng.random((HEIGHT, WIDTH)) < rng.choice([0.001, 0.5, 0.999])).astype(np.uint8)
    mask[:, rng.integers(WIDTH) :] = 1  # columns of it are one run
    runs = coco_mask.encode(np.asfortranarray(mask))
    places = inside(windows(HEIGHT, WIDTH, int(rng.integers(10, 130)), int(rng.integers(10))), HEIGHT, WIDTH)
    parts = cut([boxed(segmentation=runs)], places, HEIGHT, WIDTH)
    for (left, top, right, bottom), there in zip(places, parts, strict=True):
        expected = mask[top:bottom, left:right]
        assert bool(there) == expected.any()
        for each in there:
            assert np.array_equal(coco_mask.decode(each["segmentation"]), expected)
            assert each.get("ignored", False) == (expected.sum() < 0.5 * mask.sum())
            if expected.sum() < mask.sum():
                x, y, width, height = coco_mask.toBbox(each["segmentation"])
                assert each["bbox"] == [x, y, x + width, y + height]


def test_run_lengths_are_read_in_every_form_and_not_drawn():
    side = 60_000  # a mask of 3.6 GB
    counts = [side * 1000 + 5, side * 20, side * side - side * 1020 - 5]
    as_text = coco_mask.frPyObjects({"size": [side, side], "counts": counts}, side, side)["counts"]
    for form in (counts, as_text, as_text.decode()):
        whole = boxed(bbox=[0, 0, side, side], segmentation={"size": [side, side], "counts": form})
        ((part,),) = cut([whole], np.array([[990, 0, 1010, 30]]), side, side)
        drawn = coco_mask.decode(part["segmentation"])
        assert drawn.sum() == 10 * 30 - 5 and not drawn[:5, 10].any() and drawn[5:, 10].all()


@given(seeds)
def test_outlines_of_a_partition_have_the_area_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    ring = star(rng)
    around = np.reshape(ring, (-1, 2))
    box = [*around.min(axis=0), *around.max(axis=0)]
    places = partition(rng)
    parts = cut([boxed(bbox=box, segmentation=[ring])], places, HEIGHT, WIDTH)
    without = len(places) * MIN_SIDE / 4  # tips of a quarter of a px that are too narrow
    assert sum(map(area, of_object(parts, 0))) == pytest.approx(enclosed(ring), rel=1e-9, abs=without)
    for window, there in zip(places, parts, strict=True):
        for each in there:
            assert isinstance(each["segmentation"], list) and min(map(len, each["segmentation"])) >= 6
            corners = np.reshape(np.concatenate(each["segmentation"]), (-1, 2))
            assert (corners >= 0).all() and (corners <= window[2:] - window[:2]).all()
            assert np.allclose([*corners.min(axis=0), *corners.max(axis=0)], each["bbox"])
            assert each.get("ignored", False) == (area(each) < 0.5 * enclosed(ring))


def square(x: float, y: float, side: float) -> list[float]:
    return [x, y, x + side, y, x + side, y + side, x, y + side]


@pytest.mark.parametrize(
    "rings, expected",
    [
        ([[10, 10, 70, 70, 70, 10, 10, 70]], 2 * 0.5 * 60 * 30),  # a bow tie, which crosses itself
        ([square(10, 10, 20), square(20, 10, 20), square(80, 40, 10)], 30 * 20 + 100),  # two overlap
        # A frame, as one line that goes in by a cut and out by the same.
        ([[10, 10, 70, 10, 70, 70, 10, 70, 10, 10, 30, 30, 30, 50, 50, 50, 50, 30, 30, 30]], 60 * 60 - 20 * 20),
    ],
)
def test_outlines_that_cross_themselves_or_are_several_keep_their_area(rings, expected):
    places = np.array([[0, 0, 40, 45], [40, 0, 120, 45], [0, 45, 40, 90], [40, 45, 120, 90]])
    parts = cut([boxed(segmentation=rings)], places, HEIGHT, WIDTH)
    assert sum(map(area, of_object(parts, 0))) == pytest.approx(expected)
    drawn = np.zeros((HEIGHT, WIDTH), bool)
    for (left, top, right, bottom), there in zip(places, parts, strict=True):
        for each in there:
            runs = coco_mask.merge(coco_mask.frPyObjects(each["segmentation"], bottom - top, right - left))
            drawn[top:bottom, left:right] |= coco_mask.decode(runs).astype(bool)
    runs = coco_mask.frPyObjects([list(map(float, ring)) for ring in rings], HEIGHT, WIDTH)
    whole = coco_mask.decode(coco_mask.merge(runs))
    assert (drawn != whole).sum() <= 120  # a px along its edges


def test_what_a_window_has_whole_is_only_moved():
    ring = [30.25, 20, 40.5, 20, 35, 31.125]
    drawn = boxed(bbox=[29, 19, 12, 13], bbox_mode=BoxMode.XYWH_ABS, segmentation=[ring], iscrowd=0)
    ((part,),) = cut([drawn], np.array([[20, 10, 60, 50]]), HEIGHT, WIDTH)
    moved = [value - offset for value, offset in zip(ring, (20, 10) * 3, strict=True)]
    expected = {"bbox": [9, 9, 21, 22], "bbox_mode": BoxMode.XYXY_ABS, "segmentation": [moved]}
    assert part == drawn | expected


def test_crowds_are_crowds_in_every_window():
    crowd = boxed(bbox=[10, 10, 50, 50], iscrowd=1)
    parts = cut([crowd], np.array([[0, 0, 60, 60], [0, 0, 12, 12], [60, 60, 70, 70]]), HEIGHT, WIDTH)
    assert [[(each["iscrowd"], each["ignored"]) for each in there] for there in parts] == [[(1, True)], [(1, True)], []]


def test_keypoints_outside_are_not_labelled():
    points = [10.5, 10.5, 2, 30.5, 12.5, 1, 0.5, 0.5, 0]
    ((part,),) = cut([boxed(bbox=[5, 5, 25, 25], keypoints=points)], np.array([[4, 4, 30, 30]]), HEIGHT, WIDTH)
    assert part["keypoints"] == [6.5, 6.5, 2, 0, 0, 0, 0, 0, 0]


def test_outlines_that_need_cutting_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "shapely", None)
    outline = boxed(bbox=[10, 10, 30, 30], segmentation=[square(10, 10, 20)])
    ((part,),) = cut([outline], np.array([[0, 0, 60, 60]]), HEIGHT, WIDTH)
    assert part["segmentation"] == [square(10, 10, 20)]
    with pytest.raises(UserError, match=r"shapely: pip install 'revisit-detectron2\[geo\]'"):
        cut([outline], np.array([[0, 0, 20, 60]]), HEIGHT, WIDTH)
