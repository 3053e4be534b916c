"""What a dry run adds: shapes, memory and operations of a step, by hand and by a real step; the cost of a run."""

import time
from itertools import count, pairwise, repeat
from pathlib import Path

import pytest
import timm
import torch
from runs import dry_recipe
from tiny import tiny_config
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from projects.Planning import run_cost
from projects.Planning.step_cost import LiveMemory, flop_counter, random_views, step_cost
from revisit.engine.solver import build_optimizer
from revisit.engine.train_step import TrainStep

from detectron2.modeling import build_model


@pytest.fixture
def no_data(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    return tmp_path


def test_a_dry_run_has_shapes_operations_and_rates(toy_datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "thread_time", count(step=0.25).__next__)
    monkeypatch.setattr(run_cost, "PEAK_FLOPS", 1e9)  # so that a small run takes hours
    plan = dry_recipe(tmp_path, "SOLVER.MAX_ITER", 0, "SOLVER.EPOCHS", 10, num_processes=2)
    assert plan["shapes"]["small"] == [4, 4, 3, 16, 16]
    assert plan["shapes"]["queue.features"] == [50, 64]
    assert plan["shapes"]["backbone.res5"] == [[4, 64, 1, 1], [16, 64, 1, 1]]
    assert plan["tflop_of_run"] == pytest.approx(70 * plan["tflop_per_step"]["total"])
    hours = plan["tflop_of_run"] * 1e12 / (0.1 * 1e9) / 3600
    assert hours > 0.02 and plan["gpu_hours"]["total"] == pytest.approx(hours, abs=0.005)
    loading, per_image = plan["loading"], plan["tflop_per_step"]["total"] * 1e12 / 8
    of_a_gpu = pytest.approx(0.1 * 1e9 / per_image, abs=0.05)
    assert loading["images_per_second"] == {"of_a_core": 4, "of_a_gpu": of_a_gpu}  # by the core's own seconds
    assert loading["cores_per_gpu"] == pytest.approx(0.1 * 1e9 / per_image / 4, abs=0.05)
    assert " 5 of the run's images" in loading["measured"]


def test_what_a_small_run_takes_is_little_and_not_nothing(no_data, capsys):
    plan = dry_recipe(no_data, "SOLVER.MAX_ITER", 5)
    hours = plan["tflop_of_run"] / (0.1 * 312) / 3600
    assert plan["gpu_hours"]["total"] == pytest.approx(hours, rel=1e-3) and hours < 0.005
    memory = plan["memory_gib_per_process"]["total"]
    assert f" {memory:.3g} GiB a process" in (text := capsys.readouterr().out) and memory < 0.05
    assert f" {hours:.3g} GPU-hours" in text


def test_traffic_is_what_operations_read_and_write_and_views_move_nothing():
    x, y, z = torch.ones(10, 10), torch.ones(10, 10, dtype=torch.float64), torch.ones(10)
    with LiveMemory({}) as memory:
        moved = [0]
        for operation in (lambda: x.exp(), lambda: x.add_(z), lambda: y.mul(x), lambda: x.view(100), lambda: x.sum()):
            operation()
            moved.append(memory.traffic)
    by_operation = [after - before for before, after in pairwise(moved)]
    assert by_operation == [400 + 400, 400 + 40 + 400, 800 + 400 + 800, 0, 400 + 4]


def test_a_length_in_minutes_has_no_cost_of_a_run(no_data):
    plan = dry_recipe(no_data, "SOLVER.MAX_ITER", 0, "SOLVER.EPOCHS", 0, "SOLVER.MINUTES", 3.0)
    assert plan["minutes"] == 3 and plan["tflop_per_step"]["total"] > 0
    assert plan.keys().isdisjoint(("epochs", "iterations", "checkpoint_period", "tflop_of_run", "gpu_hours"))


def test_accumulation_needs_the_memory_of_one_part(no_data):
    whole = dry_recipe(no_data, "SOLVER.IMS_PER_BATCH", 48)
    parts = dry_recipe(no_data, "SOLVER.IMS_PER_BATCH", 48, "SOLVER.ACCUMULATION_STEPS", 4)
    more, less = (plan["memory_gib_per_process"] for plan in (whole, parts))
    assert less["activations"] < 0.4 * more["activations"]  # at the peak gradients count too
    assert less["batch"] == more["batch"]
    assert "loading" not in whole  # of which there are no images
    assert (parts["accumulation_steps"], parts["shapes"]["projection_head"][0]) == (4, [12, 16])


MEASURED = {
    "KNNMoCo": (),
    "DenseCL": ("VIEWS.NUM_SMALL", 0, "VIEWS.LARGE_SIZE", 96),
    "SimCLR": ("SOLVER.IMS_PER_BATCH", 64, "NEIGHBORS.WEIGHT", 0.0),
    "BYOL": ("NEIGHBORS.WEIGHT", 0.4, "NEIGHBORS.QUEUE_SIZE", 64, "SOLVER.OPTIMIZER", "AdamW"),
    "MoCo": ("SOLVER.ACCUMULATION_STEPS", 2),
    "SwAV": ("SWAV.QUEUE_SIZE", 8, "NEIGHBORS.WEIGHT", 0.0),
}


@pytest.mark.parametrize("method", MEASURED)
def test_memory_and_operations_are_those_of_a_real_step(method):
    """Of tensors that have numbers, after two other steps."""
    cfg = tiny_config("MODEL.META_ARCHITECTURE", method, *MEASURED[method], "SOLVER.METRICS_PERIOD", 1000)
    cost = step_cost(cfg, 1)
    torch.manual_seed(0)
    model, batch = build_model(cfg).train(), random_views(cfg, cfg.SOLVER.IMS_PER_BATCH)
    optimizer, parts = build_optimizer(cfg, model), cfg.SOLVER.ACCUMULATION_STEPS
    step = TrainStep(model, repeat(batch), optimizer, metrics_period=1000, accumulation_steps=parts)
    step.register_hooks(model.hooks(cfg, 0))
    step.train(0, 2)
    own = [*model.parameters(), *model.buffers(), *batch.values()]
    own += [value for state in optimizer.state.values() for value in state.values()]
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    with FlopCounterMode(display=False) as counter, LiveMemory({"own": own, "gradients": gradients}) as memory:
        step.train(2, 3)
    assert sum(cost.memory.values()) == pytest.approx(sum(memory.peak().values()), rel=0.02)
    assert cost.forward_flops + cost.backward_flops == counter.get_total_flops()


def test_operations_of_resnet50_are_the_published_ones():
    """4.09 G multiply-adds at 224 px, of the anchor once and of the positive once in the forward."""
    widths = ("MODEL.RESNETS.RES2_OUT_CHANNELS", 256, "MODEL.RESNETS.STEM_OUT_CHANNELS", 64)
    views = ("VIEWS.LARGE_SIZE", 224, "VIEWS.NUM_SMALL", 0)
    cost = step_cost(tiny_config("MODEL.RESNETS.DEPTH", 50, *widths, *views, "MODEL.META_ARCHITECTURE", "MoCo"), 1)
    assert cost.forward_flops == pytest.approx(8 * 2 * 2 * 4.09e9, rel=0.02)
    assert cost.backward_flops == pytest.approx(8 * 2 * 2 * 4.09e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet26", {}),
        ("convnext_atto", {}),  # 7 x 7 convolutions of one channel each
        ("efficientnet_b0", {}),
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
    ],
)
def test_operations_are_those_of_a_count_by_hand(name, options):
    """Of each layer two for every weight that a number of its output is made of; twice as many backward, but for the
    pixels, which have no gradient. Attention multiplies (tokens, tokens) by (tokens, width) twice, five times backward:
    flash attention computes the scores again."""
    network = timm.create_model(name, num_classes=3, **options).train()
    layers, attention = [], []

    def count_layer(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        layers.append(2 * output.numel() * layer.weight[0].numel())

    def count_attention(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        images, tokens, width = output.shape
        attention.append(2 * images * tokens * tokens * width)

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count_layer)
        elif type(layer).__name__ == "Attention":
            layer.register_forward_hook(count_attention)
    with flop_counter() as counter:
        loss = network(torch.randn(2, 3, 64, 64)).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert len(attention) == options.get("depth", 0)
    assert forward == sum(layers) + 2 * sum(attention)
    assert counter.get_total_flops() - forward == 2 * sum(layers) - layers[0] + 5 * sum(attention)


def test_several_processes_share_a_step_and_keep_a_copy_of_the_gradients():
    one, four = (step_cost(tiny_config("SOLVER.IMS_PER_BATCH", 32), count) for count in (1, 4))
    assert four.shapes["anchor"] == [8, 3, 32, 32] and four.shapes["queue.features"] == [50, 64]
    assert four.memory["gradients"] - one.memory.get("gradients", 0) >= one.memory["optimizer"]  # as many numbers
    assert four.memory["activations"] < one.memory["activations"] / 2
    assert 4 * four.forward_flops == pytest.approx(one.forward_flops)
