"""The crop study: overlaps against a direct simulation, limits that hold or are counted, its command."""

import json
import math
import random

import cv2
import numpy as np
import pytest
import yaml
from trees import refused

from projects.Paper.crops import draw_framework, draw_overlaps, read_runs


def simulated_iou(height, width, scale, rng, other=None):
    """One pair of crops by the definition of random resized crops, in real numbers, and its IoU."""
    boxes, scales = [], [scale, other or scale]
    while len(boxes) < 2:
        scale = scales[len(boxes)]
        area, ratio = rng.uniform(*scale) * height * width, math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
            boxes.append((x, y, x + w, y + h))
    (a, b, c, d), (e, f, g, h) = boxes
    shared = max(0, min(c, g) - max(a, e)) * max(0, min(d, h) - max(b, f))
    return shared / ((c - a) * (d - b) + (g - e) * (h - f) - shared)


@pytest.mark.parametrize(("size", "scale"), [((480, 640), (0.2, 1.0)), ((300, 300), (0.05, 0.14))])
def test_the_mean_iou_is_that_of_a_direct_simulation(size, scale):
    rng = random.Random(0)
    expected = np.array([simulated_iou(*size, scale, rng) for _ in range(20000)])
    drawn = draw_overlaps(size, scale, 1.0, 4000, seed=0)
    error = 4 * math.hypot(expected.std() / math.sqrt(20000), drawn.iou.std() / math.sqrt(4000))
    assert drawn.iou.mean() == pytest.approx(expected.mean(), abs=error)
    assert (drawn.iou == 0).mean() == pytest.approx((expected == 0).mean(), abs=0.03)
    assert drawn.num_fallbacks == 0


@pytest.mark.parametrize(
    ("scale", "limit", "count", "lost"),
    [((0.2, 1.0), 0.6, 300, 5), ((0.2, 1.0), 0.2, 300, 5), ((0.2, 1.0), 0.0, 300, 5), ((0.8, 1.0), 0.1, 20, 21)],
)
def test_no_pair_is_above_its_limit_unless_it_is_counted(scale, limit, count, lost):
    drawn = draw_overlaps((480, 640), scale, limit, count, seed=1)
    assert (drawn.iou > limit).sum() == drawn.num_fallbacks < lost
    assert scale[0] < 0.8 or drawn.num_fallbacks == count  # crops that cannot meet their limit


def test_the_command_draws_and_reports_every_limit_and_frameworks_without_one(run_project):
    options = "CROP_STUDY.NUM_PAIRS 200 CROP_STUDY.FRAMEWORKS \"('SwAV', 'MoCo')\""
    output, results = run_project("Paper/crops", options, weights=None)
    assert list(results["frameworks"]) == ["SwAV", "MoCo"]
    rows = results["overlaps"]
    assert [row["max_iou"] for row in rows] == [1.0, 0.6, 0.4, 0.2, 0.0]
    means = [row["mean_iou"] for row in rows]
    assert means == sorted(means, reverse=True) and all(row["above_limit"] <= row["fallbacks"] for row in rows)
    assert all(cv2.imread(str(output / f"{name}.png")).std() > 10 for name in ("iou_histogram", "frameworks"))


@pytest.mark.parametrize(
    ("name", "large", "small", "count"), [("SimCLR", (0.08, 1.0), None, 0), ("DINO", (0.4, 1.0), (0.05, 0.4), 8)]
)
def test_the_crops_of_a_framework_share_what_a_direct_simulation_says(name, large, small, count):
    rng, images = random.Random(0), 2000
    drawn = draw_framework((480, 640), name, images, seed=0)
    assert drawn.large.shape == (images,) and drawn.small.shape == (images, count)
    for found, other in ((drawn.large, large), (drawn.small, small)):
        if found.size:
            expected = np.array([simulated_iou(480, 640, large, rng, other) for _ in range(20000)])
            # Small crops of one image share their large one, so that each image counts once.
            error = 4 * expected.std() * math.hypot(1 / math.sqrt(20000), 1 / math.sqrt(images))
            assert found.mean() == pytest.approx(expected.mean(), abs=error)
    mean = (drawn.large.sum() + drawn.small.sum()) / (images * (1 + count))
    assert drawn.means()["mean_iou_all"] == pytest.approx(mean, abs=1e-4)


@pytest.fixture
def make_run(tmp_path):
    def make(name, limit, score):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump({"VIEWS": {"MAX_IOU": limit}}))
        lines = [json.dumps({"iteration": n, "loss_inst": 5 - n / 10}) for n in range(3)]
        (folder / "metrics.json").write_text("\n".join(lines))
        (folder / "evaluation.json").write_text(json.dumps(score))
        return folder

    return make


def test_runs_are_compared_in_the_order_of_their_limits(make_run, run_project):
    plain, close = make_run("plain", 1.0, {"knn_top1": 20.0}), make_run("close", 0.4, {"knn_top1": 30.0})
    options = f"CROP_STUDY.NUM_PAIRS 20 CROP_STUDY.RUNS \"('{plain}', '{close}')\""
    output, results = run_project("Paper/crops", options, weights=None)
    assert results["runs"] == [{"max_iou": 0.4, "knn_top1": 30.0}, {"max_iou": 1.0, "knn_top1": 20.0}]
    assert (output / "runs.png").is_file()


def test_scores_may_come_from_finetuned_models(make_run):
    pretraining, finetuned = make_run("a", 0.2, {}), make_run("b", 1.0, {"bbox": {"AP50": 9.5}})
    (found,) = read_runs([pretraining], [finetuned], "bbox.AP50")
    assert (found.max_iou, found.score) == (0.2, 9.5)
    assert found.loss == [(0, 5.0), (1, 4.9), (2, 4.8)]
    for runs, scored, key, said in (
        ([pretraining], [], "knn_top1", "knn_top1"),
        ([pretraining], [finetuned], "bbox", "TypeError"),
        ([pretraining] * 2, [finetuned], "bbox.AP50", "ValueError"),
    ):
        refused(f"CROP_STUDY.SCORE.*{said}", read_runs, runs, scored, key)
    refused("nowhere/config.yaml: No such file", read_runs, [pretraining / "nowhere"], [], "knn_top1")
