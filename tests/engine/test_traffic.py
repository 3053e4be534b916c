"""What travels between processes in a step, counted by wrapping the collectives, against the plain form."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from commands import launch_forks
from tiny import random_views, tiny_model

from detectron2.utils import comm
from detectron2.utils.events import EventStorage

BATCH = 8


def count_step(architecture: str, output: Path) -> None:
    """One step's forward; saves the bytes that this process sends to others, by collective, and their calls."""
    rank, world_size = comm.get_rank(), comm.get_world_size()
    model = tiny_model("MODEL.META_ARCHITECTURE", architecture, "MOCO.QUEUE_SIZE", 50).train()
    views = random_views(BATCH, seed=0)
    share = BATCH // world_size
    mine = {name: value[rank * share : (rank + 1) * share] for name, value in views.items()}
    sent = {"all_to_all": [], "all_gather": []}
    all_to_all, all_gather = dist.all_to_all_single, dist.all_gather

    def counted_all_to_all(outputs, inputs, output_splits, input_splits):
        rows = sum(count for to, count in enumerate(input_splits) if to != rank)
        sent["all_to_all"].append(rows * inputs[0].nbytes if len(inputs) else 0)
        return all_to_all(outputs, inputs, output_splits, input_splits)

    def counted_all_gather(outputs, inputs, async_op=False):
        sent["all_gather"].append((world_size - 1) * inputs.nbytes)
        return all_gather(outputs, inputs, async_op=async_op)

    dist.all_to_all_single, dist.all_gather = counted_all_to_all, counted_all_gather
    with EventStorage(0):
        model(mine)
    image_bytes = 4 * mine["anchor"].numel()
    key_bytes = 4 * share * (model.embedding_dim + (model.feature_dim if architecture == "KNNMoCo" else 0))
    naive = {"images": (world_size - 1) * image_bytes, "keys": (world_size - 1) * key_bytes}
    torch.save({"sent": sent, "naive": naive, "uint8": mine["anchor"].numel()}, output / f"{rank}.pth")


@pytest.mark.parametrize(("world_size", "architecture"), [(2, "KNNMoCo"), (4, "KNNMoCo"), (2, "MoCo")])
def test_each_crop_travels_once_in_bytes_and_keys_in_one_collective(world_size, architecture, tmp_path):
    launch_forks(count_step, world_size, architecture, tmp_path)
    counts = [torch.load(tmp_path / f"{rank}.pth") for rank in range(world_size)]
    for count in counts:
        (images,), (keys,) = count["sent"]["all_to_all"], count["sent"]["all_gather"]
        assert images <= count["uint8"]  # what stays here does not travel
        assert keys == count["naive"]["keys"]  # every process needs every key: no collective sends less
        assert 4 * (world_size - 1) * images <= count["naive"]["images"]
    assert sum(count["sent"]["all_to_all"][0] for count in counts) > 0
