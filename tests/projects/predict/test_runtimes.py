"""Exported detectors are judged by what they find: what loses AP is refused, and integers follow their formula."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import one_line_error, run
from onnx import numpy_helper
from test_model_export import trained
from torch import Tensor

from projects.Predict.benchmark import Row, measure, table
from projects.Predict.int8 import FLOAT, quantize
from projects.Predict.model_export import ExportedNetwork, export, network_images
from projects.Predict.predictions import Predictor, finetuned_config, read_test_set
from projects.Predict.runtimes import Runtime
from revisit.data.sources.catalog import get_records

from detectron2.config import CfgNode
from detectron2.evaluation.coco_evaluation import instances_to_coco_json

COUNT = 3  # images


def truth_of(network: ExportedNetwork, cfg: CfgNode, files: list[Path]) -> dict:
    """What a network finds, in COCO's format, as the truth: its own AP is then 100."""
    predictor, boxes = Predictor(cfg), []
    for number, file in enumerate(files, start=1):
        record = {"file_name": str(file)}
        boxes += instances_to_coco_json(predictor(record, predictor.read(record))["instances"], number)
    annotations = [
        {**box, "id": n, "category_id": box["category_id"] + 1, "area": box["bbox"][2] * box["bbox"][3], "iscrowd": 0}
        for n, box in enumerate(boxes, start=1)
    ]
    images = [{"id": n, "file_name": file.name, "height": 90, "width": 120} for n, file in enumerate(files, start=1)]
    categories = [{"id": n, "name": name} for n, name in enumerate(network.classes, start=1)]
    return {"images": images, "annotations": annotations, "categories": categories}


@pytest.fixture
def detector(write_pictures, tmp_path) -> tuple[ExportedNetwork, CfgNode, str]:
    """A network, its config, and a data set of what it finds."""
    network = trained("detection", tmp_path)
    files = write_pictures(tmp_path / "photos", COUNT, size=(90, 120))
    opts = ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path / "out")]
    cfg = finetuned_config(Namespace(weights=f"{tmp_path}/model_final.pth", config_file="", opts=opts))
    (tmp_path / "truth.json").write_text(json.dumps(truth_of(network, cfg, files)))
    return network, cfg, f"coco:{tmp_path}/photos:{tmp_path}/truth.json"


def test_a_runtime_scores_what_it_finds(detector, tmp_path):
    network, cfg, dataset = detector

    def first_half(image: Tensor) -> list[Tensor]:
        outputs = network(image)
        return [output[: len(output) // 2] for output in outputs]

    ways = {"torch": lambda image: list(network(image)), "half": first_half}
    ways["nothing"] = lambda image: [output[:0] for output in network(image)]
    runtimes = [Runtime(name, "float32", None, way) for name, way in ways.items()]
    whole, half, nothing = measure(cfg, dataset, read_test_set(cfg, dataset), runtimes, tmp_path / "out")
    assert whole.ap == pytest.approx(100, abs=0.1) and nothing.ap == 0
    assert 5 < half.ap < 90
    assert whole.scores == {"bbox": whole.ap} and 0 < whole.median_ms <= whole.p95_ms


def test_the_table_counts_what_is_lost_from_the_network():
    rows = [Row(name, "float32", 1.0, 2.0, 3.0, 500.0, 2.0, ap, {}) for name, ap in (("torch", 57.5), ("int8", 57.0))]
    *_, line = table(rows, "github").splitlines()
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["int8", "float32", "1.0", "2.0", "3.0", "500.0", "2.0", "57.00", "+0.50"]


def test_integers_are_rounded_weights_with_a_scale_for_each_channel(detector, tmp_path):
    network, cfg, dataset = detector
    export(network, tmp_path / "a.onnx")
    images = network_images(cfg, get_records(dataset), COUNT)
    count = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", images)
    pyramid = quantize(tmp_path / "a.onnx", tmp_path / "c.onnx", images, pyramid_only=True)
    before, after = (onnx.load(tmp_path / name).graph for name in ("a.onnx", "b.onnx"))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.initializer}
    dequantized = {node.output[0]: node for node in after.node if node.op_type == "DequantizeLinear"}
    layers = [node for node in after.node if node.op_type in ("Conv", "Gemm")]
    integer = [node for node in layers if node.input[1] in dequantized]
    rest = {node.name for node in layers} - {node.name for node in integer}
    assert len(integer) == count > pyramid > 10
    assert rest and all(any(part in name for part in FLOAT) for name in rest)
    floats = {tensor.name: numpy_helper.to_array(tensor) for tensor in before.initializer}
    compared = 0
    for node in integer:
        values, scales, zeros = (weights[name] for name in dequantized[node.input[1]].input)
        own = floats.get(node.input[1].removesuffix("_DequantizeLinear_Output"))
        if own is None or node.op_type != "Conv":
            continue
        largest = np.abs(own.astype(np.float64)).max(axis=(1, 2, 3))
        assert scales == pytest.approx(2 * largest / 254, rel=0.01) and not zeros.any()
        rounded = own.astype(np.float64) / scales.astype(np.float64)[:, None, None, None]
        assert np.abs(values - rounded).max() <= 0.51
        compared += 1
    assert compared > 10


def test_the_command_refuses_a_file_that_finds_something_else(detector, tmp_path):
    _, _, dataset = detector
    words = f"--weights {tmp_path}/model_final.pth --test {dataset} --output {tmp_path}/deployed --cpus 1"
    files = "--format torchscript onnx int8"
    command = f"python tools/benchmark.py {words} {files} --data folder:{tmp_path}/photos"
    line = one_line_error(f"{command} --opts MODEL.DEVICE cpu", tmp_path)
    assert "int8 loses" in line and "AP: not to be deployed; int8_pyramid" in line
    content = json.loads((tmp_path / "deployed/benchmark.json").read_text())
    rows = {row["runtime"]: row for row in content["rows"]}
    assert rows["torch"]["ap"] == pytest.approx(100, abs=0.1)
    assert rows["onnx"]["ap"] == pytest.approx(100, abs=0.5) == rows["torchscript"]["ap"]
    assert rows["int8"]["megabytes"] < 0.5 * rows["onnx"]["megabytes"]
    assert content["threads"] == 1 and content["images"] == COUNT
    table_text = (tmp_path / "deployed/benchmark.md").read_text()
    assert [line.split("|")[1].strip() for line in table_text.splitlines()[2:6]] == list(rows)
    cards = sorted(path.name for path in (tmp_path / "deployed").glob("detector*.json"))
    assert cards == ["detector.json"]
    command = command.partition(" --data")[0]
    assert "int8 needs --data" in one_line_error(command, tmp_path)
    run(f"python tools/make_shards.py --data folder:{tmp_path}/photos --output {tmp_path}/shards", tmp_path)
    line = one_line_error(f"{command} --data shards:{tmp_path}/shards", tmp_path)
    assert f"--data shards:{tmp_path}/shards: images in shards have no names" in line
