"""What a report shows of a detector: matches as pycocotools makes them, what is confused, pictures, and refusals."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import run
from folders import make_run
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from projects.Reports import detections, page
from projects.Reports.collect import collect
from projects.Reports.detections import FOUND, MISSED, WRONG, looks_of, review_of
from projects.Reports.matching import IGNORED, NOTHING, JudgedImage, best_threshold, confusion, curve, judge
from projects.Tiles import window_files
from revisit.boxes.boxes import Boxes
from revisit.data.images import image_bytes
from revisit.data.sources.catalog import drop_records, get_records
from revisit.data.sources.records import NOT_SCORED, fingerprint

from detectron2.structures import BoxMode

SHAPES = ("disk", "square", "triangle", "star", "cross")
NAMES = ["bird", "cat", "dog"]


def made_up(seed: int = 0, images: int = 12) -> tuple[list[dict], list[dict]]:
    """Records of boxes, some of them crowds, and results near some of them, of mostly their class."""
    draw = np.random.default_rng(seed)
    records, results = [], []
    for number in range(images):
        annotations = []
        for _ in range(draw.integers(0, 7)):
            box = [*draw.uniform(0, 60, 2), *draw.uniform(15, 40, 2)]
            of = {"category_id": int(draw.integers(3)), "iscrowd": int(draw.random() < 0.1)}
            annotations.append({"bbox": box, "bbox_mode": BoxMode.XYWH_ABS, **of})
            for _ in range(draw.integers(0, 4)):
                near = (np.array(box) + draw.normal(0, 3, 4)).tolist()
                category = of["category_id"] if draw.random() < 0.8 else int(draw.integers(3))
                score = float(draw.random())
                results.append({"image_id": number, "bbox": near, "category_id": category, "score": score})
        records.append({"image_id": number, "height": 100, "width": 100, "annotations": annotations})
    return records, results


def judged(records: list[dict], results: list[dict]) -> list[JudgedImage]:
    of_image = [[result for result in results if result["image_id"] == r["image_id"]] for r in records]
    return [judge(r, Boxes.of_results(found)) for r, found in zip(records, of_image, strict=True)]


def by_pycocotools(records: list[dict], results: list[dict]) -> np.ndarray:
    """Precision at IoU 0.5, (101 recalls, classes)."""
    annotations = [{"image_id": r["image_id"], **a} for r in records for a in r["annotations"]]
    for number, annotation in enumerate(annotations, 1):
        annotation |= {"id": number, "area": annotation["bbox"][2] * annotation["bbox"][3], "bbox_mode": 1}
    truth = COCO()
    categories = [{"id": n, "name": name} for n, name in enumerate(NAMES)]
    ids = [{"id": r["image_id"], "height": 100, "width": 100} for r in records]
    truth.dataset = {"images": ids, "categories": categories, "annotations": annotations}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluated = COCOeval(truth, truth.loadRes([dict(result) for result in results]), "bbox")
        evaluated.evaluate()
        evaluated.accumulate()
    return evaluated.eval["precision"][0, :, :, 0, -1]


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_pycocotools(seed):
    records, results = made_up(seed)
    images = judged(records, results)
    ours = [curve(images, number).average_precision() for number in range(3)]
    assert ours == pytest.approx(by_pycocotools(records, results).mean(axis=0).tolist(), abs=1e-9)


def one_image(results: list[tuple], truth: list[tuple], mark: str = "iscrowd") -> JudgedImage:
    """Of boxes as x, y, side, class, then a score or whether it is a crowd."""
    boxes = [
        {"bbox": [x, y, a, a], "bbox_mode": BoxMode.XYWH_ABS, "category_id": n, mark: c} for x, y, a, n, c in truth
    ]
    found = [{"bbox": [x, y, a, a], "category_id": n, "score": score} for x, y, a, n, score in results]
    return judge({"annotations": boxes}, Boxes.of_results(found))


@pytest.mark.parametrize("mark", ["iscrowd", NOT_SCORED])
def test_found_missed_wrong_and_confused_boxes_are_told_apart(mark):
    truth = [(0, 0, 10, 0, 0), (20, 0, 10, 1, 0), (40, 0, 10, 2, 0), (60, 0, 30, 0, 1)]
    results = [
        (0, 1, 10, 0, 0.9),  # the bird
        (0, 0, 10, 0, 0.8),  # the bird again
        (20, 0, 10, 2, 0.7),  # the cat, taken for a dog
        (80, 50, 10, 1, 0.6),  # nothing there
        (65, 5, 10, 0, 0.5),  # in the crowd
        (40, 0, 10, 2, 0.1),  # the dog, at a low score
    ]
    image = one_image(results, truth, mark)
    assert image.match.tolist() == [0, NOTHING, NOTHING, NOTHING, IGNORED, 2]
    assert image.missed(0.3).tolist() == [False, True, True] and image.missed(0.0).tolist() == [False, True, False]
    assert image.wrong(0.65).tolist() == [False, True, True, False, False, False] and image.errors(0.3) == 5
    expected = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]]  # the last: nothing there, nothing predicted
    assert confusion([image], 0.3, 3).tolist() == expected


def test_the_threshold_has_the_highest_f1():
    records, results = made_up(1)
    images = judged(records, results)

    def f1(threshold: float) -> float:
        table = confusion(images, threshold, 3)
        found = table.diagonal().sum()
        return 2 * found / (table[:-1].sum() + table[:, :-1].sum())

    best = best_threshold(images)
    assert f1(best) == max(f1(result["score"]) for result in results) > 0
    assert best_threshold(judged(records, [])) == 0.0


def test_without_truth_or_predictions_there_is_no_curve_or_none_of_it():
    assert curve([one_image([(0, 0, 5, 0, 0.5)], [])]) is None
    nothing = curve([one_image([], [(0, 0, 5, 0, 0)])], 0)
    assert nothing.average_precision() == 0.0 and not len(nothing.recall)


@pytest.fixture
def run_of_detector(tmp_path) -> Path:
    """A folder of photographs with boxes, and that of a run whose predictions are some of them."""
    photos, coco = tmp_path / "photos", {"images": [], "annotations": [], "categories": []}
    photos.mkdir()
    coco["categories"] = [{"id": 10 * n + 7, "name": name} for n, name in enumerate(NAMES)]
    results = []
    for number in range(1, 13):
        Image.new("RGB", (96, 64), (90, 120, 90)).save(photos / f"{number}.png")
        coco["images"].append({"id": number, "file_name": f"{number}.png", "height": 64, "width": 96})
        for n in range(2):
            box = [4 + 40 * n, 10, 30, 40]
            where = {"image_id": number, "category_id": 10 * n + 7, "bbox": box}
            coco["annotations"].append({"id": 2 * number + n, "area": 1200, "iscrowd": 0, **where})
            if n == 0 or number > 4:
                results.append({**where, "score": 0.9 - 0.01 * number})
    (tmp_path / "boxes.json").write_text(json.dumps(coco))
    run = make_run(tmp_path / "run", config="MODEL: {META_ARCHITECTURE: GeneralizedRCNN}\n")
    (run / "inference").mkdir()
    (run / "inference/coco_instances_results.json").write_text(json.dumps(results))
    about = {"data_set": f"coco:{photos}:{tmp_path}/boxes.json", "classes": {"17": "cat", "7": "bird", "27": "dog"}}
    (run / "inference/data_set.json").write_text(json.dumps(about))
    return run


def test_a_review_counts_by_class_and_draws_the_worst_images_first(run_of_detector, tmp_path):
    (run,), _ = collect([run_of_detector])
    (tmp_path / "pictures").mkdir()
    review = review_of(run, tmp_path / "pictures")
    assert review.problem == "" and review.count == 12
    assert review.classes.rows[0] == ["cat", "12", "8", "4", "0", "66.7", "100.0", "66.3"]  # 67 of 101 recalls
    assert review.classes.rows[1][:5] == ["bird", "12", "12", "0", "0"] and review.classes.rows[2][1] == "0"
    worst = np.asarray(Image.open(review.pictures[0][0]).convert("RGB")).reshape(-1, 3)
    near = [np.abs(worst.astype(int) - color).sum(axis=1) < 12 for color in (FOUND, MISSED, WRONG)]
    assert [int(pixels.sum()) > 200 for pixels in near] == [True, True, True]  # the last in the legend alone
    assert len(review.pictures) == 2


def test_the_page_shows_a_review_and_whose_images_are_in_it_is_printed(run_of_detector, tmp_path, capsys):
    html = page.render(*collect([run_of_detector]))
    images = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    assert f"run: the page shows images of {images}\n" in capsys.readouterr().out
    section = re.search(r'<section id="detections">.*?</section>', html, re.S)[0]
    assert section.count('<img src="data:image/webp') == 2 and "Precision over recall" in section
    assert "12 images, at the last evaluation" in section and '"name": "cat"' in section


def test_of_a_scan_windows_are_drawn_the_worst_and_the_best_and_no_more_than_these_are_read(
    run_of_detector, tmp_path, monkeypatch
):
    monkeypatch.setattr(detections, "LARGE", 90)
    monkeypatch.setattr(detections, "SIDE", 32)
    windows, read_window = [], window_files.read_window

    def noted(file_name: str, window: tuple) -> object:
        windows.append(window)
        return read_window(file_name, window)

    def refused(*_: object) -> bytes:
        raise AssertionError("a scan is read whole")

    monkeypatch.setattr(window_files, "read_window", noted)
    monkeypatch.setattr(image_bytes, "read_file", refused)
    (run,), _ = collect([run_of_detector])
    (tmp_path / "pictures").mkdir()
    review = review_of(run, tmp_path / "pictures")
    assert review.problem == "" and review.classes.rows[0][:5] == ["cat", "12", "8", "4", "0"]
    assert [caption.split(",")[0] for _, caption in review.pictures] == [
        "most errors first",
        "most found first",
        "others",
    ]
    assert len(windows) == 6 + 4 + 4 and windows[0] == (32, 0, 64, 32)  # the missed cat's centre is 59, 30
    found = np.asarray(Image.open(review.pictures[1][0]).convert("RGB")).reshape(-1, 3)
    assert (np.abs(found.astype(int) - FOUND).sum(axis=1) < 12).sum() > 200


def test_boxes_of_a_scan_count_in_the_window_of_their_centre(monkeypatch):
    monkeypatch.setattr(detections, "LARGE", 90)
    monkeypatch.setattr(detections, "SIDE", 40)
    truth = [(0, 0, 10, 0, 0), (36, 0, 10, 1, 0), (90, 60, 10, 0, 0), (50, 50, 10, 2, 0)]
    results = [(0, 0, 10, 0, 0.9), (90, 60, 10, 0, 0.9), (42, 4, 10, 0, 0.8), (50, 50, 10, 0, 0.7), (95, 0, 9, 0, 0.1)]
    image = one_image(results, truth)
    whole = looks_of(image, 0.5)
    assert [(look.errors, look.found, look.window) for look in whole] == [(4, 2, ())]
    looks = looks_of(image._replace(record={**image.record, "height": 70, "width": 100}), 0.5)
    assert [look.window for look in looks][1:4] == [(40, 0, 80, 40), (80, 0, 100, 40), (0, 40, 40, 70)]
    assert [look.errors for look in looks] == [0, 2, 0, 0, 2, 0] and [look.found for look in looks] == [
        1,
        0,
        0,
        0,
        0,
        1,
    ]


def test_data_that_are_gone_or_others_are_a_line_of_the_page(run_of_detector, tmp_path):
    (tmp_path / "boxes.json").rename(tmp_path / "moved.json")
    (run,), _ = collect([run_of_detector])
    assert "boxes.json" in review_of(run, tmp_path).problem
    about = json.loads((run_of_detector / "inference/data_set.json").read_text())
    about["data_set"] = f"coco:{tmp_path}/photos:{tmp_path}/moved.json"
    (run_of_detector / "inference/data_set.json").write_text(json.dumps(about))
    results = [{"image_id": 99, "category_id": 7, "bbox": [0, 0, 5, 5], "score": 0.5}]
    (run_of_detector / "inference/coco_instances_results.json").write_text(json.dumps(results))
    assert "the data set has other images by now: 1 of" in review_of(run, tmp_path).problem
    about["images"] = fingerprint(get_records(about["data_set"])[1:])
    (run_of_detector / "inference/data_set.json").write_text(json.dumps(about))
    assert "the data set has other images by now, by number: evaluate again" in review_of(run, tmp_path).problem
    (run_of_detector / "inference/data_set.json").unlink()
    assert review_of(run, tmp_path) is None


def test_labels_that_have_changed_since_are_said(run_of_detector, tmp_path):
    about = json.loads((run_of_detector / "inference/data_set.json").read_text())
    about["images"] = fingerprint(get_records(about["data_set"], list(about["classes"].values())))
    (run_of_detector / "inference/data_set.json").write_text(json.dumps(about))
    (run,), _ = collect([run_of_detector])
    assert "labels have changed" not in review_of(run, tmp_path).data_set
    coco = json.loads((tmp_path / "boxes.json").read_text())
    coco["annotations"].pop()
    (tmp_path / "boxes.json").write_text(json.dumps(coco))
    drop_records()
    assert "whose labels have changed since the run was evaluated" in review_of(run, tmp_path).data_set


def test_the_command_knows_the_data_sets_of_toy_scenes(run_of_detector, toy_root, tmp_path):
    classes = [f"{surface}_{shape}" for shape in SHAPES for surface in ("striped", "dotted")]
    about = {"data_set": "toy_coco_val", "classes": {str(n): name for n, name in enumerate(classes, start=1)}}
    (run_of_detector / "inference/data_set.json").write_text(json.dumps(about))
    (run_of_detector / "inference/coco_instances_results.json").write_text("[]")
    run(f"python tools/report.py {run_of_detector} --output {tmp_path}/report.html", toy_root)
    page_text = (tmp_path / "report.html").read_text()
    assert "run: toy_coco_val" in page_text and "images, at the last evaluation" in page_text


def test_the_threshold_leaves_equal_scores_together():
    """Two things; one prediction is right at 0.9, one of twelve at 0.5: within these none comes first."""
    truth = [(0, 0, 10, 0, 0), (40, 0, 20, 0, 0)]
    wrong = [(100 + 20 * n, 50, 10, 0, 0.5) for n in range(11)]
    right = [(0, 0, 10, 0, 0.9), (40, 0, 20, 0, 0.5)]
    assert best_threshold([one_image([*right, *wrong], truth)]) == 0.9
