"""The formulas of docs/results/scale.md against what real processes exchange, a real checkpoint, and draws; the page
against the command."""

import os
import random
import socket
import stat
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
import torch.distributed as dist
from commands import ROOT, launch_forks, one_line_error, run
from runs import load
from tiny import FEATURE_DIM, random_views, tiny_config, tiny_model
from torch import Tensor, nn
from true_steps import take_steps

from projects.LargeData.ranges_ahead import GAP, spans_of
from revisit.engine.setup import make_config
from revisit.modeling.shuffle_bn import shuffle_permutation
from studies.benchmarks.scale_formulas import (
    checkpoint_period,
    lost_share,
    node_memory,
    reader_rate,
    requests_of_batch,
    slowest_of,
    step_traffic,
)
from studies.benchmarks.scale_sizes import sizes_of

from detectron2.engine import HookBase
from detectron2.utils import comm

COMMAND = "python studies/benchmarks/scale.py"
BATCH = 4  # of a process
POOLED = ("MOCO.BN_GROUP", 2 * BATCH)
BYTES_RECEIVED = 128  # where Linux has it in its tcp_info
PAYLOADS: dict[str, Callable[..., float]] = {
    "all_to_all_single": lambda into, _, lengths, *__: into.nbytes * (1 - lengths[comm.get_rank()] / sum(lengths)),
    # Losses, gathered too, are float64.
    "all_gather": lambda parts, own, **_: (len(parts) - 1) * own.nbytes * (own.dtype == torch.float32),
    "all_gather_into_tensor": lambda into, own, _: into.nbytes - own.nbytes,
    "all_reduce": lambda x, group: 2 * (group.size() - 1) / group.size() * x.nbytes,
}


def received() -> int:
    """Bytes that this process's TCP connections have received, as the kernel counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
            continue
        with socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family != socket.AF_UNIX and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, BYTES_RECEIVED)[0]
    return total


class Readings(HookBase):
    """After every step: what the step's own collectives have brought to this process, and all that came by TCP."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.payload: Counter[str] = Counter()
        self.after: list[Counter[str]] = []
        for name, size_of in PAYLOADS.items():
            patch.setattr(dist, name, self.noting(name, getattr(dist, name), size_of))

    def noting(self, name: str, exchange: Callable, size_of: Callable[..., float]) -> Callable:
        def call(*args: object, **how: object) -> object:
            self.payload[name] += size_of(*args, **how)
            return exchange(*args, **how)

        return call

    def after_step(self) -> None:
        comm.synchronize()
        self.after.append(self.payload + Counter(wire=received()))


def bytes_of_a_step(*options: tuple) -> list[Counter]:
    """For each of the options, what this process receives in the third step of a training."""
    found = []
    for option in options:
        all_options = ("SOLVER.IMS_PER_BATCH", BATCH * comm.get_world_size(), *option)
        model, batch = tiny_model(*all_options), random_views(BATCH * comm.get_world_size())
        with pytest.MonkeyPatch.context() as patch:
            readings, hooks = Readings(patch), model.hooks
            patch.setattr(model, "hooks", lambda *args, **how: [*hooks(*args, **how), readings])  # noqa: B023
            take_steps(model, tiny_config(*all_options), 3 * [batch], frozen_bn=False)
        found.append(readings.after[2] - readings.after[1])
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_exchange_what_the_formulas_say(processes):
    by_process = launch_forks(bytes_of_a_step, processes, (), POOLED)
    for number, options in enumerate([(), POOLED]):
        cfg = tiny_config("SOLVER.IMS_PER_BATCH", BATCH * processes, *options)
        expected = step_traffic(sizes_of(cfg, processes), processes)
        found = {name: fmean(counts[number][name] for counts in by_process) for name in (*PAYLOADS, "wire")}
        assert found["all_gather"] == expected["keys"]
        statistics = found["all_gather_into_tensor"] + found["all_reduce"]
        assert statistics == pytest.approx(expected["batch statistics"], rel=1e-12)
        assert bool(found["all_to_all_single"]) == bool(expected["anchors"])
        # What DistributedDataParallel reduces shows on the wire alone, where every message has a header, too: the 100
        # of batch statistics are shorter than theirs in this network.
        payload = sum(found[name] for name in PAYLOADS) + expected["gradients"]
        assert 0 <= found["wire"] - payload < (0.06 if options else 0.01) * payload


@pytest.mark.parametrize("processes", [2, 8])
def test_an_anchor_is_as_often_of_another_process_as_the_formula_says(processes):
    places, orders = np.arange(4 * processes), (shuffle_permutation(4 * processes, 0, n) for n in range(2_000))
    moved = fmean((order // 4 != places // 4).mean() for order in orders)
    sizes = sizes_of(tiny_config("SOLVER.IMS_PER_BATCH", 4 * processes), processes)
    assert step_traffic(sizes, processes)["anchors"] == pytest.approx(moved * 4 * sizes.anchor_bytes, rel=0.01)


def test_sizes_by_hand():
    sizes = sizes_of(tiny_config(*POOLED, "SOLVER.IMS_PER_BATCH", 4 * BATCH), 4)
    model = tiny_model()
    norms = [layer for layer in model.backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert sizes.images == BATCH and sizes.pool == 2 and sizes.shuffles
    assert sizes.view_bytes == 3 * (2 * 32**2 + 4 * 16**2) and sizes.anchor_bytes == 3 * 32**2
    assert sizes.key_bytes == 4 * (16 + FEATURE_DIM) and sizes.channels == sum(len(layer.weight) for layer in norms)
    assert (sizes.forward_passes, sizes.backward_passes) == (3, 2)
    alone = sizes_of(tiny_config(*POOLED, "SOLVER.IMS_PER_BATCH", 2 * BATCH, "VIEWS.NUM_SMALL", 0), 2)
    assert not alone.shuffles and (alone.forward_passes, alone.backward_passes) == (2, 1)


def test_a_checkpoint_has_the_bytes_that_are_counted(pretrained):
    content = load(path := pretrained / "model_final.pth")
    cfg = make_config(f"{pretrained}/config.yaml", [], num_processes=2, for_here=False)
    counted = sizes_of(cfg, 2).checkpoint_bytes
    optimizer = content["trainer"]["_trainer"]["optimizer"].values()
    buffers = sum(x.nbytes for state in optimizer for x in state.values() if isinstance(x, Tensor))
    assert sum(x.nbytes for x in content["model"].values()) + buffers == counted
    assert counted < path.stat().st_size < counted + 2**18


@pytest.mark.parametrize("image_bytes", [5_000, 112_000])
def test_images_that_are_near_each_other_are_one_request(image_bytes):
    images, batch, rng = 3_000, 64, random.Random(0)
    starts = [[n * image_bytes for n in rng.sample(range(images), batch)] for _ in range(200)]
    requests = fmean(len(spans_of([("shard", start, start + image_bytes) for start in each])) for each in starts)
    assert requests == pytest.approx(requests_of_batch(batch, images, image_bytes, GAP), rel=0.005)


def test_a_worker_is_as_fast_as_two_stores_measured():
    """32 images a batch; docs/results/scale.md has the rates."""
    assert reader_rate(32, 0.050, 0.00064) == pytest.approx(460, rel=0.02)
    assert reader_rate(32, 0.005, 0.00064) == pytest.approx(1260, rel=0.01)


def test_memory_of_a_machine_by_hand():
    sizes = sizes_of(tiny_config("SOLVER.IMS_PER_BATCH", 8), 2)
    memory = node_memory(sizes, 2**24, 1_000, processes=2, workers=3, ahead=4)
    assert memory["index"] == 16 * 2**24 and memory["order"] == 2 * 2**27
    assert memory["encoded batches"] == 2 * 3 * 6 * BATCH * 1_000
    assert memory["views"] == 2 * 3 * 2 * BATCH * 3 * (2 * 32**2 + 4 * 16**2)
    assert node_memory(sizes, 1e8, 1, processes=1, workers=1, ahead=0)["order"] == 0


@pytest.mark.parametrize(("count", "spread"), [(1, 0.3), (8, 0.05), (64, 0.05), (64, 0.3)])
def test_the_slowest_machine_takes_as_long_as_drawn_ones(count, spread):
    times = np.random.default_rng(0).lognormal(0, spread, (20_000, count))
    assert slowest_of(count, spread) == pytest.approx(times.max(1).mean() / times.mean(), rel=0.005)


def test_no_other_time_between_checkpoints_loses_less():
    best = checkpoint_period(2.0, 36_000.0)
    lost = [lost_share(factor * best, 2.0, 60.0, 36_000.0) for factor in (0.8, 1.0, 1.25)]
    assert best == pytest.approx(379.47, abs=0.01) and min(lost) == lost[1] == pytest.approx(0.012208, abs=1e-6)


def test_failures_lose_what_the_formula_says():
    """A run that saves every 400 s for 2 s, fails after exponential times and starts again in 60 s."""
    rng, useful, spent = random.Random(0), 0.0, 0.0
    for _ in range(20_000):
        failed_after = rng.expovariate(1 / 36_000)
        useful += 400 * (failed_after // 402)
        spent += failed_after + 60
    assert 1 - useful / spent == pytest.approx(lost_share(400, 2, 60, 36_000), rel=0.03)


def test_the_page_shows_what_the_command_prints(tmp_path):
    printed = [line for line in run(COMMAND, tmp_path).splitlines() if line.startswith("|")]
    page = (ROOT / "docs/results/scale.md").read_text().splitlines()
    assert len(printed) > 25 and set(printed) <= set(page)


def test_fewer_images_than_a_batch_are_refused(tmp_path: Path):
    assert "expected 1,024, a batch of all GPUs" in one_line_error(f"{COMMAND} --count 1 --num-gpus 16", tmp_path)


def test_a_recipe_that_leaves_values_open_is_counted_for_its_images_and_needs_a_length_in_epochs(tmp_path: Path):
    own = f"{COMMAND} --config-file configs/own_images/objects.yaml --count 1e6 --num-gpus 8"
    assert "minutes: expected one such as SOLVER.EPOCHS 100" in one_line_error(own, tmp_path)
    assert "configs/own_images/objects.yaml, 20 epochs" in run(f"{own} SOLVER.EPOCHS 20", tmp_path)


def test_a_recipe_without_a_queue_is_refused(tmp_path: Path):
    assert "GeneralizedRCNN" in one_line_error(f"{COMMAND} --config-file configs/toy/detection.yaml", tmp_path)
