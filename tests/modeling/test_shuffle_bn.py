import pytest
import torch
from torch import nn

from revisit.modeling.shuffle_bn import scatter_shuffled, shuffle_permutation, split_batch_norm


def test_split_bn_equals_a_bn_per_part_with_averaged_running_statistics():
    torch.manual_seed(0)
    x = (torch.randn(12, 5, 3, 3) * 3 + 1).double().requires_grad_()
    split = nn.BatchNorm2d(5).double()
    nn.init.uniform_(split.weight)
    nn.init.uniform_(split.bias)
    parts = [nn.BatchNorm2d(5).double() for _ in range(3)]
    for part in parts:
        part.load_state_dict(split.state_dict())
    split_batch_norm(split, 3)
    ours = split(x)
    theirs = torch.cat([part(chunk) for part, chunk in zip(parts, x.chunk(3), strict=True)])
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(part, name) for part in parts]).mean(0)
        assert torch.allclose(getattr(split, name), mean, rtol=1e-12)
    weights = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), x)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), x)
    assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-12)


def test_split_bn_keeps_the_names_and_evaluates_as_bn():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    names = list(net.state_dict())
    x = torch.randn(6, 3, 4, 4)
    net.eval()
    before = net(x)
    split_batch_norm(net, 2)
    assert list(net.state_dict()) == names
    assert torch.equal(net(x), before)


def test_split_bn_says_when_the_batch_does_not_divide():
    bn = nn.BatchNorm2d(4)
    split_batch_norm(bn, 4)
    with pytest.raises(ValueError, match="BN_SPLITS 4"):
        bn(torch.randn(6, 4, 2, 2))


def test_permutation_depends_on_seed_and_iteration_alone():
    assert torch.equal(shuffle_permutation(16, 3, 5), shuffle_permutation(16, 3, 5))
    assert not torch.equal(shuffle_permutation(16, 3, 5), shuffle_permutation(16, 3, 6))
    assert not torch.equal(shuffle_permutation(16, 3, 5), shuffle_permutation(16, 4, 5))
    assert shuffle_permutation(16, 3, 5).sort().values.tolist() == list(range(16))


def test_scatter_on_one_process_is_the_permutation():
    rows, permutation = torch.arange(6), torch.tensor([3, 1, 5, 0, 2, 4])
    assert scatter_shuffled(rows, permutation).tolist() == [3, 1, 5, 0, 2, 4]
