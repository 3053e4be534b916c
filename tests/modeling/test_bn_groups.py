"""Groups of MOCO.BN_GROUP images share batch statistics, on one process or several, and groups that cannot be."""

import re
from functools import cache

import pytest
import torch
from commands import launch_forks
from hypothesis import given
from hypothesis import strategies as st
from tiny import random_views, tiny_config, tiny_model
from torch import nn
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from trees import logged
from true_steps import take_steps

from revisit.errors import UserError
from revisit.modeling.bn_groups import BNGroups, bn_groups, whole_batch
from revisit.modeling.grouped_batch_norm import group_batch_norm
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.modeling.shuffle_bn import shuffle_permutation

from detectron2.utils import comm

BATCH, PARTS = 16, 2
SIZES = (4, 8)
MAPS = ((8, 3, 8, 8), (1, 3, 1, 1))  # of a process; of the second a process alone has no variance
VIEWS = {"large": 64, "small": 32, "num_small": 2}
OPTIONS = ("SOLVER.IMS_PER_BATCH", BATCH, "VIEWS.NUM_SMALL", 2)


class Operations(TorchDispatchMode):
    """The names of those that compute, each a launch at least on a GPU."""

    FREE = {"split", "unbind", "slice", "view", "empty", "empty_like", "new_empty", "detach"}

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names += {function.overloadpacket.__name__} - self.FREE
        return function(*args, **(kwargs or {}))


def views() -> dict[str, torch.Tensor]:
    return random_views(BATCH, **VIEWS)


def step_in_groups(size: int, dtype: torch.dtype, parts: int = 1) -> dict:
    """One true step of kNN-MoCo."""
    options = (*OPTIONS, "MOCO.BN_GROUP", size, "SOLVER.ACCUMULATION_STEPS", parts)
    model = tiny_model(*options).to(dtype)
    return take_steps(model, tiny_config(*options), [views()], frozen_bn=False, accumulation_steps=parts)


def steps_of_processes() -> dict:
    found = {(size, dtype): step_in_groups(size, dtype) for size in SIZES for dtype in (torch.float32, torch.float64)}
    if comm.get_world_size() == 2:
        found["in parts"] = step_in_groups(8, torch.float64, PARTS)  # parts of 4 images, two of them a group
        found |= {shape: layer_in_bfloat16(shape) for shape in MAPS}
    return found


def maps_in_bfloat16(shape: tuple[int, ...]) -> torch.Tensor:
    """Far from 0, as (processes, N, C, H, W)."""
    return (20 + torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))).bfloat16()


def layer_in_bfloat16(shape: tuple[int, ...]) -> tuple[list[torch.Tensor], list[list[str]]]:
    """Output, running statistics and gradient of a layer that two processes share, as under autocast; its operations
    forward and backward."""
    layer, x = nn.BatchNorm2d(3), maps_in_bfloat16(shape)[comm.get_rank()].requires_grad_()
    group_batch_norm([layer], BNGroups(2 * shape[0], 1, 2, 1))
    with Operations() as forward:
        out = layer(x)
    with Operations() as backward:
        out.backward(maps_in_bfloat16(shape)[1 - comm.get_rank()])
    return [out.detach(), layer.running_mean, layer.running_var, x.grad], [forward.names, backward.names]


@pytest.fixture(scope="module")
def steps() -> dict[int, dict]:
    """By the number of processes, what the first of them has."""
    return {processes: launch_forks(steps_of_processes, processes)[0] for processes in (1, 2, 4)}


def plain_step(parts: list[list[int]], size: int) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    """Losses, gradient and keys in float64: plain BN called on one group after the other, the formulas as they stand.

    Args:
        parts: indices of the images that run at a time, in order of the processes.
    """
    model, images = tiny_model(*OPTIONS).double().train(), views()
    queue, queue_g = model.queue.keys.clone(), model.queue.features.clone()

    def in_groups(backbone: nn.Module, crops: torch.Tensor) -> torch.Tensor:
        """(n, N, 3, H, W) -> (n, N, Cg)"""
        return torch.cat([model.pooled(backbone, group.flatten(0, 1)).unflatten(0, group.shape[:2])
                          for group in crops.split(size)])  # fmt: skip

    keys, losses = torch.empty(BATCH, 16, dtype=torch.float64), []
    for n, part in enumerate(parts):
        order = torch.tensor(part)[shuffle_permutation(len(part), 7, 0, n)]
        with torch.no_grad():
            g = in_groups(model.momentum_backbone, images["anchor"][order][:, None])[:, 0]
            keys[order] = normalize(model.momentum_projection_head(g))
        g = torch.cat([in_groups(model.backbone, images[name][part].view(len(part), -1, 3, width, width))
                       for name, width in (("positive", 64), ("small", 32))], dim=1)  # fmt: skip
        p = normalize(model.projection_head(g), dim=2)
        scores, positive = p @ queue.T / 0.2, (p * keys[part][:, None]).sum(2) / 0.2
        inst = torch.cat([positive[..., None], scores], dim=2).logsumexp(2) - positive
        nearest = (normalize(g, dim=2) @ queue_g.T).topk(5, dim=2).indices
        near = scores.logsumexp(2) - scores.gather(2, nearest).mean(2)
        losses.append(torch.stack([inst.mean(), inst.mean() + 0.4 * near.mean()]))
    mean = torch.stack(losses).mean(0)
    mean[1].backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return mean.tolist(), gradient, keys


def results(step: dict) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    """Of a true step what ``plain_step`` returns."""
    return step["losses"], step["gradients"][0], step["model"]["queue.keys"][:BATCH]


def assert_equal(one: tuple, other: tuple, tolerance: float) -> None:
    (losses, gradient, keys), (losses_too, gradient_too, keys_too) = one, other
    assert losses == pytest.approx(losses_too, rel=tolerance)
    assert (gradient - gradient_too).norm() < tolerance * gradient.norm()
    assert (keys - keys_too).abs().max() < tolerance


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_gradients_and_keys_are_those_of_plain_bn_on_every_group_on_1_2_and_4_processes(steps, processes, size):
    found = {dtype: results(steps[processes][size, dtype]) for dtype in (torch.float64, torch.float32)}
    assert_equal(found[torch.float64], plain_step([list(range(BATCH))], size), 1e-9)
    assert_equal(found[torch.float32], results(steps[1][size, torch.float32]), 1e-5)


def test_a_group_of_a_part_of_the_batch_is_that_part_of_neighbours(steps):
    halves = torch.arange(BATCH).view(2, PARTS, -1)  # by process and part
    parts = [halves[:, n].flatten().tolist() for n in range(PARTS)]
    assert_equal(results(steps[2]["in parts"]), plain_step(parts, 8), 1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_saved_running_statistics_are_the_mean_over_the_groups_of_the_first_process(steps, size):
    model = tiny_model(*OPTIONS).double().train()
    norm, found = model.momentum_backbone.stem.conv1.norm, []
    for group in views()["anchor"][shuffle_permutation(BATCH, 7, 0)].split(size):
        norm.reset_running_stats()
        model.pooled(model.momentum_backbone, group)
        found.append(torch.stack([norm.running_mean, norm.running_var]))
    for processes in (1, 2, 4):
        saved = steps[processes][size, torch.float64]["model"]
        saved = [saved[f"momentum_backbone.stem.conv1.norm.running_{name}"] for name in ("mean", "var")]
        own = found[: max(1, BATCH // processes // size)]
        assert torch.allclose(torch.stack(saved), torch.stack(own).mean(0), rtol=1e-9), processes


@pytest.mark.parametrize("shape", MAPS)
def test_pooled_statistics_of_bfloat16_maps_are_those_of_float64_plain_bn_by_one_exchange_each_way(steps, shape):
    (out, mean, var, grad), (forward, backward) = steps[2][shape]
    plain, x = nn.BatchNorm2d(3).double(), maps_in_bfloat16(shape).flatten(0, 1).double().requires_grad_()
    expected = plain(x)
    (expected * maps_in_bfloat16(shape).flip(0).flatten(0, 1)).sum().backward()
    assert out.dtype == grad.dtype == torch.bfloat16
    assert forward.count("_allgather_base_") == backward.count("allreduce_") == 1
    assert len(forward) <= 11, forward
    assert torch.allclose(out.double(), expected[: len(out)], rtol=2**-8, atol=1e-4)
    assert torch.allclose(grad.double(), x.grad[: len(grad)], rtol=2**-8, atol=1e-4)
    assert torch.allclose(mean.double(), plain.running_mean, rtol=1e-5)
    assert torch.allclose(var.double(), plain.running_var, rtol=1e-5)


def test_split_bn_keeps_the_names_evaluates_as_bn_and_says_when_the_batch_does_not_divide():
    net, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval(), torch.randn(6, 3, 4, 4)
    names, before = list(net.state_dict()), net(x)
    group_batch_norm([net], BNGroups(2, 4, 1, 4))
    assert list(net.state_dict()) == names
    assert torch.equal(net(x), before)
    with pytest.raises(ValueError, match="a batch of 6 does not divide into 4 groups"):
        net.train()(x)


def test_a_split_layer_computes_its_parts_and_little_else():
    layer, x = nn.BatchNorm2d(3), torch.randn(8, 3, 4, 4, requires_grad=True)
    group_batch_norm([layer], BNGroups(4, 2, 1, 2))
    with Operations() as operations:
        layer(x).backward(x.detach())
    parts = [name for name in operations.names if "batch_norm" in name]
    assert len(parts) == 4 and len(operations.names) <= 12, operations.names


recipe = cache(tiny_config)


@given(*(st.integers(1, 12) for _ in range(4)))
def test_groups_take_every_image_once_or_are_refused(part, processes, parts, size):
    def groups_of(size: int) -> BNGroups:
        batch = ["SOLVER.IMS_PER_BATCH", part * parts * processes, "SOLVER.ACCUMULATION_STEPS", parts]
        recipe().merge_from_list([*batch, "MOCO.BN_GROUP", size])
        return bn_groups(recipe(), part * parts, nn.BatchNorm2d(1))

    try:
        groups = groups_of(size)
    except UserError as error:
        assert part % size and (size % part or processes % (size // part)) and "\n" not in str(error)
        groups = groups_of(0)
    else:
        assert groups.images == size
    assert groups.images * groups.count == part * processes
    assert groups.images * groups.splits == part * groups.processes and 1 in (groups.splits, groups.processes)
    assert groups_of(0) == (part, 1, 1, processes)
    assert whole_batch(recipe()) == (part * parts * processes, 1, 1, 1)


@pytest.mark.parametrize(
    ("options", "processes", "said"),
    [
        (("MOCO.BN_GROUP", 1), 1, "of one place by one image alone"),  # 32 px end as one place
        (("MOCO.BN_GROUP", 0, "SOLVER.IMS_PER_BATCH", 4), 4, "of one place by one image alone"),
        (("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0, "MOCO.BN_GROUP", 1), 1, "by one image alone"),
        (("MOCO.BN_GROUP", 2), 1, "fewer than 8 values"),
        (("MOCO.BN_GROUP", 1, "VIEWS.LARGE_SIZE", 64), 1, "fewer than 8 values"),  # 4 places
        (("MOCO.BN_GROUP", 2, "VIEWS.LARGE_SIZE", 64), 1, ""),
        (("MOCO.BN_GROUP", 0), 2, "fewer than 8 values"),
        (("MOCO.BN_GROUP", 0), 1, "no other group, .*: take a larger batch"),  # groups of 4 would have 4 values
        (("MOCO.BN_GROUP", 0, "SOLVER.IMS_PER_BATCH", 16), 1, "no other group, .*: take MOCO.BN_GROUP 8"),
        (("MOCO.BN_GROUP", 16, "SOLVER.IMS_PER_BATCH", 16), 2, "no other group, .*: take MOCO.BN_GROUP 8"),
        (("MOCO.BN_GROUP", 0, "SOLVER.IMS_PER_BATCH", 16), 2, ""),
    ],
)
def test_groups_that_tell_nothing_are_refused_and_those_that_tell_keys_are_warned_of(options, processes, said):
    cfg = tiny_config(*options)
    share = cfg.SOLVER.IMS_PER_BATCH // processes
    try:
        method_of(cfg).check(cfg, share)
        ((_, note),) = logged(method_of(cfg).warn, cfg, 1000, share) or [(0, "")]
    except UserError as error:
        assert "alone" in said
        note = str(error)
    assert bool(note) == bool(said) and re.search(said, note), note
