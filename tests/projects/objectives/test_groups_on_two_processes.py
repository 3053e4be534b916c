"""Groups and the cycle on two gloo processes against one on the same global batch."""

import pytest
import torch
from commands import launch_forks
from tiny import random_views, tiny_config, tiny_model
from true_steps import take_steps

from detectron2.utils import comm

BATCH, STEPS = 8, 6
RUNS = {  # options, and parts of the two processes' batches
    "exclude": (("NEIGHBORS.GROUP_RULE", "exclude"), 1),
    "exclude in parts": (("NEIGHBORS.GROUP_RULE", "exclude"), 2),
    "attract": (("NEIGHBORS.GROUP_RULE", "attract"), 1),
    "across, with a cycle": (("NEIGHBORS.GROUP_RULE", "across", "NEIGHBORS.CYCLE", True), 1),
}


def train(name: str) -> dict:
    """Steps of a model whose momentum encoder is another than its encoder."""
    more, parts = RUNS[name]
    options = ("MODEL.META_ARCHITECTURE", "GroupedKNNMoCo", "NEIGHBORS.GROUPS", "self", *more)
    model = tiny_model(*options).double()
    for parameter in model.momentum_backbone.parameters():
        parameter.mul_(1.1)
    groups = (torch.arange(STEPS * BATCH) * 7 % 5).chunk(STEPS)
    batches = [random_views(BATCH, seed=n) | {"group": groups[n]} for n in range(STEPS)]
    return take_steps(
        model, tiny_config(*options), batches, accumulation_steps=parts if comm.get_world_size() > 1 else 1
    )


def train_all() -> dict[str, dict]:
    return {name: train(name) for name in RUNS}


@pytest.fixture(scope="module")
def two() -> list[dict[str, dict]]:
    return launch_forks(train_all, 2)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_compute_what_one_does(two, name):
    one, first, second = train(name), two[0][name], two[1][name]
    for a, b in zip(one["gradients"], first["gradients"], strict=True):
        assert (a - b).norm() < 1e-6 * a.norm()
    assert torch.equal(one["model"]["group_of_row"], first["model"]["group_of_row"])
    for ring in ("group_of_row", "queue.keys", "queue.features"):
        assert torch.equal(first["model"][ring], second["model"][ring])
        torch.testing.assert_close(one["model"][ring], first["model"][ring], rtol=1e-6, atol=1e-6)
