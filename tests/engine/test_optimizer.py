import math

import pytest
import torch
from tiny import tiny_config, tiny_model
from torch import nn

from revisit.engine.solver import build_lr_scheduler, build_optimizer


@pytest.mark.parametrize("norm_decay", [0.0, 0.001])
@pytest.mark.parametrize("name, kind", [("SGD", torch.optim.SGD), ("Adam", torch.optim.Adam)])
def test_every_parameter_has_the_weight_decay_of_its_kind(name, kind, norm_decay):
    model = tiny_model()
    cfg = tiny_config(
        "SOLVER.OPTIMIZER", name, "SOLVER.WEIGHT_DECAY", 0.001, "SOLVER.WEIGHT_DECAY_NORM", norm_decay
    )  # fmt: skip
    optimizer = build_optimizer(cfg, model)
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
