"""COCO's evaluation by hotcoco: pycocotools' numbers, to the last bit, of crowds, ties, empty images and classes."""

import contextlib
import io
import logging
import os

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from revisit.evaluation import fast_coco
from revisit.evaluation.box_evaluators import evaluated
from revisit.evaluation.fast_coco import FastMatching

from detectron2.evaluation.coco_evaluation import COCOevalMaxDets

COUNTED = {100: COCOeval, 1000: COCOevalMaxDets}  # detections of an image
CASES = 25  # for each of them
needs_hotcoco = pytest.mark.skipif(not fast_coco.has_fast_coco(), reason="needs hotcoco (extra [fast])")


def drawn(seed: int, most_objects: int = 25) -> tuple[dict, dict]:
    """Truth and detections: a seventh of the images is empty, a fifth of the classes has no truth, scores tie."""
    rng = np.random.default_rng(seed)
    classes = (rng.permutation(90)[: rng.integers(1, 7)] + 1).tolist()
    images = rng.permutation(1000)[: rng.integers(1, 12)].tolist()
    without_truth = {number for number in classes if rng.random() < 0.2}
    truth, found = [], []
    for image in images:
        for _ in range(rng.integers(0, most_objects) if rng.random() < 6 / 7 else 0):
            number, (width, height) = int(rng.choice(classes)), np.exp(rng.uniform(1, 5.3, 2))
            box = np.array([rng.uniform(0, 600), rng.uniform(0, 440), width, height])
            box = box.round() if rng.random() < 0.4 else box
            area = float(box[2] * box[3] * rng.choice([1, 0.6]))
            crowd = int(rng.random() < 0.12)
            about = {"image_id": image, "category_id": number, "bbox": box.tolist(), "area": area, "iscrowd": crowd}
            truth += [about] if number not in without_truth else []
            for _ in range(rng.integers(0, 3)):
                near = box + rng.normal(0, 1, 4) * box[[2, 3, 2, 3]] * rng.choice([0, 0.02, 0.1])
                near[2:] = np.maximum(near[2:], 0.5)
                score = round(float(rng.uniform()), 1 if seed % 2 else 9)
                about = {"image_id": image, "category_id": int(rng.choice([number, classes[0]])), "iscrowd": 0}
                found.append(about | {"bbox": near.tolist(), "area": float(near[2] * near[3]), "score": score})
    shuffled = [found[n] for n in rng.permutation(len(found))]
    categories = [{"id": number, "name": str(number)} for number in classes]
    shown = [{"id": image, "height": 480, "width": 640} for image in images]
    both = ([{**each, "id": number} for number, each in enumerate(some, 1)] for some in (truth, shuffled))
    return tuple({"images": shown, "categories": categories, "annotations": some} for some in both)


def with_masks(content: dict) -> dict:
    """Three corners of each box as an outline."""
    outlines = [
        {**each, "segmentation": [[x, y, x + width, y, x + width, y + height]]}
        for each in content["annotations"]
        for x, y, width, height in [each["bbox"]]
    ]
    return {**content, "annotations": outlines}


def scores(kind: type, contents: tuple[dict, dict], task: str, counted: int) -> list[bytes]:
    """All arrays that an evaluation makes, bit for bit."""
    with contextlib.redirect_stdout(io.StringIO()):
        made = []
        for content in contents:
            coco = COCO()
            coco.dataset = {**content, "annotations": [dict(each) for each in content["annotations"]]}
            coco.createIndex()
            made.append(coco)
        evaluation = kind(*made, task)
        evaluation.params.maxDets = [1, 10, counted]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    arrays = (*(evaluation.eval[key] for key in ("precision", "recall", "scores")), evaluation.stats)
    return [f"{each.dtype}{each.shape}".encode() + each.tobytes() for each in arrays]


@needs_hotcoco
@pytest.mark.parametrize("task", ["bbox", "segm"])
@pytest.mark.parametrize("counted", COUNTED)
def test_scores_are_those_of_pycocotools_to_the_last_bit(counted, task, caplog):
    caplog.set_level(logging.INFO, logger=fast_coco.__name__)
    fast = type("Fast", (FastMatching, COUNTED[counted]), {})
    for seed in range(CASES):
        contents = drawn(seed, most_objects=300 if seed == 0 and task == "bbox" else 25)
        contents = tuple(map(with_masks, contents)) if task == "segm" else contents
        assert scores(fast, contents, task, counted) == scores(COUNTED[counted], contents, task, counted), seed
    assert set(caplog.messages) == {f"{task} scored by hotcoco"}


@needs_hotcoco
def test_ids_that_are_texts_are_scored_by_pycocotools(caplog):
    caplog.set_level(logging.INFO, logger=fast_coco.__name__)
    contents = drawn(3)
    ap = evaluated(*contents, "bbox").stats
    for content in contents:
        for each in content["annotations"]:
            each["image_id"] = f"{each['image_id']:04}"
        for image in content["images"]:
            image["id"] = f"{image['id']:04}"
    assert evaluated(*contents, "bbox").stats.tolist() == ap.tolist()
    assert caplog.messages == ["bbox scored by hotcoco", "bbox scored by pycocotools"]


def test_without_hotcoco_pycocotools_scores(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger=fast_coco.__name__)
    contents = drawn(4)
    with contextlib.redirect_stdout(io.StringIO()):
        ap = evaluated(*contents, "bbox").stats
    caplog.clear()
    monkeypatch.setattr(fast_coco, "has_fast_coco", lambda: False)
    assert evaluated(*contents, "bbox").stats.tolist() == ap.tolist()
    assert caplog.messages == ["bbox scored by pycocotools"]


@needs_hotcoco
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads, which is what is tried
def test_a_fork_of_a_process_that_used_hotcoco_does_not_wait_for_its_threads(caplog):
    contents = drawn(5)
    ap = evaluated(*contents, "bbox").stats.tolist()
    if (child := os.fork()) == 0:
        os._exit(0 if evaluated(*contents, "bbox").stats.tolist() == ap else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
