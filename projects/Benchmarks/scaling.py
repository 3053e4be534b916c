#!/usr/bin/env python
"""What a pretraining run needs on 2, 8 or 1,024 GPUs, and what runs out first.

    python projects/Benchmarks/scaling.py --config-file configs/pretrain/knn_moco.yaml
    python projects/Benchmarks/scaling.py --machine 64 H200 --batch-per-gpu 64 --images 1e8 SOLVER.EPOCHS 100

Memory, parameters and floating-point operations are counted on the network that the config builds. What no config
knows is assumed, and can be given: the share of a GPU's peak rate that a step reaches, how many images a CPU core
prepares, the bytes of an image. projects/Benchmarks/README.md has the formulas.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from projects.Benchmarks.network_flops import flops_per_image, head_flops_per_image
from revisit.engine.command import natural, run_command
from revisit.engine.memory_estimate import GIB, build_meta_model, memory_per_process
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.modeling.meta_arch.moco import MoCo
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

RECORD_BYTES = 500  # of one image of shards in the list of a data set while it is loaded; a fifth of it afterwards


class Gpu(NamedTuple):
    """By the makers' data sheets."""

    flops: float  # dense peak: float32 of the V100, bfloat16 of the others
    memory: float  # GiB
    link: float  # bytes per second of one GPU to the others
    cores: int  # CPU cores for each GPU, as such machines are commonly built


GPUS = {
    "V100": Gpu(15.7e12, 32, 12e9, 10),
    "A100": Gpu(312e12, 80, 25e9, 16),
    "H200": Gpu(989e12, 141, 50e9, 24),
}
DEFAULT_SIZES = (118287, 1.28e6, 1e8, 1e9)
DEFAULT_MACHINES = (("2", "V100"), ("8", "H200"), ("1024", "H200"))


class Assumed(NamedTuple):
    """What no config knows."""

    efficiency: float  # share of the peak rate
    core_rate: float  # images per second
    image_bytes: float
    storage: float  # bytes per second for each GPU


class Need(NamedTuple):
    """Of one step of one run: seconds, GiB, shares."""

    compute: float
    gradients: float
    crops: float
    keys: float
    memory: dict[str, float]
    images: float  # per second
    use: dict[str, float]  # of each resource at the speed of the GPUs' arithmetic; 1 is all of it


def main() -> None:
    """Two tables: what a step needs on each machine, what grows with the data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, names = parser.add_argument, ", ".join(GPUS)
    add("--config-file", default="configs/pretrain/knn_moco.yaml", metavar="FILE", help="(default: %(default)s)")
    add("--machine", nargs=2, action="append", metavar=("N", "GPU"), help=f"GPU one of {names}; repeatable")
    add("--batch-per-gpu", type=natural, metavar="N", help="(default: 128 on two, 64, and 32 from 64 up)")
    add("--images", type=float, action="append", metavar="N", help="of the data set; repeatable")
    add("--efficiency", type=float, default=0.4, metavar="X", help="share of the peak rate (default: %(default)s)")
    add("--core-rate", type=float, default=250, metavar="N", help="images per second and core (default: %(default)s)")
    add("--image-bytes", type=float, default=160e3, metavar="N", help="(default: %(default)g, COCO's)")
    add("--storage", type=float, default=2.5e8, metavar="N", help="bytes per second and GPU (default: %(default)g)")
    add("opts", nargs="*", metavar="KEY VALUE", help="of the config")
    args = parser.parse_args()
    assumed = Assumed(args.efficiency, args.core_rate, args.image_bytes, args.storage)
    machines: dict[str, tuple[int, Need]] = {}
    for number, gpu in args.machine or DEFAULT_MACHINES:
        if not number.isdecimal() or int(number) < 1 or gpu not in GPUS:
            raise UserError(f"--machine {number} {gpu}: expected a number and one of {names}")
        count = int(number)
        batch = args.batch_per_gpu or (128 if count == 2 else 32 if count >= 64 else 64)
        cfg = make_recipe(args.config_file, args.opts, count, batch)
        machines[f"{count:,} {gpu}"] = batch, need(cfg, count, GPUS[gpu], assumed)
    print(f"{args.config_file}, {cfg.SOLVER.EPOCHS} epochs\n")
    print_machines(machines)
    print()
    needs = {name: need for name, (_, need) in machines.items()}
    print_sizes(args.images or DEFAULT_SIZES, needs, cfg.SOLVER.EPOCHS, assumed)


def make_recipe(config_file: str, opts: list[str], count: int, batch: int) -> CfgNode:
    """The config with ``batch`` images on each of ``count`` GPUs."""
    opts = [*opts, "SOLVER.IMS_PER_BATCH", str(count * batch)]
    cfg = make_config(config_file, opts, num_processes=count, for_here=False)
    if not issubclass(method_of(cfg) or object, MoCo):
        raise UserError(
            f"{config_file} trains {cfg.MODEL.META_ARCHITECTURE}: expected a pretraining recipe with a queue"
        )
    return cfg


def need(cfg: CfgNode, count: int, gpu: Gpu, assumed: Assumed) -> Need:
    """The formulas of projects/Benchmarks/README.md."""
    model = build_meta_model(cfg)
    batch = cfg.SOLVER.IMS_PER_BATCH // count
    others = (count - 1) / count
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    flops = batch * (flops_per_image(cfg, model) + head_flops_per_image(cfg, model))
    compute = flops / (assumed.efficiency * gpu.flops)
    gradients = 2 * others * 4 * trained / gpu.link
    crops = others * batch * 3 * cfg.VIEWS.LARGE_SIZE**2 / gpu.link
    keys = (count - 1) * batch * 4 * sum(model.queue_widths().values()) / gpu.link
    memory = memory_per_process(cfg, model, count)["memory_gib_per_process"]
    images = count * batch / compute
    use = {
        "CPU cores": images / count / assumed.core_rate / gpu.cores,
        "storage": images / count * assumed.image_bytes / assumed.storage,
        "network": (gradients + crops + keys) / compute,
        "GPU memory": memory["total"] / gpu.memory,
    }
    return Need(compute, gradients, crops, keys, memory, images, use)


def print_machines(machines: dict[str, tuple[int, Need]]) -> None:
    """What a step needs, a column for each machine."""
    batches, needs = zip(*machines.values(), strict=True)
    print_row("GPUs", machines)
    print_row("---", ["---"] * len(machines))
    print_row("images per GPU", map(str, batches))
    print_row("arithmetic of a step (ms)", [f"{1000 * n.compute:.1f}" for n in needs])
    print_row("gradients (ms)", [f"{1000 * n.gradients:.1f}" for n in needs])
    print_row("shuffled crops (ms)", [f"{1000 * n.crops:.2f}" for n in needs])
    print_row("keys (ms)", [f"{1000 * n.keys:.2f}" for n in needs])
    for name in needs[0].memory:
        print_row(f"{name.replace('_', ', ')} (GiB per GPU)", [f"{n.memory[name]:.2f}" for n in needs])
    print_row("images per second, by arithmetic", [f"{n.images:,.0f}" for n in needs])
    for name in needs[0].use:
        print_row(f"{name}, share in use at that speed", [f"{100 * n.use[name]:,.0f} %" for n in needs])
    print_row("runs out first", [max(n.use, key=n.use.get) if max(n.use.values()) > 1 else "arithmetic" for n in needs])


def print_sizes(sizes: Sequence[float], needs: dict[str, Need], epochs: int, assumed: Assumed) -> None:
    """What grows with the data set alone; days at the speed that the scarcest resource allows."""
    print_row("images", ["on disk (TB)", "list of a process, at most (GiB)", *(f"days on {name}" for name in needs)])
    print_row("---", ["---"] * (2 + len(needs)))
    for size in sizes:
        slowed = [max(1.0, n.use["CPU cores"], n.use["storage"], n.use["network"]) for n in needs.values()]
        days = [epochs * size / n.images * slow / 86400 for n, slow in zip(needs.values(), slowed, strict=True)]
        sums = [size * assumed.image_bytes / 1e12, size * RECORD_BYTES / GIB, *days]
        print_row(f"{size:,.0f}", [f"{value:,.2f}" for value in sums])


def print_row(title: str, values: Iterable[str]) -> None:
    """A row of a Markdown table."""
    print(f"| {title} | {' | '.join(values)} |")


if __name__ == "__main__":
    run_command(main)
