"""Pixels counted and errors computed by hand: what counts, and that the number of processes changes nothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import launch_forks
from PIL import Image
from trees import refused

from revisit.errors import UserError
from revisit.evaluation.pixel_evaluators import DepthEvaluator, SemSegEvaluator

from detectron2.data import MetadataCatalog
from detectron2.utils import comm


def segmentation(name: str, classes: list[str], offset: int | None = None) -> SemSegEvaluator:
    metadata = MetadataCatalog.get(name)
    if not metadata.get("stuff_classes"):
        metadata.set(stuff_classes=classes, ignore_label=255, **({} if offset is None else {"label_offset": offset}))
    return SemSegEvaluator(name)


def labels(path: Path, ids: list[list[int]]) -> dict:
    """An input whose truth is a mask."""
    Image.fromarray(np.array(ids, np.uint8)).save(path)
    return {"file_name": "a.jpg", "sem_seg_file_name": str(path), "height": len(ids), "width": len(ids[0])}


def logits(classes: list[list[int]], num_classes: int) -> dict:
    """An output whose largest logit is that of ``classes``."""
    one_hot = torch.nn.functional.one_hot(torch.tensor(classes), num_classes)
    return {"sem_seg": one_hot.permute(2, 0, 1).float() - 0.5}


def metres(path: Path, values: list[list[float]]) -> dict:
    """An input whose truth is a depth map."""
    np.save(path, np.array(values, np.float32))
    return {"file_name": "a.jpg", "depth_file_name": str(path), "height": len(values), "width": len(values[0])}


def depths(values: list[list[float]]) -> dict:
    return {"depth": torch.tensor(values, dtype=torch.float32)}


def depth_of(*pairs: tuple[dict, dict]) -> dict[str, float]:
    """The results of inputs and outputs."""
    found = DepthEvaluator("depth_by_hand")
    found.process([record for record, _ in pairs], [output for _, output in pairs])
    return found.evaluate()["depth"]


def test_percentages_are_those_counted_by_hand(tmp_path):
    # "cat" occurs in the truth alone, "dog" in a prediction alone, "cow" nowhere; 255 hides a wrong pixel.
    found = segmentation("seg_by_hand", ["sky", "car", "cat", "dog", "cow"])
    first = labels(tmp_path / "a.png", [[0, 0, 0, 0], [1, 1, 1, 255]])
    found.process([first], [logits([[0, 0, 0, 1], [1, 1, 3, 4]], 5)])
    found.process([labels(tmp_path / "b.png", [[0, 2]])], [logits([[0, 0]], 5)])
    results = found.evaluate()["sem_seg"]
    # sky: 4 right, truth 5, predicted 5; car: 2, 3, 3; cat: 0, 1, 0; dog: 0, 0, 1
    expected = {
        "IoU-sky": 400 / 6, "IoU-car": 200 / 4, "IoU-cat": 0, "IoU-dog": 0,
        "ACC-sky": 400 / 5, "ACC-car": 200 / 3, "ACC-cat": 0,
        "mIoU": (400 / 6 + 200 / 4) / 4,
        "mACC": (400 / 5 + 200 / 3) / 3,
        "pACC": 600 / 9,
        "fwIoU": (5 * 400 / 6 + 3 * 200 / 4) / 9,
    }  # fmt: skip
    assert results == pytest.approx(expected)
    assert json.loads(json.dumps(results, allow_nan=False)) == results


def test_classes_are_resized_by_opencvs_nearest_pixel(tmp_path):
    rng = np.random.default_rng(0)
    predicted, truth = rng.integers(0, 3, (6, 5)), rng.choice([0, 1, 2, 255], (7, 11))
    record = labels(tmp_path / "a.png", truth.tolist()) | {"height": 6, "width": 5, "file_size": (7, 11)}
    found = segmentation("seg_resized", ["sky", "car", "cat"])
    found.process([record], [logits(predicted.tolist(), 3)])
    rows, columns = (np.arange(n) * m // n for n, m in ((7, 6), (11, 5)))
    known, resized = truth != 255, predicted[rows][:, columns]
    assert found.evaluate()["sem_seg"]["pACC"] == pytest.approx(100 * (resized == truth)[known].mean())
    with pytest.raises(UserError, match="is 11 x 7 pixels, but its image a.jpg is 5 x 6"):
        found.process([{**record, "file_size": (6, 5)}], [logits(predicted.tolist(), 3)])


def test_ids_from_1_are_shifted_and_0_ignored(tmp_path):
    found = segmentation("seg_nyud", ["wall", "floor", "bed"], offset=1)
    found.process([labels(tmp_path / "a.png", [[0, 1, 2, 3]])], [logits([[2, 0, 1, 2]], 3)])
    results = found.evaluate()["sem_seg"]
    assert results["mIoU"] == results["pACC"] == 100
    assert results["IoU-bed"] == 100  # the void pixel predicted as a bed is no mistake


def test_palette_ids_are_indices_and_equal_names_numbered(tmp_path):
    found = segmentation("seg_palette", ["other", "a/b - c%", "other"])
    record = labels(tmp_path / "a.png", [[0, 1, 2, 2, 255]])
    image = Image.fromarray(np.array([[0, 1, 2, 2, 255]], np.uint8), mode="P")
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    image.save(tmp_path / "a.png")
    found.process([record], [logits([[0, 1, 2, 1, 2]], 3)])
    results = found.evaluate()["sem_seg"]
    assert {n: x for n, x in results.items() if n.startswith("IoU-")} == {
        "IoU-other#0": 100, "IoU-a/b - c%": 50, "IoU-other#2": 50
    }  # fmt: skip


def test_errors_of_depth_are_those_computed_by_hand(tmp_path):
    # Ratios 1, 1.5 and 2, and a missing pixel; then an image with one pixel and a ratio of 8.
    first = metres(tmp_path / "a.npy", [[1, 2], [4, 0]]), depths([[1, 3], [2, 50]])
    results = depth_of(first, (metres(tmp_path / "b.npy", [[2]]), depths([[0.25]])))
    rmse = math.sqrt((0 + 1 + 4 + 1.75**2) / 4)  # over pixels, not the mean of the images'
    absrel = (0 + 1 / 2 + 2 / 4 + 1.75 / 2) / 4
    # Ratios below 1.25, 1.5625 and 1.953125.
    assert results == pytest.approx({"rmse": rmse, "absrel": absrel, "delta1": 25, "delta2": 50, "delta3": 50})


def test_depth_bounds_are_open_and_negative_depths_clipped(tmp_path):
    results = depth_of((metres(tmp_path / "a.npy", [[4, 5, 4]]), depths([[5, 4, 4.99]])))
    assert results["delta1"] == pytest.approx(100 / 3)
    results = depth_of((metres(tmp_path / "a.npy", [[3, 4]]), depths([[-100, 0]])))
    assert results["rmse"] == pytest.approx(math.sqrt((9 + 16) / 2))
    assert results["absrel"] == pytest.approx(1) and results["delta3"] == 0


def test_errors_of_depth_are_added_in_double_precision(tmp_path):
    """In float32 the eighth digit would be wrong."""
    pair = metres(tmp_path / "a.npy", [[100.0] * 1000]), {"depth": torch.full((1, 1000), 100.001)}
    assert depth_of(*[pair] * 3)["rmse"] == pytest.approx(float(np.float32(100.001)) - 100, rel=1e-12)


@pytest.fixture(params=["sem_seg", "depth"])
def evaluator(request, tmp_path):
    """Of each kind: an evaluator, an input of 1 x 2 pixels, right and wrong outputs, an input without truth."""
    if request.param == "depth":
        record, void = metres(tmp_path / "a.npy", [[1, 2]]), metres(tmp_path / "void.npy", [[0, 0]])
        return DepthEvaluator("depth_kind"), record, depths([[1, 2]]), depths([[9, 9]]), void
    record, void = labels(tmp_path / "a.png", [[0, 1]]), labels(tmp_path / "void.png", [[255, 255]])
    return segmentation("sem_seg_kind", ["a", "b"]), record, logits([[0, 1]], 2), logits([[1, 0]], 2), void


def test_a_reset_forgets(evaluator):
    found, record, right, wrong, _ = evaluator
    found.process([record], [right])
    expected = found.evaluate()
    found.process([record], [wrong])
    assert found.evaluate() != expected
    found.reset()
    found.process([record], [right])
    assert found.evaluate() == expected


@pytest.mark.parametrize("num_images", [0, 2])
def test_a_truth_of_void_alone_is_refused(evaluator, num_images):
    found, _, right, _, void = evaluator
    found.process([void] * num_images, [right] * num_images)
    expected = f"(sem_seg_kind: every pixel of its truth is void|depth_kind: none of its {num_images} depth maps has a)"
    refused(expected, found.evaluate)


def test_another_size_of_prediction_or_truth_is_refused(evaluator):
    found, record, right, _, _ = evaluator
    turned = {name: values.transpose(-1, -2) for name, values in right.items()}
    with pytest.raises(AssertionError, match=r"a.(png|npy): prediction \((2, )?2, 1\), expected \((2, )?1, 2\)"):
        found.process([record], [turned])
    expected = r"a.(png|npy) is 2 x 1 pixels, but its image a.jpg is 3 x 1: expected the same"
    refused(expected, found.process, [record | {"width": 3}], [right])


def evaluate_shares(folder: Path) -> list:
    """Six images; of two processes the first takes five of them, or all."""
    results = []
    for first_share in (5, 6):
        rng = np.random.default_rng(0)
        found = DepthEvaluator("depth_processes"), segmentation("seg_processes", ["a", "b", "c"])
        for index in range(6):
            depth, mask = rng.uniform(0.5, 10, (7, 9)) * (rng.random((7, 9)) < 0.8), rng.choice([0, 1, 2, 255], (4, 6))
            estimate, classes = rng.normal(5, 4, (7, 9)).tolist(), rng.integers(0, 3, (4, 6)).tolist()
            if comm.get_world_size() == 1 or comm.get_rank() == int(index >= first_share):
                found[0].process([metres(folder / f"{index}.npy", depth.tolist())], [depths(estimate)])
                found[1].process([labels(folder / f"{index}.png", mask.tolist())], [logits(classes, 3)])
        results.append([one.evaluate() for one in found])
    return results


def test_two_processes_score_as_one(tmp_path):
    (alone,), (first, second) = (launch_forks(evaluate_shares, processes, tmp_path) for processes in (1, 2))
    assert alone[0] == alone[1] == first[0] == first[1] and second == [[None, None]] * 2
