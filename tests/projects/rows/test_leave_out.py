"""Classifiers that leave out an image, against scikit-learn in a plain loop; intervals."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from projects.Rows.leave_image_out import (
    NEIGHBORS,
    STRENGTH,
    balanced_accuracy,
    knn_without_image,
    ridge_classes,
    ridge_without_image,
    root_mean_square,
    with_interval,
)


@pytest.fixture
def regions() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of three classes of unlike size on 12 images."""
    rng = np.random.default_rng(0)
    classes = rng.choice(3, 200, p=(0.7, 0.2, 0.1))
    rows = rng.normal(size=(3, 16))[classes] + rng.normal(size=(200, 16), scale=2)
    return rows, classes, rng.integers(12, size=200)


def plain_loop(regions, fit) -> np.ndarray:
    rows, classes, images = regions
    found = np.empty(len(rows))
    for number in np.unique(images):
        own = images == number
        found[own] = fit(rows[~own], classes[~own], np.flatnonzero(~own)).predict(rows[own])
    return found


def test_the_vote_is_scikit_learns_without_the_image(regions):
    found = knn_without_image(*(torch.from_numpy(part) for part in regions))
    voters = KNeighborsClassifier(NEIGHBORS, metric="cosine", algorithm="brute")
    np.testing.assert_array_equal(found, plain_loop(regions, lambda x, y, _: voters.fit(x, y)))


def test_the_ridge_is_scikit_learns_without_the_image(regions):
    rows, classes, images = regions
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    rows = np.concatenate([rows, np.ones((200, 1))], axis=1)  # the constant, which is penalised too
    balance = 200 / (3 * np.bincount(classes))

    def classifier(x, y, _):
        model = RidgeClassifier(alpha=STRENGTH * 200, fit_intercept=False)
        return model.fit(x, y, sample_weight=balance[y])

    found = ridge_classes(*(torch.from_numpy(part) for part in regions))
    np.testing.assert_array_equal(found, plain_loop((rows, classes, images), classifier))

    depths = np.random.default_rng(1).normal(size=200)
    said = ridge_without_image(*map(torch.from_numpy, (regions[0], depths[:, None], images)), torch.ones(200))
    model = Ridge(alpha=STRENGTH * 200, fit_intercept=False)
    expected = plain_loop((rows, depths, images), lambda x, y, _: model.fit(x, y))
    np.testing.assert_allclose(said[:, 0], expected, rtol=1e-9)


def test_scores_are_scikit_learns_and_intervals_those_of_images_drawn_again(regions):
    _, classes, images = regions
    found = np.where(np.random.default_rng(2).random(200) < 0.7, classes, 0)
    score = balanced_accuracy(*(torch.from_numpy(part) for part in (found, classes, images)))
    whole = with_interval(score, 12)
    assert whole.value == pytest.approx(100 * balanced_accuracy_score(classes, found), abs=1e-9)
    assert whole == with_interval(score, 12) and whole.low < whole.value < whole.high
    twice = np.concatenate([np.flatnonzero(images == n) for n in range(12) for _ in range(1 + (n == 3))])
    weights = np.ones((1, 12)) + (np.arange(12) == 3)
    assert score(weights)[0] == pytest.approx(100 * balanced_accuracy_score(classes[twice], found[twice]), abs=1e-9)


def test_an_interval_is_the_middle_95_percent():
    """Of 16 draws at most 3 are of the first 8 images in 1.1 % of all cases, up to 4 in 3.8 %, up to 5 in 10.5 %."""
    assert with_interval(lambda weights: weights[:, :8].sum(axis=1), 16) == (8, 4, 12)


def test_an_error_of_depth_is_that_of_all_regions():
    said, depths, images = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 3.0, 1.0]), torch.tensor([0, 0, 1])
    score = root_mean_square(said, depths, images)
    assert score(np.ones((1, 2)))[0] == pytest.approx((10 / 3) ** 0.5)
    assert score(np.array([[2.0, 0.0]]))[0] == pytest.approx(0.5**0.5)
