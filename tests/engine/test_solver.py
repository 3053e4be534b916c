import math

import pytest
import torch
from tiny import tiny_config, tiny_model
from torch import nn

from revisit.engine.solver import build_lr_scheduler, build_optimizer, resolve_schedule
from revisit.errors import UserError


def resolved(num_images: int, *options: object):
    cfg = tiny_config("SOLVER.MAX_ITER", 0, *options)
    resolve_schedule(cfg, num_images)
    return cfg


def test_epochs_become_iterations_with_the_real_size_of_the_data():
    options = ("SOLVER.EPOCHS", 200, "TEST.EVAL_EPOCHS", 5, "SOLVER.STEP_EPOCHS", (120, 160))
    cfg = resolved(118287, "SOLVER.IMS_PER_BATCH", 256, *options)
    assert cfg.SOLVER.MAX_ITER == 92400  # 462 whole batches an epoch
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 4620
    assert cfg.TEST.EVAL_PERIOD == 2310
    assert cfg.SOLVER.STEPS == (120 * 462, 160 * 462)


def test_a_length_in_iterations_wins():
    cfg = resolved(1000, "SOLVER.EPOCHS", 200, "SOLVER.MAX_ITER", 30, "SOLVER.CHECKPOINT_PERIOD", 10)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.CHECKPOINT_PERIOD) == (30, 10)


@pytest.mark.parametrize(
    ("images", "epochs", "message"), [(1000, 0, "SOLVER.EPOCHS"), (7, 1, "7 images, fewer than one batch of 8")]
)
def test_a_run_without_length_or_without_a_whole_batch_is_refused(images, epochs, message):
    with pytest.raises(UserError, match=message):
        resolved(images, "SOLVER.EPOCHS", epochs)


@pytest.mark.parametrize("norm_decay", [0.0, 0.001])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_every_parameter_has_the_weight_decay_of_its_kind(kind, norm_decay):
    model, decay = tiny_model(), ("SOLVER.WEIGHT_DECAY", 0.001, "SOLVER.WEIGHT_DECAY_NORM", norm_decay)
    optimizer = build_optimizer(tiny_config("SOLVER.OPTIMIZER", kind.__name__, *decay), model)
    assert isinstance(optimizer, kind)
    norms = {p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert set(decays) == {p for p in model.parameters() if p.requires_grad}
    assert all(decay == (norm_decay if p in norms else 0.001) for p, decay in decays.items())
    assert {group["lr"] for group in optimizer.param_groups} == {0.05}


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
