"""Hand-counted pixels: what counts, for which class, and that the number of processes changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from revisit.engine.launch import Processes, launch
from revisit.errors import UserError
from revisit.evaluation.sem_seg_evaluation import SemSegEvaluator

from detectron2.data import MetadataCatalog
from detectron2.utils import comm


def evaluator(name: str, classes: list[str], offset: int | None = None) -> SemSegEvaluator:
    metadata = MetadataCatalog.get(name)
    if not metadata.get("stuff_classes"):
        metadata.set(stuff_classes=classes, ignore_label=255, **({} if offset is None else {"label_offset": offset}))
    return SemSegEvaluator(name)


def truth_file(path: Path, ids: list[list[int]]) -> dict:
    Image.fromarray(np.array(ids, np.uint8)).save(path)
    return record_of(path, (len(ids), len(ids[0])))


def record_of(path: Path, size: tuple[int, int]) -> dict:
    """An input with the mask at ``path`` and an image of ``size``."""
    return {"file_name": "a.jpg", "sem_seg_file_name": str(path), "height": size[0], "width": size[1]}


def prediction(classes: list[list[int]], num_classes: int) -> dict:
    """Logits whose largest is that of ``classes``."""
    one_hot = torch.nn.functional.one_hot(torch.tensor(classes), num_classes)
    return {"sem_seg": one_hot.permute(2, 0, 1).float() - 0.5}


def test_percentages_are_those_counted_by_hand(tmp_path):
    # "cat" occurs in the truth alone, "dog" in a prediction alone, "cow" nowhere; 255 hides a wrong pixel.
    found = evaluator("seg_by_hand", ["sky", "car", "cat", "dog", "cow"])
    first = truth_file(tmp_path / "a.png", [[0, 0, 0, 0], [1, 1, 1, 255]])
    second = truth_file(tmp_path / "b.png", [[0, 2]])
    found.process([first], [prediction([[0, 0, 0, 1], [1, 1, 3, 4]], 5)])
    found.process([second], [prediction([[0, 0]], 5)])
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


def test_ids_that_start_at_1_are_shifted_and_0_counts_nowhere(tmp_path):
    found = evaluator("seg_nyud", ["wall", "floor", "bed"], offset=1)
    record = truth_file(tmp_path / "a.png", [[0, 1, 2, 3]])
    found.process([record], [prediction([[2, 0, 1, 2]], 3)])
    results = found.evaluate()["sem_seg"]
    assert results["mIoU"] == results["pACC"] == 100
    assert results["IoU-bed"] == 100  # the void pixel predicted as a bed is no mistake


def test_ids_of_a_palette_file_are_its_indices(tmp_path):
    classes = [f"class {n}" for n in range(21)]
    image = Image.fromarray(np.array([[0, 1, 15, 255]], np.uint8), mode="P")
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    image.save(tmp_path / "a.png")
    found = evaluator("seg_palette", classes)
    found.process([record_of(tmp_path / "a.png", (1, 4))], [prediction([[0, 1, 15, 3]], 21)])
    results = found.evaluate()["sem_seg"]
    assert {name for name in results if name.startswith("IoU-")} == {"IoU-class 0", "IoU-class 1", "IoU-class 15"}
    assert results["mIoU"] == 100


def test_classes_of_one_name_keep_their_own_numbers(tmp_path):
    found = evaluator("seg_names", ["other", "a/b - c%", "other"])
    found.process([truth_file(tmp_path / "a.png", [[0, 1, 2, 2]])], [prediction([[0, 1, 2, 1]], 3)])
    results = found.evaluate()["sem_seg"]
    assert (results["IoU-other#0"], results["IoU-a/b - c%"], results["IoU-other#2"]) == (100, 50, 50)


def test_a_reset_forgets(tmp_path):
    found = evaluator("seg_reset", ["a", "b"])
    record = truth_file(tmp_path / "a.png", [[0, 1]])
    found.process([record], [prediction([[1, 0]], 2)])
    found.reset()
    found.process([record], [prediction([[0, 1]], 2)])
    assert found.evaluate()["sem_seg"]["mIoU"] == 100


def test_a_truth_of_void_alone_is_refused(tmp_path):
    found = evaluator("seg_void", ["a", "b"])
    found.process([truth_file(tmp_path / "a.png", [[255, 255]])], [prediction([[1, 0]], 2)])
    with pytest.raises(UserError, match="seg_void: every pixel of its truth is void"):
        found.evaluate()


def test_a_prediction_of_another_size_is_a_defect(tmp_path):
    found = evaluator("seg_size", ["a", "b"])
    with pytest.raises(AssertionError, match=r"a.png: prediction \(2, 2, 1\), expected \(2, 1, 2\)"):
        found.process([truth_file(tmp_path / "a.png", [[0, 1]])], [prediction([[0], [1]], 2)])


def test_a_mask_of_another_size_than_its_image_is_named(tmp_path):
    truth_file(tmp_path / "a.png", [[0, 1]])
    with pytest.raises(UserError, match=r"a.png is 2 x 1 pixels, but its image a.jpg is 3 x 1: expected the same"):
        evaluator("seg_image_size", ["a", "b"]).process(
            [record_of(tmp_path / "a.png", (1, 3))], [prediction([[0, 1, 1]], 2)]
        )


def evaluate_share(folder: Path) -> None:
    """Five images; of two processes the first takes four of them."""
    found = evaluator("seg_processes", ["a", "b", "c"])
    rng = np.random.default_rng(0)
    for index in range(5):
        truth, predicted = rng.choice([0, 1, 2, 255], (4, 6)), rng.integers(0, 3, (4, 6))
        if comm.get_world_size() == 1 or comm.get_rank() == int(index == 4):
            file = folder / f"truth_{index}.png"
            found.process([truth_file(file, truth.tolist())], [prediction(predicted.tolist(), 3)])
    results = found.evaluate()
    assert (results is None) == (comm.get_rank() != 0)
    if results:
        (folder / f"{comm.get_world_size()}.json").write_text(json.dumps(results))


def test_two_processes_with_unequal_shares_find_what_one_finds(tmp_path):
    for processes in (1, 2):
        launch(evaluate_share, Processes(processes), device="cpu", args=(tmp_path,))
    assert (tmp_path / "1.json").read_text() == (tmp_path / "2.json").read_text()
