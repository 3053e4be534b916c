"""What a probe measures: regions of labels, their features, refusals; the command."""

import json
import re

import numpy as np
import pytest
import torch
from commands import run
from torch import nn
from trees import refused

from projects.CompareStarts.probe import (
    Probe,
    _boxes,
    check_regions,
    equal_to_best,
    probe_starts,
    regions_of,
    score_regions,
)
from projects.CompareStarts.starts import Start
from projects.CompareStarts.task import read_task
from projects.Paper.paper_tables import GivenBackbone
from projects.Rows.leave_image_out import Interval
from projects.Rows.own_features import Features, of_maps, own_features
from revisit.data.sources.catalog import get_records

from detectron2.modeling import build_model
from detectron2.structures import BoxMode

NARROW = "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8"
TINY = f"{NARROW} MODEL.ROI_BOX_HEAD.FC_DIM 8 INPUT.MIN_SIZE_TEST 64"


def test_starts_whose_intervals_overlap_are_no_difference():
    intervals = {"a": Interval(68.9, 66.3, 71.3), "b": Interval(68.1, 65.8, 70.3), "c": Interval(60.1, 58.8, 66.2)}
    probes = [Probe(name, {}, interval, 1.0) for name, interval in intervals.items()]
    assert equal_to_best(probes) == ["a", "b"]
    assert equal_to_best([each._replace(score=each.score.widened(1.1)) for each in probes]) == ["a", "b", "c"]


def record_of(*boxes: tuple) -> dict:
    annotations = [{"bbox": list(box), "bbox_mode": BoxMode.XYXY_ABS, "category_id": n} for n, box in enumerate(boxes)]
    return {"file_name": "a.png", "width": 100, "height": 50, "annotations": annotations}


def test_a_regions_features_are_means_over_its_box_in_every_map():
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(64.0), indexing="ij")
    fine = torch.stack([x + 0.5, y + 0.5])[None]
    coarse = nn.functional.avg_pool2d(fine, 4)
    strides = {"fine": 1, "coarse": 4}
    rows = of_maps({"fine": fine, "coarse": coarse}, strides, torch.tensor([[8.0, 4.0, 40.0, 20.0]]))
    expected = nn.functional.normalize(torch.tensor([24.0, 12.0]), dim=0)
    torch.testing.assert_close(rows, torch.cat([expected, expected])[None], rtol=1e-3, atol=1e-3)


def test_a_maps_places_follow_from_its_stride_where_the_sides_are_no_multiple_of_it():
    """40 px have 3 cells of 16 px: the centre of the box is at 22 px, not at 26.4 as for cells of 40 / 3 px."""
    centres = torch.tensor([8.0, 24.0, 40.0]).expand(3, 3)
    rows = of_maps(
        {"c": torch.stack([centres, torch.full((3, 3), 22.0)])[None]}, {"c": 16}, torch.tensor([[10.0, 10, 34, 34]])
    )
    torch.testing.assert_close(rows, torch.full((1, 2), 0.5**0.5))


def test_background_is_drawn_in_the_sizes_of_the_objects_and_away_from_them():
    record = record_of((0, 0, 10, 10), (60, 20, 80, 45))
    regions = _boxes(record, (100, 200), np.random.default_rng(0))  # twice the record's size
    assert sorted(regions.targets.tolist()) == [-1, -1, 0, 1]
    background = regions.boxes[regions.targets < 0]
    sides = {tuple(side) for side in (background[:, 2:] - background[:, :2]).round().tolist()}
    assert sides <= {(20.0, 20.0), (40.0, 50.0)}
    again = _boxes(record, (100, 200), np.random.default_rng(0))
    torch.testing.assert_close(regions.boxes, again.boxes)


def test_a_box_outside_its_image_and_labels_of_one_class_are_refused():
    record = record_of((0, 0, 10, 10), (120, 20, 130, 45))
    refused(
        r"a\.png: the box \[120.* lies outside its 100 x 50 px", _boxes, record, (50, 100), np.random.default_rng(0)
    )
    rows, images = torch.rand(8, 3), torch.arange(8) // 2
    refused("one class", score_regions, rows, torch.tensor([2] * 8), images)


def test_boxes_of_one_class_are_told_from_background_alone():
    objects = torch.tensor([2, -1] * 20)
    rows = torch.eye(2)[(objects > 0).long()] + 0.01 * torch.rand(40, 2, generator=torch.manual_seed(0))
    scores = score_regions(rows, objects, torch.arange(40) // 4)
    assert list(scores) == ["object, kNN", "object, ridge"]
    assert [score(np.ones((1, 10)))[0] for score in scores.values()] == [100, 100]


def test_features_that_show_the_class_score_100():
    classes = torch.arange(40) % 2
    rows = torch.eye(2)[classes] + 0.01 * torch.rand(40, 2, generator=torch.manual_seed(0))
    scores = score_regions(rows, classes, torch.arange(40) // 4)
    assert list(scores) == ["class, kNN", "class, ridge"]
    assert [score(np.ones((1, 10)))[0] for score in scores.values()] == [100, 100]


@pytest.mark.parametrize(
    ("config", "columns"),
    [
        ("configs/toy/detection.yaml", ["class, kNN", "class, ridge", "object, kNN", "object, ridge"]),
        ("configs/toy/segmentation_voc.yaml", ["class, kNN", "class, ridge"]),
        ("configs/toy/depth.yaml", ["depth"]),
    ],
)
def test_boxes_masks_and_depth_are_probed_alike_twice(config, columns, toy_datasets, tmp_path):
    task = read_task(config, NARROW.split(), frozen=False)
    starts = {"random weights": Start(GivenBackbone("random"))}
    check_regions(task, task.total)
    (one,), (other,) = (probe_starts(task, starts, 20, 1, tmp_path / str(n)) for n in range(2))
    assert list(one.scores) == columns and one[:3] == other[:3]


def test_a_probe_is_computed_once_for_the_same_weights_images_and_labels(toy_datasets, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("revisit.progress.IN_A_LOG", {})
    task = read_task("configs/toy/depth.yaml", NARROW.split(), frozen=False)
    starts = {"random weights": Start(GivenBackbone("random"))}
    (one,) = probe_starts(task, starts, 8, 1, tmp_path)
    shown = capsys.readouterr()
    assert "probe [1/1] random weights: 100%" in shown.err and "8/8" in shown.err and "as before" not in shown.out
    assert probe_starts(task, starts, 8, 1, tmp_path) == [one] and "as before" in capsys.readouterr().out
    for other in ((9, 1), (8, 2)):
        probe_starts(task, starts, *other, tmp_path)
        assert "as before" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "learned", "title", "channels"),
    [
        ("faster_rcnn_fpn", (), "backbone", 8 * (1 + 2 + 4 + 8)),
        ("faster_rcnn_fpn", ("backbone.bottom_up.",), "backbone", 8 * (1 + 2 + 4 + 8)),
        ("faster_rcnn_fpn", ("backbone.fpn_lateral2.weight",), "neck", 5 * 16),
        ("faster_rcnn_fpn", ("backbone.", "roi_heads.", "proposal_generator."), "neck and box head", 8),
        ("detection", ("backbone.", "roi_heads."), "neck and box head", 8),
        ("retinanet_fpn", ("backbone.", "head."), "neck", 5 * 16),
    ],
)
def test_a_probe_looks_at_what_a_start_brings(config, learned, title, channels, toy_datasets):
    task = read_task(f"configs/toy/{config}.yaml", [*TINY.split(), "MODEL.FPN.OUT_CHANNELS", "16"], frozen=False)
    cfg = task.load(task.options)
    model, drawn = (build_model(cfg).eval() for _ in range(2))
    drawn.load_state_dict(model.state_dict())
    for name, value in model.state_dict().items():
        if learned and name.startswith(learned) and value.is_floating_point():
            value += 0.1
    features = own_features(model, drawn)
    boxes = torch.tensor([[4.0, 4, 40, 40], [0, 0, 64, 64], [30, 2, 50, 60]])
    with torch.no_grad():
        rows = features.rows(torch.rand(1, 3, 64, 64, generator=torch.manual_seed(0)), boxes)
    assert features.title == title and rows.shape == (3, channels)


def test_a_whole_detector_is_probed_by_its_own_parts_in_one_line(toy_root, tmp_path):
    train = f"python tools/train_net.py --config-file configs/toy/faster_rcnn_fpn.yaml OUTPUT_DIR {tmp_path}/detector"
    tiny = f"{TINY} MODEL.FPN.OUT_CHANNELS 16"
    run(f"{train} SOLVER.MAX_ITER 1 SOLVER.STEPS () SOLVER.IMS_PER_BATCH 2 SOLVER.WARMUP_ITERS 0 {tiny}", toy_root)
    text = run(
        "python tools/compare_starts.py --config-file configs/toy/faster_rcnn_fpn.yaml --weights random "
        f"run:{tmp_path}/detector --labels 8 --how probe --output {tmp_path}/out --opts {tiny}",
        toy_root,
    )
    assert "| random weights | backbone |" in text and "| detector | neck and box head |" in text
    assert "detector: more than a backbone, so the probe looks at" in text


def test_the_command_orders_starts_and_says_what_it_cannot_know(pretrained, toy_root, tmp_path):
    text = run(
        "python tools/compare_starts.py --config-file configs/toy/detection.yaml --weights random "
        f"{pretrained}/backbone.pth --labels 20 --how probe --output {tmp_path}/out --opts {TINY}",
        toy_root,
    )
    rows = [line.split("|")[1:4:2] for line in text.splitlines() if re.match(r"\| (random weights|backbone) ", line)]
    means = [float(row[1].split()[0]) for row in rows]
    assert len(rows) == 2 and means == sorted(means, reverse=True) and "A probe sees frozen features" in text
    results = json.loads((tmp_path / "out/probe/results.json").read_text())
    assert results["best"] in (rows[0][0].strip(), None) and (tmp_path / "out/probe/table.md").is_file()
    assert results["sentence"] in text
    assert not (tmp_path / "out/evaluate").exists()


def test_regions_of_an_image_carry_its_number_and_crowds_have_none(toy_datasets):
    task = read_task("configs/toy/detection.yaml", TINY.split(), frozen=False)

    class Pixels(nn.Module):
        size_divisibility = 0

    records = get_records(task.data)[:3]
    crowd = {**records[1], "annotations": [{**each, "iscrowd": 1} for each in records[1]["annotations"]]}
    pixels = Features("pixels", lambda images, boxes: of_maps({"pixels": images}, {"pixels": 1}, boxes))
    rows, targets, images = regions_of(Pixels(), pixels, task.load(task.options), [records[0], crowd, *records[1:]])
    assert rows.shape == (len(targets), 3) and images.unique().tolist() == [0, 1, 2]
    assert (targets >= 0).sum() == sum(len(record["annotations"]) for record in records)
