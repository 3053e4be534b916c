"""J and F of DAVIS against the definitions, pixel by pixel, and the tool's CSVs."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from projects.LabelPropagation.davis import (
    GLOBAL_COLUMNS,
    boundary_accuracy,
    region_similarity,
    score_sequence,
    statistics,
    summarize,
    write_csvs,
)
from revisit.data.labels import VOID

sizes = st.tuples(st.integers(1, 14), st.integers(1, 14))
pairs = sizes.flatmap(lambda size: st.tuples(arrays(bool, size), arrays(bool, size)))


def boundary_by_definition(mask):
    """A set of pixels, each compared with its neighbours inside the image, one by one."""
    height, width = mask.shape
    found = set()
    for y in range(height):
        for x in range(width):
            for dy, dx in ((0, 1), (1, 0), (1, 1)):
                inside = y + dy < height and x + dx < width
                if inside and mask[y + dy, x + dx] != mask[y, x]:
                    found.add((y, x))
    # DAVIS's tool looks along the border in the last row and column, where there is no diagonal neighbour.
    return found


def f_by_definition(mask, truth):
    found, wanted = boundary_by_definition(mask), boundary_by_definition(truth)
    if not found and not wanted:
        return 1.0
    if not found or not wanted:
        return 0.0
    reach = math.ceil(0.008 * math.sqrt(mask.shape[0] ** 2 + mask.shape[1] ** 2))

    def share(pixels, others):
        hits = [any((y - v) ** 2 + (x - u) ** 2 <= reach**2 for v, u in others) for y, x in pixels]
        return sum(hits) / len(hits)

    precision, recall = share(found, wanted), share(wanted, found)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_j_and_f_equal_their_definitions(pair):
    mask, truth = pair
    union = sum(a or b for a, b in zip(mask.flat, truth.flat, strict=True))
    both = sum(a and b for a, b in zip(mask.flat, truth.flat, strict=True))
    assert region_similarity(mask, truth) == pytest.approx(both / union if union else 1, abs=1e-9)
    assert boundary_accuracy(mask, truth) == pytest.approx(f_by_definition(mask, truth), abs=1e-9)


@pytest.mark.parametrize("size", [(60, 260), (300, 140)])  # reaches of 3 px
def test_f_equals_its_definition_on_blobs(size):
    rng = np.random.default_rng(0)
    y, x = np.mgrid[: size[0], : size[1]]
    for _ in range(3):
        cy, cx, r = rng.uniform(0, size[0]), rng.uniform(0, size[1]), rng.uniform(8, 25)
        truth = (y - cy) ** 2 + (x - cx) ** 2 <= r**2
        mask = (y - cy - rng.integers(0, 6)) ** 2 + (x - cx) ** 2 <= (r + rng.integers(0, 5)) ** 2
        value = boundary_accuracy(mask, truth)
        assert value == pytest.approx(f_by_definition(mask, truth), abs=1e-9)
        assert 0 < value < 1 or np.array_equal(mask, truth)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=400))
@settings(deadline=None)
def test_statistics_equal_their_definitions(values):
    count = len(values)
    ends = [math.floor(1 + place * (count - 1) / 4 + 0.5 + 1e-9) - 1 for place in range(5)]

    def mean(numbers):
        return math.fsum(numbers) / len(numbers)

    expected = (
        mean(values),
        sum(value > 0.5 for value in values) / count,
        mean(values[ends[0] : ends[1] + 1]) - mean(values[ends[3] : ends[4] + 1]),
    )
    assert statistics(np.array(values)) == pytest.approx(expected, abs=1e-9)


def test_first_and_last_frame_and_void_pixels_do_not_count():
    truth = np.zeros((4, 8, 8), np.uint8)
    truth[:, 2:5, 2:5] = 1
    truth[:, 6:, 6:] = 2
    masks = truth.copy()
    masks[0] = masks[3] = 0  # neither counts
    truth[1, 0, :4] = VOID
    masks[1, 0, :4] = 1  # void: right or wrong, nobody knows
    masks[2, 6:, 6:] = 0  # object 2 is lost in one of two frames
    one, two = score_sequence("toy", masks, truth)
    assert (one.number, two.number) == (1, 2)
    assert one.region.tolist() == one.boundary.tolist() == [1, 1]
    assert two.region.tolist() == two.boundary.tolist() == [1, 0]
    assert summarize([one, two])["J&F-Mean"] == 0.75


def test_means_are_over_objects_not_sequences():
    truth = np.ones((3, 4, 4), np.uint8)
    truth[:, 0], truth[:, 1] = 2, 3
    three = score_sequence("three", truth, truth)
    (lost,) = score_sequence("lost", np.zeros((3, 4, 4), np.uint8), np.ones((3, 4, 4), np.uint8))
    totals = summarize([*three, lost])
    assert totals["J-Mean"] == totals["J-Recall"] == 0.75
    # The lost object fills the image, so that neither mask has a boundary.
    assert totals["F-Mean"] == 1


def test_csvs_have_the_official_form(tmp_path):
    truth = np.zeros((5, 6, 6), np.uint8)
    truth[:, :3, :3] = 1
    scores = score_sequence("bike", truth, truth) + score_sequence("judo", np.zeros_like(truth), truth)
    write_csvs(tmp_path, scores)
    with open(tmp_path / "global_results-val.csv", newline="") as file:
        header, row = csv.reader(file)
    assert header == list(GLOBAL_COLUMNS) and row == ["0.500", "0.500", "0.500", "0.000", "0.500", "0.500", "0.000"]
    expected = "Sequence,J-Mean,F-Mean\nbike_1,1.000,1.000\njudo_1,0.000,0.000\n"
    assert (tmp_path / "per-sequence_results-val.csv").read_text() == expected
