"""Neighbours against numpy in float64: exact, in parts of any size, of equals the first, without one's own group."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from revisit.evaluation import nearest as module
from revisit.evaluation.nearest import highest, nearest, nearest_others


def rows_with_copies(count: int, width: int, seed: int) -> np.ndarray:
    """Unit rows (count, width) float32, of which several are the same."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(max(1, count // 3), width)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True))[rng.integers(len(rows), size=count)]


def expected(cosines: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-cosines.round(6), axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize("part", [4096, 5, 1])
@pytest.mark.parametrize("queries", [1, 30])
def test_the_nearest_are_those_of_all_cosines_and_of_equal_ones_the_first(queries, part, monkeypatch):
    monkeypatch.setattr(module, "QUERIES", 7)
    monkeypatch.setattr(module, "ROWS", part)
    rows = rows_with_copies(60, 16, seed=0)
    asked = rows_with_copies(queries, 16, seed=1)
    cosines = asked.astype(np.float64) @ rows.T.astype(np.float64)
    found = nearest(asked, rows, 8)
    assert found.places.tolist() == expected(cosines, 8).tolist()
    assert found.cosines.numpy() == pytest.approx(np.take_along_axis(cosines, found.places.numpy(), 1), abs=1e-6)
    groups = np.arange(60) // 4
    own = groups[:queries]
    cosines[own[:, None] == groups] = -2
    assert nearest(asked, rows, 8, without=(own, groups)).places.tolist() == expected(cosines, 8).tolist()


def test_where_few_others_are_left_the_rest_is_no_neighbour():
    found = nearest_others(torch.eye(4), 3, groups=[0, 0, 0, 1])
    assert found.places[0, 0] == 3 and found.cosines.shape == (4, 3)  # the last row has three others
    assert found.cosines[:3, 1:].eq(-torch.inf).all() and found.cosines[3].isfinite().all()
    assert nearest_others(torch.eye(4), 9).places.shape == (4, 3)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 8))
def test_the_highest_of_equal_scores_are_the_first(scores, count):
    values, columns = highest(torch.tensor(scores).float(), count)
    assert columns.tolist() == np.argsort(-np.array(scores), axis=1, kind="stable")[:, :count].tolist()
    assert values.tolist() == np.take_along_axis(np.array(scores), columns.numpy(), axis=1).tolist()
