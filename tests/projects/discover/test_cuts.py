"""Cuts have the eigenvectors of a dense solver, and the planted objects, all their cells and no others."""

import numpy as np
import pytest
from scipy.linalg import eigh

from projects.Discover import cuts
from projects.Discover.cuts import TAU, UNLIKE, cut_objects, find_cuts, second_eigenvector


def planted_map(rng: np.random.Generator, height: int, width: int, shapes: list[np.ndarray]) -> np.ndarray:
    """Unit features: of the background, of each shape another direction, and noise."""
    features = rng.normal(0, 0.05, (height, width, 16))
    features[..., 0] += 1
    for number, shape in enumerate(shapes, start=1):
        features[shape, 0] -= 1
        features[shape, number] += 1
    return (features / np.linalg.norm(features, axis=2, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("seed", range(20))
def test_the_second_eigenvector_is_that_of_a_dense_solver(seed):
    rng = np.random.default_rng(seed)
    cells = rng.normal(size=(20 + 4 * seed, 3))
    cells /= np.linalg.norm(cells, axis=1, keepdims=True)
    affinity = np.where(cells @ cells.T >= TAU, 1, UNLIKE)
    degrees = np.diag(affinity.sum(axis=1))
    _, vectors = eigh(degrees - affinity, degrees)
    found, expected = (each / np.linalg.norm(each) for each in (second_eigenvector(affinity), vectors[:, 1]))
    assert np.sign(found @ expected) * found == pytest.approx(expected, abs=1e-5)


def test_planted_shapes_are_found_to_the_cell():
    height, width = 24, 30
    rows, columns = np.indices((height, width))
    disc = (rows - 7) ** 2 + (columns - 8) ** 2 <= 20
    ring = (abs(rows - 16) + abs(columns - 20) <= 6) & (abs(rows - 16) + abs(columns - 20) >= 3)
    bar = (rows >= 18) & (rows < 22) & (columns >= 2) & (columns < 10)
    for seed in range(5):
        features = planted_map(np.random.default_rng(seed), height, width, [disc, ring, bar])
        found = {mask.tobytes() for mask in cut_objects(features, 3)}
        assert found == {shape.tobytes() for shape in (disc, ring, bar)}


def test_shapes_that_look_alike_are_cut_one_after_the_other():
    shapes = np.zeros((2, 20, 20), bool)
    shapes[0, 3:8, 3:8], shapes[1, 12:16, 11:18] = True, True
    features = planted_map(np.random.default_rng(0), 20, 20, [shapes.any(axis=0)])
    assert {mask.tobytes() for mask in cut_objects(features, 2)} == {shape.tobytes() for shape in shapes}


def test_an_image_without_differences_has_no_cut():
    assert list(cut_objects(np.zeros((6, 6, 4), np.float32), 3)) == []
    assert find_cuts(np.ones((6, 6, 4), np.float32) / 2, 3, (24, 24)) == []


def test_the_cut_of_a_large_grid_is_that_of_its_averages():
    shape = np.zeros((50, 60), bool)
    shape[20:36, 30:44] = True
    features = planted_map(np.random.default_rng(0), 50, 60, [shape])
    (part,) = find_cuts(features, 1, (240, 200))
    assert part.box == (120, 80, 176, 144) and part.area > 0.98 * 56 * 64  # corners are round
    (whole,) = cut_objects(features, 1)
    assert (whole == shape).all()


@pytest.fixture
def cut_by(monkeypatch):
    """The objects that these vectors cut out of 5 x 7 cells, one after the other."""

    def cut(*vectors):
        given = iter(vectors)
        monkeypatch.setattr(cuts, "second_eigenvector", lambda affinity: next(given))
        features = np.random.default_rng(0).normal(size=(5, 7, 3))
        return list(cut_objects(features / np.linalg.norm(features, axis=2, keepdims=True), len(vectors)))

    return cut


def test_a_later_cut_is_by_the_mean_of_the_cells_that_are_left(cut_by):
    first, second, near = np.zeros((3, 5, 7), bool)
    first[1:3, 1:4], second[3, 4:6], near[2, 4:6] = True, True, True
    values = np.where(second, 3.0, np.where(near, 1.05, 1.0))  # the mean of those that are left is 1.14, of all 0.94
    found = cut_by(np.where(first, 5.0, -1.0).ravel(), values[~first])
    assert (found[0] == first).all() and (found[1] == second).all()


def test_what_has_two_corners_is_the_background(cut_by):
    band, object_ = np.zeros((2, 5, 7), bool)
    band[:, :2], object_[1:4, 3:6] = True, True
    (found,) = cut_by(np.where(band, 5.0, np.where(object_, -2.0, -1.0)).ravel())
    assert (found == ~band).all()
    band[-1] = False  # one corner
    (found,) = cut_by(np.where(band, 5.0, -1.0).ravel())
    assert (found == band).all()
