"""What a run will do: its length, its learning rates and optimiser, and what a dry run says of it."""

import math

import pytest
import torch
from runs import dry_recipe
from tiny import tiny_config, tiny_model
from torch import nn
from trees import logged, refusal, refused

from revisit.engine.config_checks import check_evaluation, check_schedule, check_start
from revisit.engine.setup import make_config
from revisit.engine.solver import build_lr_scheduler, build_optimizer
from revisit.keys import Facts, resolve_auto_values

from detectron2.config import CfgNode


def test_a_dry_run_writes_what_the_run_would_do(toy_datasets, tmp_path):
    options = ("SOLVER.MAX_ITER", 0, "SOLVER.EPOCHS", 10, "NEIGHBORS.WARMUP_EPOCHS", 2, "SOLVER.WEIGHT_DECAY_NORM", 0.0)
    plan = dry_recipe(tmp_path, *options, num_processes=2)
    assert (plan["iterations_per_epoch"], plan["iterations"], plan["epochs"]) == (7, 70, 10)
    assert (plan["lambda"], plan["k"], plan["policy"]) == (0.4, 5, "standard_or_autoaugment")
    assert (plan["keys"]["MOCO.MOMENTUM"], plan["keys"]["NEIGHBORS.WARMUP_EPOCHS"]) == (0.995, 2)
    assert not [key for key in plan["keys"] if not key.startswith(("MOCO.", "NEIGHBORS."))]
    assert plan["weight_decays"] == {"other": 1e-4, "norm": 0.0, "bias": 1e-4}
    assert plan["crops"]["small"] == {"count": 4, "size": 16, "scale": [0.05, 0.14]}
    assert plan["data"]["found"] and (tmp_path / "views.png").is_file()


def test_a_dry_run_refuses_the_weights_that_training_refuses(toy_datasets, tmp_path):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "others.pth")
    weights = ("MODEL.WEIGHTS", str(tmp_path / "others.pth"))
    refused("only 0 of .* backbone tensors have a value", dry_recipe, tmp_path, *weights)


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


@pytest.mark.parametrize(
    ("typed", "options", "warned"),
    [
        ({"MODEL.WEIGHTS"}, (), True),
        ({"MODEL.WEIGHTS", "SOLVER.BASE_LR"}, (), False),
        (set(), (), False),  # the recipe itself names the weights
        ({"MODEL.WEIGHTS"}, ("MOCO.FILL_QUEUE_FIRST", True), False),
        ({"MODEL.WEIGHTS"}, ("MODEL.META_ARCHITECTURE", "ContinuedSimCLR"), False),
        ({"MODEL.WEIGHTS"}, ("MODEL.META_ARCHITECTURE", "GeneralizedRCNN"), False),
        ({"MODEL.WEIGHTS"}, ("MODEL.WEIGHTS", ""), False),
    ],
)
def test_given_weights_under_a_recipe_for_random_ones_are_warned_of(typed, options, warned):
    notes = logged(check_start, tiny_config("MODEL.WEIGHTS", "good.pth", *options), typed)
    assert len(notes) == warned
    if warned:
        assert "own_images/continue.yaml" in notes[0][1] and "SOLVER.BASE_LR 0.005" in notes[0][1]


def test_a_batch_that_the_rate_does_not_follow_is_said():
    stays = "SOLVER.BASE_LR stays 0.05"
    for typed, options, warned in [
        ({"SOLVER.IMS_PER_BATCH"}, (), True),
        ({"SOLVER.IMS_PER_BATCH", "SOLVER.BASE_LR"}, (), False),
        ({"SOLVER.IMS_PER_BATCH"}, ("SOLVER.REFERENCE_BATCH", 8), False),
        (set(), (), False),
    ]:
        assert [text[: len(stays)] for _, text in logged(check_start, tiny_config(*options), typed)] == [stays] * warned


def detector(*options: object) -> CfgNode:
    tested = ("DATASETS.TRAIN", "('a',)", "DATASETS.TEST", "('b',)", "MODEL.DEVICE", "cpu")
    return make_config("own_images/detection.yaml", list(map(str, (*tested, *options))))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), ""),
        (("INPUT.MIN_SIZE_TRAIN", "(1024,)", "INPUT.MAX_SIZE_TRAIN", 2048), "INPUT.MIN_SIZE_TEST is 320 px"),
        (("INPUT.MIN_SIZE_TEST", 800, "INPUT.MAX_SIZE_TEST", 900), "INPUT.MIN_SIZE_TEST is 800 px"),
        (("INPUT.MAX_SIZE_TEST", 320), "INPUT.MAX_SIZE_TEST is 320 px"),
        (("INPUT.MIN_SIZE_TEST", 800, "INPUT.MAX_SIZE_TEST", 900, "INPUT.CROP.ENABLED", True), ""),
        (("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.98), "MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.98 leaves out"),
        (("MODEL.RETINANET.SCORE_THRESH_TEST", 0.98), ""),
    ],
)
def test_a_test_that_would_ruin_its_score_is_said(options, said):
    notes = [text for level, text in logged(check_evaluation, detector(*options), eval_only=True)]
    assert said in "".join(notes) and bool(notes) == bool(said)


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


def test_epochs_of_a_finetuning_are_passes_of_its_loader_which_drops_no_image():
    length = ("SOLVER.EPOCHS", 30, "SOLVER.STEP_EPOCHS", (9, 21), "SOLVER.CHECKPOINT_EPOCHS", 3)
    cfg = make_config("configs/segmentation/voc_fcn_R50.yaml", ["SOLVER.IMS_PER_BATCH", 24, *length])
    resolve_auto_values(cfg, Facts(images=40))
    assert cfg.SOLVER.MAX_ITER == 30 * 40 / 24
    assert (cfg.SOLVER.STEPS, cfg.SOLVER.CHECKPOINT_PERIOD) == ((15, 35), 5)


def test_a_run_of_whole_batches_that_resumes_keeps_its_length_and_its_steps():
    cfg = make_config(
        "configs/segmentation/voc_fcn_R50.yaml",
        ["SOLVER.IMS_PER_BATCH", 24, "SOLVER.EPOCHS", 30, "SOLVER.STEP_EPOCHS", (9, 27)],
    )
    before = {"SOLVER.IMS_PER_BATCH": 24, "SOLVER.EPOCHS": 30, "SOLVER.MAX_ITER": 30}  # of an earlier version
    resolve_auto_values(cfg, Facts(images=40, before=before, done=10, images_before=40))
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.STEPS) == (30, (9, 27))


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
