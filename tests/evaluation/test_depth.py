"""Hand-computed errors in metres: which pixels count, and that the number of processes changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from revisit.engine.launch import Processes, launch
from revisit.errors import UserError
from revisit.evaluation.depth_evaluation import DepthEvaluator

from detectron2.utils import comm


def truth_file(path: Path, metres: list[list[float]]) -> dict:
    np.save(path, np.array(metres, np.float32))
    return {"file_name": "a.jpg", "depth_file_name": str(path), "height": len(metres), "width": len(metres[0])}


def prediction(metres: list[list[float]]) -> dict:
    return {"depth": torch.tensor(metres, dtype=torch.float32)}


def test_errors_are_those_computed_by_hand(tmp_path):
    found = DepthEvaluator("depth_by_hand")
    first = truth_file(tmp_path / "a.npy", [[1, 2], [4, 0]])
    second = truth_file(tmp_path / "b.npy", [[2]])
    # Ratios 1, 1.5 and 2, and a missing pixel; then an image with one pixel and a ratio of 8.
    found.process([first, second], [prediction([[1, 3], [2, 50]]), prediction([[0.25]])])
    results = found.evaluate()["depth"]
    assert results == pytest.approx(
        {
            "rmse": math.sqrt((0 + 1 + 4 + 1.75**2) / 4),  # over pixels, not the mean of the images'
            "absrel": (0 + 1 / 2 + 2 / 4 + 1.75 / 2) / 4,
            "delta1": 25.0,  # ratios below 1.25
            "delta2": 50.0,  # below 1.5625
            "delta3": 50.0,  # below 1.953125
        }
    )


def test_an_estimate_on_the_bound_is_not_within_it(tmp_path):
    found = DepthEvaluator("depth_bound")
    found.process([truth_file(tmp_path / "a.npy", [[4, 5, 4]])], [prediction([[5, 4, 4.99]])])
    assert found.evaluate()["depth"]["delta1"] == pytest.approx(100 / 3)


def test_estimates_that_are_not_positive_count_as_almost_nothing(tmp_path):
    found = DepthEvaluator("depth_negative")
    found.process([truth_file(tmp_path / "a.npy", [[3, 4]])], [prediction([[-100, 0]])])
    results = found.evaluate()["depth"]
    assert results["rmse"] == pytest.approx(math.sqrt((9 + 16) / 2))
    assert results["absrel"] == pytest.approx(1) and results["delta3"] == 0


def test_errors_are_added_in_double_precision(tmp_path):
    """In float32 the eighth digit would be wrong."""
    found = DepthEvaluator("depth_sum")
    record = truth_file(tmp_path / "a.npy", [[100.0] * 1000])
    output = {"depth": torch.full((1, 1000), 100.001)}
    for _ in range(3):
        found.process([record], [output])
    error = float(np.float32(100.001)) - 100
    assert found.evaluate()["depth"]["rmse"] == pytest.approx(error, rel=1e-12)


def test_a_reset_forgets(tmp_path):
    found = DepthEvaluator("depth_reset")
    record = truth_file(tmp_path / "a.npy", [[1]])
    found.process([record], [prediction([[9]])])
    found.reset()
    found.process([record], [prediction([[1]])])
    assert found.evaluate()["depth"]["rmse"] == 0


@pytest.mark.parametrize("num_images", [0, 2])
def test_a_set_without_any_known_depth_is_refused(tmp_path, num_images):
    found = DepthEvaluator("depth_missing")
    record = truth_file(tmp_path / "a.npy", [[0, 0]])
    found.process([record] * num_images, [prediction([[1, 1]])] * num_images)
    with pytest.raises(UserError, match=f"depth_missing: none of its {num_images} depth maps has a pixel"):
        found.evaluate()


def test_a_prediction_of_another_size_is_a_defect(tmp_path):
    with pytest.raises(AssertionError, match=r"a.npy: prediction \(2, 1\), expected \(1, 2\)"):
        DepthEvaluator("depth_size").process([truth_file(tmp_path / "a.npy", [[1, 2]])], [prediction([[1], [2]])])


def test_a_depth_map_of_another_size_than_its_image_is_named(tmp_path):
    record = truth_file(tmp_path / "a.npy", [[1, 2]]) | {"width": 3}
    with pytest.raises(UserError, match=r"a.npy is 2 x 1 pixels, but its image a.jpg is 3 x 1: expected the same"):
        DepthEvaluator("depth_image_size").process([record], [prediction([[1, 1, 1]])])


def evaluate_share(folder: Path) -> None:
    """Six images; of two processes the first takes five of them, or all."""
    shares = {"uneven": 5, "all": 6}
    rng = np.random.default_rng(0)
    images = [(rng.uniform(0.5, 10, (7, 9)) * (rng.random((7, 9)) < 0.8), rng.normal(5, 4, (7, 9))) for _ in range(6)]
    for name, first_share in shares.items():
        found = DepthEvaluator("depth_processes")
        for index, (truth, predicted) in enumerate(images):
            if comm.get_world_size() == 1 or comm.get_rank() == int(index >= first_share):
                record = truth_file(folder / f"{name}_{index}.npy", truth.tolist())
                found.process([record], [prediction(predicted.tolist())])
        results = found.evaluate()
        assert (results is None) == (comm.get_rank() != 0)
        if results:
            (folder / f"{name}_{comm.get_world_size()}.json").write_text(json.dumps(results))


def test_two_processes_with_unequal_shares_find_what_one_finds(tmp_path):
    for processes in (1, 2):
        launch(evaluate_share, Processes(processes), device="cpu", args=(tmp_path,))
    one = (tmp_path / "uneven_1.json").read_text()
    assert one == (tmp_path / "uneven_2.json").read_text() == (tmp_path / "all_2.json").read_text()
