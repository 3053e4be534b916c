"""ObjectMoCo on two gloo processes against one on the same global batch, whole and in parts."""

import pytest
import torch
from commands import launch_forks
from tiny import C4, OBJECTS, random_objects, random_views, tiny_config, tiny_model
from true_steps import take_steps

from detectron2.utils import comm

BATCH, STEPS, OBJECTS_OF_IMAGE = 8, 3, 5
GROUPS = (4, 8)  # a part of one process's pass, or the passes of both
OPTIONS = (*OBJECTS, "OBJECTS.IMAGE_WEIGHT", 0.5)


def train(parts: int) -> dict:
    """Steps of a model whose momentum encoder is another than its encoder."""
    model = tiny_model(*OPTIONS)
    for parameter in model.momentum_backbone.parameters():
        parameter.mul_(1.1)
    labels = torch.arange(STEPS * BATCH).chunk(STEPS)
    batches = [random_views(BATCH, seed=n, large=64, small=32, num_small=2) for n in range(STEPS)]
    batches = [batch | random_objects(BATCH, seed=n) | {"label": labels[n]} for n, batch in enumerate(batches)]
    parts = parts if comm.get_world_size() > 1 else 1
    return take_steps(model, tiny_config(*OPTIONS), batches, accumulation_steps=parts)


def train_res5(group: int) -> dict:
    """A step of a C4 detector in float64, whose batch norm has groups of so many images."""
    options = (*C4, "MOCO.BN_GROUP", group)
    batch = random_views(BATCH, large=64, small=32, num_small=2) | random_objects(BATCH)
    return take_steps(tiny_model(*options).double(), tiny_config(*options), [batch], frozen_bn=False)


def train_all() -> list[dict]:
    return [*(train(parts) for parts in (1, 2)), *map(train_res5, GROUPS)]


@pytest.fixture(scope="module")
def two() -> list[list[dict]]:
    return launch_forks(train_all, 2)


@pytest.mark.parametrize("run", [0, 1], ids=["whole", "in parts"])
def test_two_processes_compute_what_one_does(two, run):
    one, first, second = train(1), two[0][run], two[1][run]
    assert first["losses"] == pytest.approx(one["losses"], rel=1e-5)
    for a, b in zip(one["gradients"], first["gradients"], strict=True):
        assert (a - b).norm() < 1e-4 * a.norm()
    assert one["model"]["queue.num_enqueued"] == STEPS * BATCH * OBJECTS_OF_IMAGE
    rings = [name for name in one["model"] if "queue." in name]
    for name in rings:
        assert torch.equal(first["model"][name], second["model"][name]), name
        assert torch.allclose(one["model"][name].float(), first["model"][name].float(), atol=1e-5), name


@pytest.mark.parametrize("group", GROUPS)
def test_batch_norm_of_the_box_head_has_the_groups_of_the_backbones(two, group):
    one, both = train_res5(group), two[0][2 + GROUPS.index(group)]
    assert both["losses"] == pytest.approx(one["losses"], rel=1e-9)
    assert (one["gradients"][0] - both["gradients"][0]).norm() < 1e-8 * one["gradients"][0].norm()
    for name in ("queue.keys", "queue.features"):
        assert torch.allclose(one["model"][name], both["model"][name], atol=1e-9), name
