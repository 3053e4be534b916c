"""Boxes of an image: forms of records and files, overlaps against a loop in float64, and files of other images."""

import json

import numpy as np
import pytest
from trees import refusal

from revisit.boxes.boxes import NOTHING, Boxes, in_coco, iou, matched, with_sides
from revisit.boxes.predictions_file import read_predictions, read_results

from detectron2.structures import BoxMode

XYWH = [[10.13, 20.41, 30.07, 5.5], [0, 0, 4, 8], [7.25, 1, 2, 3]]


def annotations() -> list[dict]:
    """The same boxes in two of Detectron2's modes, in turn."""
    modes = (BoxMode.XYWH_ABS, BoxMode.XYXY_ABS, BoxMode.XYWH_ABS)
    made = []
    for number, ((x, y, w, h), mode) in enumerate(zip(XYWH, modes, strict=True)):
        box = [x, y, w, h] if mode == BoxMode.XYWH_ABS else [x, y, x + w, y + h]
        made.append({"bbox": box, "bbox_mode": mode, "category_id": number})
    return made


def test_records_of_any_mode_and_results_are_the_same_boxes():
    expected = [[x, y, x + w, y + h] for x, y, w, h in XYWH]
    of_records = Boxes.of_annotations(annotations())
    results = [{"bbox": box, "category_id": n, "score": n / 4} for n, box in enumerate(XYWH)]
    of_results = Boxes.of_results(results)
    assert of_records.xyxy.tolist() == of_results.xyxy.tolist() == expected
    assert of_records.classes.tolist() == of_results.classes.tolist() == [0, 1, 2]
    assert with_sides(of_results.xyxy) == pytest.approx(np.array(XYWH))
    best = of_results[of_results.best_first()]
    assert best.scores.tolist() == [0.5, 0.25, 0] and best.classes.tolist() == [2, 1, 0]
    assert len(Boxes.of_annotations([])) == len(Boxes.of_results([])) == 0


def test_corners_are_summed_in_the_precision_that_is_asked_for():
    """As Detectron2 converts a box at a time: digests of rows that were embedded before depend on each bit."""
    one_by_one = [BoxMode.convert(each["bbox"], each["bbox_mode"], BoxMode.XYXY_ABS) for each in annotations()]
    assert (Boxes.of_annotations(annotations(), np.float32).xyxy == np.array(one_by_one, np.float32)).all()


def test_an_annotation_is_written_as_it_was_read():
    mask = {"size": [8, 8], "counts": b"T3"}
    written = in_coco(annotations()[0] | {"segmentation": mask})
    assert written["bbox"] == XYWH[0] and written["category_id"] == 1 and written["iscrowd"] == 0
    assert json.loads(json.dumps(written["segmentation"]))["counts"] == "T3"
    assert in_coco(annotations()[1])["bbox"] == XYWH[1] and "segmentation" not in in_coco(annotations()[1])


def overlap(one: list[float], other: list[float], is_crowd: bool) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(across, 0) * max(down, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    whole = areas[0] if is_crowd else sum(areas) - shared
    return shared / whole if whole else 0.0


def test_overlaps_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 50, (12, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 40, (12, 2))], axis=1)
    boxes[3, 2:] = boxes[3, :2]  # without area
    crowds = np.arange(7) % 3 == 0
    expected = [[overlap(one, other, crowd) for other, crowd in zip(boxes[5:], crowds, strict=True)] for one in boxes]
    assert iou(boxes, boxes[5:], crowds) == pytest.approx(np.array(expected))
    assert iou(boxes[:0], boxes).shape == (0, 12) and iou(boxes, boxes[:0]).shape == (12, 0)


def test_a_box_finds_the_free_one_that_it_overlaps_most():
    assert matched(np.array([[0.6, 0.9], [0.7, 0.8], [0.5, 0.0], [0.4, 1.0]])).tolist() == [1, 0, NOTHING, NOTHING]
    assert matched(np.zeros((2, 0))).tolist() == [NOTHING, NOTHING]


def test_results_of_other_images_are_refused(tmp_path):
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps([{"image_id": 7, "category_id": 3, "bbox": XYWH[0], "score": 0.5}]))
    found, nothing = read_results(path, [7, 8], [1, 3])
    assert found.classes.tolist() == [1] and len(nothing) == 0
    assert "other images by now: 1 of those" in refusal(read_results, path, [8], [1, 3])
    about = {"images": [{"id": 7, "file_name": "a.png"}], "categories": [{"id": 3, "name": "cat"}]}
    (tmp_path / "images.json").write_text(json.dumps(about))
    ((file, boxes),), names = read_predictions(path)
    assert (file, names, boxes.scores.tolist()) == ("a.png", ["cat"], [0.5])
