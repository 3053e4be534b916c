"""What only a GPU can show (`make check-gpu`): the CPU's numbers, a host that waits for nothing, the planned memory."""

import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

import numpy as np
import pytest
import torch
import torch.distributed as dist
from runs import train
from tiny import random_views, tiny_config, tiny_model
from torch import nn
from true_steps import take_steps

from projects.LargeData.looks_on_device import apply_looks, record_of
from projects.Planning.step_cost import random_views as views_of_recipe
from projects.Planning.step_cost import step_cost
from revisit.data.views.looks import LOOK_REGISTRY
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.setup import make_config
from revisit.engine.train_step import TrainStep
from revisit.evaluation.classifiers import knn_classify
from revisit.evaluation.features import Features
from revisit.modeling.grouped_batch_norm import PooledBatchNorm2d
from revisit.modeling.losses.queue_scores import nearest_rows

from detectron2.config import CfgNode
from detectron2.utils.events import EventStorage

pytestmark = pytest.mark.cuda

GPU = ("MODEL.DEVICE", "cuda")
SMALL_HEADS = ("BYOL.HIDDEN_DIM", 8, "SWAV.HIDDEN_DIM", 8, "SWAV.PROTOTYPES", 8, "NEIGHBORS.QUEUE_SIZE", 50)
IN_PARTS = ("DIET.NUM_IMAGES", 8, "DIET.MAX_SCORES", 64)


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def training(cfg: CfgNode, batch: dict) -> TrainStep:
    """Steps on one batch, whose metrics are read every 20th time."""
    step = PretrainTrainer.build_step(cfg, PretrainTrainer.build_model(cfg), repeat(batch))
    step.register_hooks(step.model.hooks(cfg, 1))
    step.iter, step.max_iter = 0, cfg.SOLVER.MAX_ITER
    return step


def take(step: TrainStep) -> EventStorage:
    with EventStorage(step.iter) as step.storage:
        step.before_step()
        step.run_step()
        step.after_step()
    step.iter += 1
    return step.storage


@pytest.mark.parametrize("method", ["KNNMoCo", "DenseCL", "SimCLR", "BYOL", "SwAV", "DIET"])
def test_the_host_waits_for_nothing_in_a_step_that_is_not_watched(method):
    options = ("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", 0, "MOCO.BN_GROUP", 4, *SMALL_HEADS, *IN_PARTS)
    batch = random_views(8, num_small=0) | {name: torch.zeros(8, dtype=torch.int64) for name in ("label", "index")}
    step = training(tiny_config(*options, *GPU), batch)
    take(step)  # libraries are loaded in the first
    with no_waiting():
        take(step)


def test_looks_are_those_of_the_cpu_and_the_host_waits_for_none_of_them(make_picture):
    images = np.stack([make_picture(48, 48, seed) for seed in range(64)])
    rng, draw = np.random.default_rng(0), LOOK_REGISTRY.get("standard_or_autoaugment")(tiny_config())
    records = np.stack([record_of(draw(rng), 48) for _ in images])
    images = torch.from_numpy(images).movedim(-1, 1)
    with no_waiting():
        found = apply_looks(images.pin_memory().to("cuda", non_blocking=True), records)
    assert (found.cpu().int() - apply_looks(images, records).int()).abs().max() <= 1


@pytest.mark.parametrize("group", [0, 4])
def test_a_step_is_the_cpus(group, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default, 10 bits of mantissa

    def steps(device: str) -> dict:
        cfg = tiny_config("MOCO.BN_GROUP", group)
        return take_steps(tiny_model("MOCO.BN_GROUP", group).to(device), cfg, [random_views(8)] * 3, frozen_bn=False)

    cpu, gpu = steps("cpu"), steps("cuda")
    assert gpu["losses"] == pytest.approx(cpu["losses"], rel=1e-3)
    first = cpu["gradients"][0]
    assert (gpu["gradients"][0].cpu() - first).norm() < 1e-3 * first.norm()


def test_pooled_statistics_are_plain_batch_norms(tmp_path):
    x = torch.randn(8, 3, 5, 5, device="cuda")
    plain, pooled = nn.BatchNorm2d(3).cuda(), nn.BatchNorm2d(3).cuda()
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        pooled.__class__, pooled.group = PooledBatchNorm2d, weakref.ref(dist.group.WORLD)
        outcomes = []
        for layer in (plain, pooled):
            own = x.clone().requires_grad_()
            out = layer(own)
            (out * x.flip(0)).sum().backward()
            outcomes.append([out, own.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var])
    finally:
        dist.destroy_process_group()
    for one, other in zip(*outcomes, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_float16_scales_its_loss():
    step = training(tiny_config("SOLVER.AMP.ENABLED", True, "SOLVER.AMP.DTYPE", "float16", *GPU), random_views(8))
    scales = [take(step).history("grad_scale").latest() for _ in range(3)]
    assert min(scales) > 1 and step.skipped_steps < 3
    assert all(parameter.isfinite().all() for parameter in step.model.parameters())


def test_a_run_resumes_on_a_gpu_and_on_a_cpu_again(toy_datasets, tmp_path):
    for end, device in ((3, "cpu"), (5, "cuda"), (7, "cpu")):
        run = train(tmp_path, "MODEL.DEVICE", device, "SOLVER.MAX_ITER", end, resume=end > 3)
        assert (run.start_iter, run.iter) == (end - 2 if end > 3 else 0, end)


def test_neighbours_in_a_queue_of_16_bits_are_those_of_rows_rounded_to_it():
    generator = torch.Generator().manual_seed(0)
    rows, queue = (nn.functional.normalize(torch.randn(n, 64, generator=generator)).bfloat16() for n in (7, 300))
    expected = (rows.double() @ queue.double().T).topk(5).indices
    found = nearest_rows(rows.float().cuda(), queue.cuda(), 5, max_scores=1000)
    assert torch.equal(found.cpu().sort(dim=1).values, expected.sort(dim=1).values)


def test_knn_votes_as_on_the_cpu():
    rows = nn.functional.normalize(torch.randn(90, 16), dim=1)
    bank, labels = rows[:60], torch.arange(60) % 5
    found = [
        knn_classify(Features(bank.to(device), labels.to(device)), rows[60:], k=7, temperature=0.1)
        for device in ("cpu", "cuda")
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_memory_is_the_dry_runs(bfloat16):
    options = ["SOLVER.AMP.ENABLED", bfloat16, "MODEL.CHANNELS_LAST", bfloat16, "SOLVER.IMS_PER_BATCH", 128]
    cfg = make_config("configs/pretrain/knn_moco.yaml", [*options, "SOLVER.MAX_ITER", 2])
    planned = sum(step_cost(cfg, 1).memory.values())
    step = training(cfg, views_of_recipe(cfg, 128))
    take(step)
    torch.cuda.reset_peak_memory_stats()
    take(step)
    assert torch.cuda.max_memory_allocated() == pytest.approx(planned, rel=0.1)


LINEAR = """
import torch
from revisit.evaluation.classifiers import top1
from revisit.evaluation.features import Features
from projects.FrozenEvaluations.while_pretraining import fit_linear
generator, labels = torch.Generator().manual_seed(0), torch.arange(1200) % 5
rows = torch.randn(1200, 16, generator=generator) + torch.eye(16)[labels]
test = Features(rows[800:], labels[800:])
for device in ("cuda", "cpu"):  # in this order: scipy has not been imported yet
    print(top1(fit_linear(Features(rows[:800].to(device), labels[:800].to(device))), test))
"""


def test_the_linear_classifier_of_the_gpu_is_that_of_the_cpu():
    done = subprocess.run([sys.executable, "-c", LINEAR], capture_output=True, text=True, check=True)
    on_gpu, on_cpu = map(float, done.stdout.split())
    assert on_gpu == pytest.approx(on_cpu, abs=0.5) and on_cpu > 30
