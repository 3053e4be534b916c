"""What a detector found in windows becomes the objects of the whole image, each once."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pycocotools import mask as run_lengths
from torchvision.ops import batched_nms

from projects.Tiles.cutting import cut
from projects.Tiles.merging import Found, merged, place_mask
from projects.Tiles.windows import inside, windows
from revisit.errors import UserError
from studies.tiles.planted import detect, judge, plant

from detectron2.structures import BoxMode

GAP = 3  # px, so that two objects never end at one border
HALVES = np.array([[0, 0, 100, 100], [100, 0, 200, 100]])
LAPPED = np.array([[0, 0, 120, 100], [80, 0, 200, 100]])
WHOLE = [0, 0, 200, 100]


def found(*rows, masks: list | None = None) -> Found:
    """Of (x0, y0, x1, y1, score, class, origin) each."""
    table = np.array(rows, float).reshape(-1, 7)
    return Found(table[:, :4], table[:, 4], table[:, 5].astype(int), table[:, 6].astype(int), masks)


def rows_of(objects: Found) -> list[tuple]:
    columns = (objects.scores, objects.classes, objects.origins)
    return [
        (*box, *rest) for box, *rest in zip(objects.boxes.tolist(), *(each.tolist() for each in columns), strict=True)
    ]


@pytest.mark.parametrize("overlap", [0, 16, 32, 64])
def test_planted_objects_are_found_once_on_seams_as_inside(overlap):
    rng = np.random.default_rng(overlap)
    scan = plant(256, overlap, 1000, 300, rng)
    seen = detect(scan, rng)
    objects = merged(seen, scan.windows, scan.side, scan.side)
    assert len(seen.boxes) > 1500 and scan.on_seam.sum() == 300  # so there was much to join
    assert judge(scan, objects.boxes) == (1, 1, 0, 0)


@pytest.mark.parametrize("overlap", [0, 64])
def test_the_judge_counts_what_is_not_merged_and_what_is_merged_too_much(overlap):
    rng = np.random.default_rng(overlap)
    scan = plant(256, overlap, 200, 60, rng)
    seen = detect(scan, rng)
    assert judge(scan, seen.boxes).doubles > 60
    near = np.array([[0, 0, *scan.boxes[:, 2:].max(axis=0)]])
    verdict = judge(scan, near)
    assert verdict.merged == 1 and verdict.inside == verdict.on_seams == 0


def test_boxes_of_a_noisy_detector_are_joined_where_windows_overlap():
    rng = np.random.default_rng(0)
    scan = plant(1024, 128, 300, 90, rng)
    objects = merged(detect(scan, rng, noise=0.02), scan.windows, scan.side, scan.side)
    verdict = judge(scan, objects.boxes)
    assert verdict.inside == 1 and verdict.on_seams > 0.95 and verdict.doubles < 4 and verdict.merged < 2


def test_a_fragment_gives_way_where_another_window_sees_the_object_whole():
    seen = found((85, 10, 120, 50, 0.9, 0, 0), (85, 10, 140, 50, 0.3, 0, 1), (85, 10, 120, 50, 0.8, 1, 0))
    whole, another_class = (85, 10, 140, 50, 0.3, 0, 1), (85, 10, 120, 50, 0.8, 1, 0)
    assert rows_of(merged(seen, LAPPED, 100, 200)) == [another_class, whole]
    sliver = (80, 10, 88, 50, 0.9, 0, 1)  # 3 px of the object and 5 of noise
    assert rows_of(merged(found((10, 10, 83, 50, 0.3, 0, 0), sliver), LAPPED, 100, 200)) == [
        (10, 10, 83, 50, 0.3, 0, 0)
    ]
    unlike = (60, 10, 120, 50, 0.9, 0, 0)  # 25 px before what the other window sees whole
    assert unlike in rows_of(merged(found(unlike, (95, 10, 115, 50, 0.3, 0, 1)), LAPPED, 100, 200))


@pytest.mark.parametrize("cut", [HALVES, LAPPED])
def test_fragments_that_no_window_sees_whole_are_joined(cut):
    (_, _, right, _), (left, *_) = cut
    seen = found((20, 10, right, 50, 0.9, 0, 0), (left, 11, 190, 52, 0.8, 0, 1), (left, 60, 190, 90, 0.7, 0, 1))
    assert rows_of(merged(seen, cut, 100, 200)) == [(20, 10, 190, 52, 0.8, 0, 1), (left, 60, 190, 90, 0.7, 0, 1)]


def test_neighbours_on_both_sides_of_a_seam_stay_two():
    seen = found((20, 10, 98, 50, 0.9, 0, 0), (102, 10, 190, 50, 0.8, 0, 1))
    assert len(merged(seen, HALVES, 100, 200).boxes) == 2
    side_by_side = found((20, 10, 100, 50, 0.9, 0, 0), (100, 53, 190, 90, 0.8, 0, 1))
    assert len(merged(side_by_side, HALVES, 100, 200).boxes) == 2


def test_an_object_larger_than_windows_is_one_chain():
    cut = windows(1000, 1000, 256, 32)
    box = np.array([100, 300, 900, 700.0])
    parts = np.concatenate([np.maximum(box, cut)[:, :2], np.minimum(box, cut)[:, 2:]], axis=1)
    rows = np.flatnonzero((parts[:, 2:] > parts[:, :2]).all(axis=1))
    seen = Found(parts[rows], np.full(len(rows), 0.5), np.zeros(len(rows), int), rows)
    assert len(rows) == 15
    objects = merged(seen, cut, 1000, 1000)
    assert objects.boxes.tolist() == [box.tolist()] and objects.scores.tolist() == [0.5]


def test_the_reduced_whole_counts_for_large_objects_that_no_window_sees_whole():
    cut = np.array([*LAPPED.tolist(), WHOLE])
    halves = (20, 10, 120, 50, 0.9, 0, 0), (80, 10, 190, 50, 0.8, 0, 1)
    large, inner = (22, 10, 188, 51, 0.6, 0, 2), (5, 60, 75, 90, 0.3, 0, 0)
    objects = merged(
        found(*halves, large, inner, (4, 60, 76, 90, 0.9, 0, 2), (150, 60, 170, 80, 0.9, 0, 2)), cut, 100, 200
    )
    assert rows_of(objects) == [large, inner]
    unsure = (*large[:4], 0.2, 0, 2)
    assert rows_of(merged(found(*halves, unsure), cut, 100, 200)) == [(20, 10, 190, 50, 0.8, 0, 1)]


def test_masks_of_joined_fragments_are_united():
    rng = np.random.default_rng(0)
    image = np.zeros((100, 200), np.uint8)
    image[10:50, 20:190] = rng.random((40, 170)) < 0.8
    parts = [image[:, left:right] for left, _, right, _ in LAPPED]
    masks = [place_mask(part, left, 0, 100, 200) for part, (left, *_) in zip(parts, LAPPED.tolist(), strict=True)]
    seen = found((20, 10, 120, 50, 0.9, 0, 0), (80, 10, 190, 50, 0.8, 0, 1), masks=masks)
    (mask,) = merged(seen, LAPPED, 100, 200).masks
    np.testing.assert_array_equal(run_lengths.decode(mask), image)


@st.composite
def detections(draw, cut: np.ndarray) -> Found:
    """Boxes inside the windows, many at their borders."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 40))
    origins = rng.integers(0, len(cut), count)
    low, high = np.tile(cut[origins, :2], 2), np.tile(cut[origins, 2:], 2)
    corners = np.sort(rng.integers(-3, 14, (count, 2, 2)), axis=1).reshape(-1, 4) * 10 + low
    return Found(
        np.clip(corners, low, high).astype(float), rng.integers(1, 9, count) / 9, rng.integers(0, 2, count), origins
    )


@given(st.data())
def test_the_order_of_detections_does_not_matter(data):
    cut = inside(windows(150, 200, 100, 20), 150, 200)
    seen = data.draw(detections(np.concatenate([cut, [[0, 0, 200, 150]]])))
    cut = np.concatenate([cut, [[0, 0, 200, 150]]])
    order = np.array(data.draw(st.permutations(range(len(seen.boxes)))), int)
    objects = rows_of(merged(seen, cut, 150, 200))
    assert objects == rows_of(merged(seen.take(order), cut, 150, 200))
    assert [row[4] for row in objects] == sorted((row[4] for row in objects), reverse=True)


@given(st.data())
def test_one_window_has_nms_alone(data):
    cut = np.array([[0, 0, 100, 100]])
    seen = data.draw(detections(cut))
    seen = seen._replace(scores=(np.arange(len(seen.boxes)) + 1) / 50)  # torchvision orders equal ones as it likes
    kept = batched_nms(*(torch.from_numpy(each) for each in seen[:3]), 0.4)
    assert rows_of(merged(seen, cut, 100, 100, nms=0.4)) == rows_of(seen.take(kept.numpy()))


@given(st.data())
def test_a_placed_mask_is_the_slice_of_the_whole(data):
    height, width = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    rows, columns = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    mask = rng.random((rows, columns)) < data.draw(st.sampled_from((0, 0.2, 0.5, 0.9, 1)))
    whole = np.zeros((height, width), np.uint8, order="F")
    whole[top : top + rows, left : left + columns] = mask
    assert place_mask(mask, left, top, height, width) == run_lengths.encode(whole)


def test_a_mask_of_a_huge_image_costs_its_window_alone():
    placed = place_mask(np.ones((3, 2), bool), 65_000, 60_000, 65_535, 65_535)
    assert placed["size"] == [65_535, 65_535] and run_lengths.area(placed) == 6
    assert run_lengths.toBbox(placed).tolist() == [65_000, 60_000, 2, 3]
    with pytest.raises(UserError, match=r"100,000 x 100,000 px: expected at most 4,294,967,295 px"):
        place_mask(np.ones((3, 2), bool), 0, 0, 100_000, 100_000)


def test_boxes_may_fall_short_of_a_border_where_neighbours_share_pixels():
    seen = found((20, 10, 116, 50, 0.9, 0, 0), (84, 10, 190, 50, 0.8, 0, 1))
    assert rows_of(merged(seen, LAPPED, 100, 200)) == [(20, 10, 190, 50, 0.8, 0, 1)]
    seen = found((20, 10, 116, 50, 0.9, 0, 0), (118, 10, 190, 50, 0.8, 0, 1))  # both windows see where each ends
    assert len(merged(seen, LAPPED, 100, 200).boxes) == 2


def apart(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Boxes on quarters of a px, each in its own cell of a grid, GAP px from the cell's border or more."""
    rows, columns = (np.linspace(0, side, rng.integers(2, 2 + max(1, min(6, side // 16)))) for side in (height, width))
    cells = [(x0, y0, x1, y1) for y0, y1 in pairwise(rows) for x0, x1 in pairwise(columns)]
    low = np.array(cells)[:, :2] + GAP
    room = np.array(cells)[:, 2:] - GAP - low
    sides = np.maximum(room * rng.uniform(0.1, 1, room.shape), 4)
    corners = low + (room - sides) * rng.random(room.shape)
    boxes = np.round(np.hstack([corners, corners + sides]) * 4) / 4
    return boxes[(sides <= room).all(axis=1)]


@given(st.integers(16, 3000), st.integers(16, 3000), st.integers(0, 2**31))
@example(931, 80, 3429)  # two in line: one ends near a border, beyond which the other window begins
@example(510, 932, 167693)
@example(533, 683, 239257)  # one ends where a row of windows does, the next begins below it
def test_labels_that_are_cut_and_merged_are_the_whole_image_s(height, width, seed):
    """Count, classes and boxes, so areas, whatever the overlap and however many windows an object crosses."""
    rng = np.random.default_rng(seed)
    boxes = apart(rng, height, width)
    classes = rng.integers(0, 3, len(boxes))
    tile = int(rng.integers(max(16, max(height, width) // 12), 17 + max(height, width)))
    seen = inside(windows(height, width, tile, int(rng.integers(tile // 2))), height, width)
    labels = [
        {"bbox": box, "bbox_mode": BoxMode.XYXY_ABS, "category_id": kind, "id": number}
        for number, (box, kind) in enumerate(zip(boxes.tolist(), classes.tolist(), strict=True))
    ]
    rows = [
        (*(np.array(part["bbox"]) + np.tile(seen[window, :2], 2)), 1 - part["id"] / 1000, part["category_id"], window)
        for window, parts in enumerate(cut(labels, seen, height, width))
        for part in parts
    ]
    whole = merged(found(*rows), seen, height, width)
    assert sorted((*box, kind) for box, kind in zip(whole.boxes.tolist(), whole.classes, strict=True)) == sorted(
        (*box, kind) for box, kind in zip(boxes.tolist(), classes, strict=True)
    )
