"""What a run will do: its length, its learning rates and optimiser, and what a dry run says of it."""

import json
import math
import time
from itertools import count, repeat

import pytest
import timm
import torch
from runs import run_config
from tiny import tiny_config, tiny_model
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from trees import logged, refusal, refused

from revisit.engine.config_checks import check_schedule
from revisit.engine.dry_run import dry_run
from revisit.engine.solver import build_lr_scheduler, build_optimizer
from revisit.engine.step_cost import LiveMemory, flop_counter, random_views, step_cost
from revisit.engine.train_step import TrainStep
from revisit.keys import Facts, resolve_auto_values

from detectron2.modeling import build_model


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """What a dry run writes, without data unless the test asks for some."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))

    def recipe(*options: object, num_images: int = 60, num_processes: int = 1) -> dict:
        dry_run(run_config(tmp_path, *options), Facts(images=num_images, processes=num_processes))
        return json.loads((tmp_path / "dry_run.json").read_text())

    return recipe


def test_the_recipe_is_what_the_run_would_do(recipe, toy_datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "thread_time", count(step=0.25).__next__)
    options = ("SOLVER.MAX_ITER", 0, "SOLVER.EPOCHS", 10, "NEIGHBORS.WARMUP_EPOCHS", 2, "SOLVER.WEIGHT_DECAY_NORM", 0.0)
    plan = recipe(*options, num_processes=2)
    assert (plan["iterations_per_epoch"], plan["iterations"], plan["epochs"]) == (7, 70, 10)
    assert (plan["lambda"], plan["k"], plan["policy"]) == (0.4, 5, "standard_or_autoaugment")
    assert (plan["keys"]["MOCO.MOMENTUM"], plan["keys"]["NEIGHBORS.WARMUP_EPOCHS"]) == (0.995, 2)
    assert not [key for key in plan["keys"] if not key.startswith(("MOCO.", "NEIGHBORS."))]
    assert plan["weight_decays"] == {"other": 1e-4, "norm": 0.0, "bias": 1e-4}
    assert plan["crops"]["small"] == {"count": 4, "size": 16, "scale": [0.05, 0.14]}
    assert plan["shapes"]["small"] == [4, 4, 3, 16, 16]
    assert plan["shapes"]["queue.features"] == [50, 64]
    assert plan["shapes"]["backbone.res5"] == [[4, 64, 1, 1], [16, 64, 1, 1]]
    assert plan["tflop_of_run"] == pytest.approx(70 * plan["tflop_per_step"]["total"])
    assert plan["gpu_hours"]["total"] >= 0
    loading, per_image = plan["loading"], plan["tflop_per_step"]["total"] * 1e12 / 8
    of_a_gpu = pytest.approx(0.1 * 312e12 / per_image, abs=0.05)
    assert loading["images_per_second"] == {"of_a_core": 4, "of_a_gpu": of_a_gpu}  # by the core's own seconds
    assert loading["cores_per_gpu"] == pytest.approx(0.1 * 312e12 / per_image / 4, abs=0.05)
    assert " 5 of the run's images" in loading["measured"]
    assert plan["data"]["found"] and (tmp_path / "views.png").is_file()


def test_weights_that_a_training_would_refuse_are_refused(recipe, tmp_path):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "others.pth")
    refused("only 0 of .* backbone tensors have a value", recipe, "MODEL.WEIGHTS", str(tmp_path / "others.pth"))


def test_accumulation_needs_the_memory_of_one_part(recipe):
    whole = recipe("SOLVER.IMS_PER_BATCH", 48)
    parts = recipe("SOLVER.IMS_PER_BATCH", 48, "SOLVER.ACCUMULATION_STEPS", 4)
    more, less = (plan["memory_gib_per_process"] for plan in (whole, parts))
    assert less["activations"] < 0.4 * more["activations"]  # at the peak gradients count too
    assert less["batch"] == more["batch"]
    assert "loading" not in whole  # of which there are no images
    assert (parts["accumulation_steps"], parts["shapes"]["projection_head"][0]) == (4, [12, 16])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("MOCO.QUEUE_SIZE", 60), "MOCO.QUEUE_SIZE"),
        (("MOCO.BN_GROUP", 8), "MOCO.BN_GROUP"),
        (("NEIGHBORS.WARMUP_EPOCHS", 2), "NEIGHBORS.WARMUP_EPOCHS"),
        (("NEIGHBORS.WARMUP_EPOCHS", 2, "NEIGHBORS.ENQUEUE_FIRST", True), None),
        (("NEIGHBORS.WARMUP_EPOCHS", 2, "NEIGHBORS.WEIGHT", 0.0), None),
        ((), None),
    ],
)
def test_what_does_less_than_its_key_says_is_noted(options, key):
    notes = logged(check_schedule, tiny_config("MOCO.SHUFFLE_BN", "MOCO.BN_GROUP" in options, *options), 60)
    assert [text.split()[0] for _, text in notes] == ([key] if key else [])


ALONE = ("MOCO.SHUFFLE_BN", False)  # of one group of images nothing is said then
STEPS = ("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.WARMUP_ITERS", 100, "SOLVER.STEPS")


def test_a_rate_that_never_comes_near_its_base_is_refused_or_said(tmp_path):
    fits = tiny_config(*ALONE, "SOLVER.MAX_ITER", 120, *STEPS, (101, 110))
    assert logged(check_schedule, fits, 60) == []
    for step in (90, 100):  # with 100 of 120 the warm-up would rise to a tenth, and stay there
        inside = tiny_config(*ALONE, "SOLVER.MAX_ITER", 120, *STEPS, (step, 110))
        refused(rf"STEPS \[{step}\] lie inside .*WARMUP_ITERS 100, .* pass 0.1 times", check_schedule, inside, 60)
    (text,) = [text for _, text in logged(check_schedule, tiny_config(*ALONE, "SOLVER.MAX_ITER", 50, *STEPS, ()), 60)]
    assert "WARMUP_ITERS 100 is no shorter than the run of 50" in text and "rises from 0.001 to 0.98 times" in text
    cosine = ("SOLVER.WARMUP_FACTOR", 0.5, "SOLVER.WARMUP_ITERS")
    (text,) = [text for _, text in logged(check_schedule, tiny_config(*ALONE, "SOLVER.MAX_ITER", 50, *cosine, 50), 60)]
    assert "falls from 0.5 to 0.01 times" in text  # to the cosine's end, which is 0
    (text,) = [text for _, text in logged(check_schedule, tiny_config(*ALONE, "SOLVER.MAX_ITER", 60, *cosine, 40), 60)]
    assert "WARMUP_ITERS 40 of 60: the learning rate never passes 0.25 times" in text  # (1 + cos(120 degrees)) / 2
    queue = ("MOCO.FILL_QUEUE_FIRST", True, "MOCO.QUEUE_SIZE", 50, "SOLVER.MAX_ITER")  # 7 iterations of 8 images
    assert logged(check_schedule, tiny_config(*ALONE, *queue, 8), 60) == []
    refused(
        "FILL_QUEUE_FIRST .* for 7 iterations, and the run has 7", check_schedule, tiny_config(*ALONE, *queue, 7), 60
    )


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


def resolved(num_images: int, *options: object):
    cfg = tiny_config(*ALONE, "SOLVER.MAX_ITER", 0, *options)
    resolve_auto_values(cfg, Facts(images=num_images))
    return cfg


def test_epochs_become_iterations_with_the_real_size_of_the_data_unless_iterations_are_given():
    judged = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train", "TEST.EVAL_EPOCHS", 5)
    options = (*judged, "SOLVER.EPOCHS", 200, "SOLVER.STEP_EPOCHS", (120, 160))
    cfg = resolved(118287, "SOLVER.IMS_PER_BATCH", 256, *options)
    assert cfg.SOLVER.MAX_ITER == 92400  # 462 whole batches an epoch
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 4620
    assert cfg.TEST.EVAL_PERIOD == 2310
    assert cfg.SOLVER.STEPS == (120 * 462, 160 * 462)
    cfg = resolved(1000, *options, "SOLVER.MAX_ITER", 30, "SOLVER.CHECKPOINT_PERIOD", 10)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.CHECKPOINT_PERIOD) == (30, 10)


@pytest.mark.parametrize(
    ("images", "epochs", "message"), [(1000, 0, "SOLVER.EPOCHS"), (7, 1, "7 images, fewer than one batch of 8")]
)
def test_a_run_without_length_or_without_a_whole_batch_is_refused(images, epochs, message):
    refused(message, resolved, images, "SOLVER.EPOCHS", epochs, "MOCO.BN_GROUP", 8)


@pytest.mark.parametrize("norm_decay", [0.0, 0.001])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "LARS"])
def test_every_parameter_has_the_weight_decay_of_its_kind(name, norm_decay):
    model, decay = tiny_model(), ("SOLVER.WEIGHT_DECAY", 0.001, "SOLVER.WEIGHT_DECAY_NORM", norm_decay)
    optimizer = build_optimizer(tiny_config("SOLVER.OPTIMIZER", name, *decay), model)
    assert type(optimizer).__name__.upper() == name.upper()
    norms = {p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert set(decays) == {p for p in model.parameters() if p.requires_grad}
    assert all(decay == (norm_decay if p in norms else 0.001) for p, decay in decays.items())
    assert {group["lr"] for group in optimizer.param_groups} == {0.05}


def test_a_model_with_nothing_to_train_is_refused():
    frozen = tiny_model().backbone.requires_grad_(False)
    message = refusal(build_optimizer, tiny_config("MODEL.BACKBONE.FREEZE_AT", 5), frozen)
    assert "FREEZE_AT 5 leaves KNNMoCo nothing to train: expected a smaller number" in message


def test_lars_scales_the_step_of_a_tensor_with_weight_decay_by_its_norm_and_leaves_others_to_sgd():
    """0.001 |w| / (|g| + decay |w|) of You et al.; two steps, with momentum."""
    model = nn.Linear(3, 2).double()
    decay = ("SOLVER.WEIGHT_DECAY", 0.01, "SOLVER.WEIGHT_DECAY_BIAS", 0.0, "SOLVER.MOMENTUM", 0.9)
    optimizer = build_optimizer(tiny_config("SOLVER.OPTIMIZER", "LARS", "SOLVER.BASE_LR", 2.0, *decay), model)
    w, b = (p.detach().flatten().tolist() for p in (model.weight, model.bias))
    speeds = [[0.0] * len(w), [0.0] * len(b)]
    for step in (1.0, 0.5):
        g, h = [step * (n - 2) for n in range(6)], [3 * step, -step]
        model.weight.grad, model.bias.grad = torch.tensor(g).double().view(2, 3), torch.tensor(h).double()
        optimizer.step()
        of_w, of_g = (math.sqrt(sum(x * x for x in each)) for each in (w, g))
        ratio = 0.001 * of_w / (of_g + 0.01 * of_w)
        speeds[0] = [0.9 * v + ratio * (x + 0.01 * y) for v, x, y in zip(speeds[0], g, w, strict=True)]
        speeds[1] = [0.9 * v + x for v, x in zip(speeds[1], h, strict=True)]
        w, b = ([x - 2 * v for x, v in zip(p, s, strict=True)] for p, s in zip((w, b), speeds, strict=True))
    assert model.weight.flatten().tolist() == pytest.approx(w) and model.bias.tolist() == pytest.approx(b)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("WarmupCosineLR", lambda done: 0.5 * (1 + math.cos(math.pi * done))),  # without the warm-up
        ("PolynomialLR", lambda done: (1 - done) ** 0.9),
    ],
)
def test_the_learning_rate_is_its_formula(name, share):
    cfg = tiny_config("SOLVER.LR_SCHEDULER_NAME", name, "SOLVER.MAX_ITER", 40)
    optimizer = build_optimizer(cfg, nn.Linear(2, 2))
    scheduler = build_lr_scheduler(cfg, optimizer)
    for iteration in range(41):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * share(iteration / 40), abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_rate_stays_0_until_the_queue_holds_keys_and_the_whole_schedule_follows():
    queue = ("MOCO.FILL_QUEUE_FIRST", True, "MOCO.QUEUE_SIZE", 50)  # 7 iterations of 8 images
    cfg = tiny_config(*queue, "SOLVER.MAX_ITER", 47, "SOLVER.WARMUP_ITERS", 10, "SOLVER.WARMUP_FACTOR", 0.0)
    cfg.freeze()
    optimizer = build_optimizer(cfg, nn.Linear(2, 2))
    scheduler = build_lr_scheduler(cfg, optimizer)
    rates = []
    for _ in range(47):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:7] == [0.0] * 7 and rates[7] == pytest.approx(0, abs=1e-9)
    at_10 = 0.05 * 0.5 * (1 + math.cos(math.pi * 10 / 40))  # which the warm-up rises to
    assert rates[7:18] == pytest.approx([at_10 * step / 10 for step in range(11)], abs=1e-9)
    expected = [0.05 * 0.5 * (1 + math.cos(math.pi * step / 40)) for step in range(10, 40)]
    assert rates[17:] == pytest.approx(expected, abs=1e-9)
