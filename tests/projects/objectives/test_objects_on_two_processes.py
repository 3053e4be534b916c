"""ObjectMoCo on two gloo processes against one on the same global batch, whole and in parts."""

import pytest
import torch
from commands import launch_forks
from tiny import OBJECTS, random_objects, random_views, tiny_config, tiny_model
from true_steps import take_steps

from detectron2.utils import comm

BATCH, STEPS, OBJECTS_OF_IMAGE = 8, 3, 5
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


def train_both() -> list[dict]:
    return [train(parts) for parts in (1, 2)]


@pytest.fixture(scope="module")
def two() -> list[list[dict]]:
    return launch_forks(train_both, 2)


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
