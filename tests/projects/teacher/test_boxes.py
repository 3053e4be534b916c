"""Where boxes go with a look, which of a teacher's are right, and when a class is lost; loops in float64."""

import math

import numpy as np
import pytest
import torch
from small_detectors import SIDE, found_boxes, labels, overlap

from projects.Teacher.geometry import as_labels, look_at_image, moved_boxes
from projects.Teacher.tally import CONFIDENT, RIGHT, Tally, right_ones, scores_of
from projects.Teacher.teacher_detector import above, thresholds_of
from projects.Teacher.watching import lost_class, moved
from revisit.data.views.looks import POLICIES, AutoAugmentLook
from revisit.data.views.operations import MOVES
from revisit.errors import UserError

FLIP = torch.tensor([[-1.0, 0, SIDE], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
ROTATED = torch.tensor([[0.8, -0.6, 5], [0.6, 0.8, -3], [0, 0, 1]], dtype=torch.float64)
GEOMETRIC = [n for n, ((name, _, _), _) in enumerate(POLICIES) if name in MOVES]


def around_ellipse(box: list[float], moves: torch.Tensor) -> list[float]:
    """The box around many moved points of the ellipse that touches the sides of a box."""
    x0, y0, x1, y1 = box
    xs, ys = [], []
    for n in range(20000):
        angle = 2 * math.pi * n / 20000
        x = (x0 + x1) / 2 + (x1 - x0) / 2 * math.cos(angle)
        y = (y0 + y1) / 2 + (y1 - y0) / 2 * math.sin(angle)
        row = [float(a * x + b * y + c) for a, b, c in moves[:2].tolist()]
        xs.append(row[0])
        ys.append(row[1])
    return [min(xs), min(ys), max(xs), max(ys)]


@pytest.mark.parametrize("moves", [FLIP, ROTATED, FLIP @ ROTATED])
def test_a_moved_box_is_around_the_moved_ellipse_of_the_old_one(moves):
    boxes = [[4.0, 8, 20, 12], [30, 30, 31, 60]]
    expected = [around_ellipse(box, moves) for box in boxes]
    found = moved_boxes(torch.tensor(boxes, dtype=torch.float64), moves)
    assert np.allclose(found, expected, atol=1e-5)


def test_a_flip_and_a_shift_are_exact_in_the_dtype_of_boxes():
    boxes = torch.tensor([[4.0, 8, 20, 12], [0, 0, 64, 64]])
    assert moved_boxes(boxes, FLIP).tolist() == [[44, 8, 60, 12], [0, 0, 64, 64]]
    shift = torch.eye(3, dtype=torch.float64)
    shift[0, 2] = 7
    assert moved_boxes(boxes, shift).tolist() == [[11, 8, 27, 12], [7, 0, 71, 64]]


@pytest.mark.parametrize("size", [(40, 64), (64, 40), (64, 64)])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("policy", GEOMETRIC[:3])
def test_things_are_where_a_look_moves_their_boxes(policy, flip, size):
    """A bright disc, on images that are no squares, in looks of AutoAugment that move pixels."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    centre, radius = (size[1] * 0.45, size[0] * 0.55), 9
    is_disc = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
    image = np.where(is_disc[..., None], 255, 60).astype(np.uint8).repeat(3, axis=2)
    box = [centre[0] - radius, centre[1] - radius, centre[0] + radius, centre[1] + radius]
    look = AutoAugmentLook(flip=flip, policy=policy, probabilities=(0.0, 2.0), signs=(0, 1))
    changed, moves = look_at_image(image, look)
    assert changed.shape == image.shape
    rows, columns = np.nonzero(changed[..., 0] > 200)
    seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    (expected,) = moved_boxes(torch.tensor([box]), torch.from_numpy(moves)).tolist()
    inside = np.clip(expected, 0, [size[1], size[0]] * 2)
    assert np.abs(np.array(seen) - inside).max() < 1.6


def test_labels_are_cut_at_the_border_and_left_out_beyond_it():
    shift = torch.eye(3, dtype=torch.float64)
    shift[0, 2] = 50
    found = found_boxes([[2, 2, 12, 12], [8, 8, 24, 24], [40, 2, 60, 12]], [0, 1, 2], [0.9, 0.8, 0.7])
    moved = as_labels(found, shift)
    assert moved.gt_boxes.tensor.tolist() == [[52, 2, 62, 12], [58, 8, 64, 24]]
    assert moved.gt_classes.tolist() == [0, 1]


def test_every_class_has_its_own_threshold():
    found = found_boxes([[0, 0, 9, 9]] * 4, [0, 1, 0, 1], [0.5, 0.5, 0.9, 0.95])
    assert above(found, thresholds_of([0.4, 0.95], 2)).scores.tolist() == pytest.approx([0.5, 0.9, 0.95])
    assert thresholds_of([0.7], 3).tolist() == pytest.approx([0.7] * 3)
    with pytest.raises(UserError, match="2 numbers for 3 classes: expected one, or one for each"):
        thresholds_of([0.7, 0.8], 3)


def right_by_loops(boxes, classes, scores, true, true_classes) -> list[bool]:
    right, taken = [False] * len(boxes), set()
    for n in sorted(range(len(boxes)), key=lambda n: -scores[n]):
        free = [m for m in range(len(true)) if m not in taken and true_classes[m] == classes[n]]
        best = max(free, key=lambda m: overlap(boxes[n], true[m]), default=None)
        if best is not None and overlap(boxes[n], true[best]) >= 0.5:
            right[n] = True
            taken.add(best)
    return right


def test_what_is_right_equals_loops_in_float64():
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(40):
        counts = rng.integers(0, 7, size=2)
        true, boxes = (np.tile(rng.uniform(0, 20, (n, 2)), 2) + [0, 0, 20, 20] for n in counts)
        true_classes, classes = (rng.integers(0, 2, size=n).tolist() for n in counts)
        scores = rng.random(counts[1]).tolist()
        found = right_ones(found_boxes(boxes.tolist(), classes, scores), labels(true.tolist(), true_classes)).tolist()
        assert found == right_by_loops(boxes.tolist(), classes, scores, true.tolist(), true_classes)
        outcomes += found
    assert 0.1 < np.mean(outcomes) < 0.9


def test_the_numbers_of_a_log_are_those_counted_by_hand():
    tally = Tally(2)
    tally.add_pseudo_boxes([found_boxes([[0, 0, 9, 9]] * 3, [0, 1, 1], [0.75, 1.0, 0.5]), found_boxes([], [], [])])
    batch = [{"instances": labels([[0, 0, 10, 10], [20, 20, 30, 30]], [1, 0])}]
    tally.add_labels(batch)
    tally.add_agreement([found_boxes([[0, 0, 9, 10], [0, 0, 10, 10]], [1, 0], [0.9, 0.9])], batch)
    table, photographs = tally.take()
    assert table[RIGHT].tolist() == [0, 1] and table[CONFIDENT].tolist() == [1, 1]
    assert scores_of(table, photographs, ["cat", "dog"]) == pytest.approx({
        "teacher/boxes": 1.5, "teacher/score": 0.75, "teacher/share-cat": 1 / 3, "teacher/share-dog": 2 / 3,
        "teacher/precision": 0.5, "teacher/recall": 0.5,
    })  # fmt: skip
    empty, photographs = tally.take()
    assert empty.sum() == 0 and photographs == 0 and scores_of(empty, photographs, ["cat", "dog"]) == {}


@pytest.mark.parametrize(
    ("found", "true", "lost"),
    [
        ([995, 5], [85, 15], 1),  # a thirtieth of the 150 that the labels let expect
        ([980, 20], [85, 15], 1),
        ([960, 40], [85, 15], -1),
        ([900, 95, 5], [80, 10, 10], 2),
        ([1000, 0], [100, 0], -1),  # as the labels
        ([1000], [40], -1),  # there is but one class
        ([18, 0], [50, 50], -1),  # too few
        ([0, 60], [50, 50], 0),
        ([0, 0], [50, 50], -1),
    ],
)
def test_a_class_is_lost_that_has_a_fifth_of_what_its_share_among_labels_lets_expect(found, true, lost):
    assert lost_class(torch.tensor(found).double(), torch.tensor(true).double()) == lost


def test_a_threshold_falls_where_too_little_of_its_class_is_found_and_rises_again():
    thresholds, highest = torch.tensor([0.7, 0.7, 0.32, 0.7, 0.5]), torch.full((5,), 0.7)
    boxes, wanted = torch.tensor([900.0, 3, 0, 0, 60]), torch.tensor([800.0, 60, 40, 4, 50])
    expected = torch.tensor([0.7, 0.65, 0.3, 0.7, 0.55])  # of the fourth too few are wanted to say
    torch.testing.assert_close(moved(thresholds, boxes, wanted, 0.3, highest), expected)
    torch.testing.assert_close(moved(highest, boxes, wanted, 0.9, highest), highest)
