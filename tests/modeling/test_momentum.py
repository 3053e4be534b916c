import pytest
import torch
from torch import nn

from revisit.modeling.momentum import ema_update, momentum_copy


def test_ema_after_n_steps_equals_its_closed_form_in_float64():
    torch.manual_seed(0)
    m, steps = 0.9, 25
    source = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    average = momentum_copy(source)
    start = [p.clone() for p in average.parameters()]
    history = []
    for _ in range(steps):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(torch.randn_like(p))
        history.append([p.detach().clone() for p in source.parameters()])
        ema_update(average, source, m)
    for i, mean in enumerate(average.parameters()):
        closed = m**steps * start[i] + sum((1 - m) * m ** (steps - 1 - t) * history[t][i] for t in range(steps))
        assert mean.detach().numpy() == pytest.approx(closed.detach().numpy(), rel=1e-12)


def test_ema_leaves_bn_statistics_alone():
    source = nn.BatchNorm2d(3)
    average = momentum_copy(source)
    source(torch.randn(8, 3, 4, 4) * 5 + 2)
    ema_update(average, source, 0.5)
    assert torch.equal(average.running_mean, torch.zeros(3))
    assert torch.equal(average.running_var, torch.ones(3))
    assert average.num_batches_tracked == 0


def test_momentum_copy_takes_no_gradient_and_shares_nothing():
    source = nn.Linear(2, 2)
    copy = momentum_copy(source)
    assert not any(p.requires_grad for p in copy.parameters())
    with torch.no_grad():
        source.weight.zero_()
    assert copy.weight.abs().sum() > 0
