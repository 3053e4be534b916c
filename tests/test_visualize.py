"""tools/visualize.py: every task is drawn from data and from a model, and a user's mistake ends in one line."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from trees import refused

from projects.Predict import predictions
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.data.sources.catalog import get_records
from revisit.engine.setup import make_config
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.modeling import build_model
from detectron2.structures import BoxMode

NARROW = ("MODEL.RESNETS.STEM_OUT_CHANNELS", "8", "MODEL.RESNETS.RES2_OUT_CHANNELS", "8")
TASKS = ("detection", "segmentation_voc", "segmentation_nyud", "segmentation_cityscapes", "depth")


@pytest.fixture
def draw(toy_datasets, monkeypatch, capsys) -> Callable[..., list[Path]]:
    """Runs the command for a task; the sheets that it prints."""

    def call(task: str, *words: object) -> list[Path]:
        file = f"configs/toy/{task}.yaml"
        monkeypatch.setattr(sys, "argv", ["visualize.py", "--config-file", file, *map(str, words)])
        runpy.run_path("tools/visualize.py")["main"]()
        return [Path(line) for line in capsys.readouterr().out.split()]

    return call


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def load(task: str, *options: str) -> CfgNode:
    return make_config(f"configs/toy/{task}.yaml", options)


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory) -> dict[str, Path]:
    """Weights of an untrained model for each task, by its name."""
    weights = {}
    for task in ("detection", "segmentation_nyud", "depth"):
        folder = tmp_path_factory.mktemp(task)
        cfg = load(task, *NARROW, "OUTPUT_DIR", str(folder))
        torch.manual_seed(0)
        RevisitCheckpointer(build_model(cfg), cfg).save("model_final")
        weights[task] = folder / "model_final.pth"
    return weights


@pytest.mark.parametrize("task", TASKS)
def test_data_are_drawn_without_a_model(task, draw, tmp_path):
    sheets = draw(task, "--how", "truth", "--output", tmp_path / "new", "--count", 3, "--rule", "rows=2")
    assert sheets == [tmp_path / "new" / f"{load(task).DATASETS.TEST[0]}_{page:02d}.png" for page in (1, 2)]
    first, second = map(pixels, sheets)
    assert first.shape[0] > 1.4 * second.shape[0]
    fewer = draw(task, "--how", "truth", "--output", tmp_path / "new", "--count", 2, "--rule", "rows=2")
    assert sorted((tmp_path / "new").iterdir()) == fewer == sheets[:1]


@pytest.mark.parametrize("task", ["detection", "segmentation_nyud", "depth"])
def test_predictions_are_drawn_the_same_in_every_call(task, finetuned, draw, tmp_path):
    words, weights = ("--count", 2, "--score-threshold", 0), ("MODEL.WEIGHTS", finetuned[task], *NARROW)
    (one,), (two,) = (draw(task, *words, "--output", tmp_path / name, *weights) for name in "12")
    (data,) = draw(task, *words, "--output", tmp_path / "3", "--how", "truth", *NARROW)
    assert one.read_bytes() == two.read_bytes()
    assert pixels(one).shape[1] > 1.3 * pixels(data).shape[1]


def test_truth_is_drawn_by_a_recipe_that_leaves_the_number_of_classes_open(toy_datasets):
    cfg = make_config("configs/own_images/detection.yaml", NARROW)
    (row,) = predictions.make_rows(cfg, "toy_voc_test", 1, truth_only=True)
    assert len(row.tiles) == 2 and cfg.MODEL.ROI_HEADS.NUM_CLASSES == 10


def test_truth_has_the_classes_that_the_model_learned_by_name(tmp_path):
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "0.png")
    names = []
    for order in (("auk", "kite"), ("kite", "auk")):
        categories = [{"id": n, "name": name} for n, name in enumerate(order)]
        box = {
            "id": 1,
            "image_id": 0,
            "category_id": order.index("kite"),
            "bbox": [5, 5, 9, 9],
            "area": 81,
            "iscrowd": 0,
        }
        images = [{"id": 0, "file_name": "0.png", "height": 40, "width": 60}]
        file = tmp_path / f"{order[0]}.json"
        file.write_text(json.dumps({"images": images, "categories": categories, "annotations": [box]}))
        names.append(f"coco:{tmp_path}:{file}")
    options = ("DATASETS.TRAIN", f"('{names[0]}',)", "MODEL.ROI_HEADS.NUM_CLASSES", "2", "OUTPUT_DIR", str(tmp_path))
    cfg = load("detection", *NARROW, *options)
    get_records(names[0])  # as a training does
    RevisitCheckpointer(build_model(cfg), cfg).save("two")
    cfg.MODEL.WEIGHTS, cfg.DATASETS.TRAIN = str(tmp_path / "two.pth"), ()  # the checkpoint knows
    predictions.make_rows(cfg, names[1], 1, truth_only=False)
    assert MetadataCatalog.get(names[1]).thing_classes == ["auk", "kite"]
    assert get_records(names[1])[0]["annotations"][0]["category_id"] == 1


GREY = np.full((20, 30, 3), 128, np.uint8)


@pytest.fixture
def record(tmp_path) -> dict[str, str]:
    """A grey image, and names for its labels."""
    Image.fromarray(GREY).save(tmp_path / "image.png")
    names = {"file_name": "image.png", "sem_seg_file_name": "ids.png", "depth_file_name": "depth.npy"}
    return {kind: str(tmp_path / name) for kind, name in names.items()}


def test_boxes_are_drawn_where_only_some_have_a_mask(record):
    box = {"bbox": [2, 2, 9, 9], "bbox_mode": BoxMode.XYWH_ABS, "category_id": 0}
    boxes = [box | {"segmentation": [[2, 2, 11, 2, 11, 11]]}, box]
    row = predictions.draw_detection(record | {"annotations": boxes}, GREY, Metadata(thing_classes=["a"]), None)
    assert len(row.tiles) == 2


def test_masks_of_another_size_than_their_image_are_not_drawn(record):
    height, width = 2**16 - 1, 2**16  # 4 GB
    runs = coco_mask.frPyObjects({"size": [height, width], "counts": [5, 9, height * width - 14]}, height, width)
    box = {"bbox": [2, 2, 9, 9], "bbox_mode": BoxMode.XYWH_ABS, "category_id": 0, "segmentation": runs}
    labelled = record | {"height": height, "width": width, "annotations": [box]}
    message = r"got \(30, 20\), expect \(65536, 65535\)"
    refused(message, predictions.draw_detection, labelled, GREY, Metadata(thing_classes=["a"]), None)


@pytest.mark.parametrize("size", [(20, 30), (7, 11)])  # of the file; of the network's input
def test_a_segmentation_row_shows_ids_and_the_most_likely_classes(record, size):
    ids = np.zeros((20, 30), np.uint8)
    ids[:, 10:], ids[:, 20:] = 1, 3
    Image.fromarray(ids).save(record["sem_seg_file_name"])
    metadata = Metadata(stuff_classes=["a", "b", "c"], label_offset=1)
    logits = torch.zeros(3, *size)
    logits[1] = 1
    row = predictions.draw_segmentation(record, GREY, metadata, lambda *_: {"sem_seg": logits})
    names = {c: name for c, (name, _) in row.legend.items()}
    assert names == {0: "a", 1: "b", 2: "c", 255: "void (unpainted)"}
    assert len(np.unique(row.tiles[2].reshape(-1, 3), axis=0)) == 1  # "b" everywhere
    assert row.tiles[1][5, 5].tolist() == [128, 128, 128]  # id 0


def test_a_depth_row_shows_metres(record):
    np.save(record["depth_file_name"], np.linspace(1, 4, 600, dtype=np.float32).reshape(20, 30))
    output = {"depth": torch.full((20, 30), 4.0, dtype=torch.bfloat16)}
    row = predictions.draw_depth(record, GREY, None, lambda *_: output)
    assert row.depth_range == (1, 4)
    assert np.array_equal(row.tiles[2][0, 0], row.tiles[1][-1, -1])


def test_labels_of_another_size_than_their_image_are_refused(record):
    Image.fromarray(np.zeros((30, 20), np.uint8)).save(record["sem_seg_file_name"])
    np.save(record["depth_file_name"], np.ones((20, 29), np.float32))
    with pytest.raises(UserError, match="ids.png is 20 x 30 .* 30 x 20"):
        predictions.draw_segmentation(record, GREY, Metadata(stuff_classes=["a"]), None)
    refused("depth.npy is 29 x 20 .* 30 x 20", predictions.draw_depth, record, GREY, None, None)


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        ("detection", "", "MODEL.WEIGHTS"),
        ("pretrain", "", "MODEL.META_ARCHITECTURE"),
        ("segmentation_voc", "--data toy_nyud_depth_val", "toy_nyud_depth_val"),
        ("detection", "DATASETS.TEST ()", "--data"),
        ("detection", "--how truth --output {image}", "--output .*image.png"),
        ("detection", "MODEL.WEIGHTS {backbone}", "backbone.pth"),
        ("depth", "MODEL.WEIGHTS {nyud}", "model_final.pth"),
    ],
)
def test_mistakes_are_reported_in_one_line(task, words, message, record, finetuned, draw, tmp_path):
    weights = torch.load(finetuned["detection"])["model"]
    torch.save({"model": {k: v for k, v in weights.items() if k.startswith("backbone.")}}, tmp_path / "backbone.pth")
    files = {"image": record["file_name"], "backbone": f"{tmp_path}/backbone.pth"}
    files["nyud"] = finetuned["segmentation_nyud"]
    with pytest.raises(UserError, match=message) as caught:
        draw(task, "--output", tmp_path, *words.format(**files).split(), *(NARROW if "{" in words else ()))
    assert "\n" not in str(caught.value)
