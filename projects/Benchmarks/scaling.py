#!/usr/bin/env python
"""What a pretraining run needs on 2, 8 or 1,024 GPUs, and what runs out first.

    python projects/Benchmarks/scaling.py --config-file configs/pretrain/knn_moco.yaml
    python projects/Benchmarks/scaling.py --machine 64 H200 --batch-per-gpu 64 --images 1e8 SOLVER.EPOCHS 100

Memory, parameters and floating-point operations are counted on the network that the config builds. What no config
knows is assumed and can be given: the share of a GPU's peak rate that a step reaches, how many images a CPU core
prepares, the bytes of an image. docs/scaling.md has the formulas.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from revisit.config import PRETRAINING
from revisit.engine.command import natural, run_command
from revisit.engine.memory_estimate import (
    GIB,
    build_meta_model,
    flops_per_image,
    head_flops_per_image,
    memory_per_process,
)
from revisit.engine.setup import make_config
from revisit.errors import UserError

from detectron2.config import CfgNode

RECORD_BYTES = 500  # of one image of shards in the list of a data set while it is loaded; a fifth of it afterwards


class Gpu(NamedTuple):
    """By the makers' data sheets."""

    flops: float  # dense peak: float32 of the V100, bfloat16 of the others
    memory: float  # GiB
    link: float  # bytes a second of one GPU to the others
    cores: int  # CPU cores for each GPU, as such machines are commonly built


GPUS = {
    "V100": Gpu(15.7e12, 32, 12e9, 10),
    "A100": Gpu(312e12, 80, 25e9, 16),
    "H200": Gpu(989e12, 141, 50e9, 24),
}


DEFAULT_SIZES = (118287, 1.28e6, 1e8, 1e9)
DEFAULT_MACHINES = (("2", "V100"), ("8", "H200"), ("1024", "H200"))


class Assumed(NamedTuple):
    efficiency: float
    core_rate: float  # images a second
    image_bytes: float
    storage: float  # bytes a second for each GPU


class Need(NamedTuple):
    """Of one step of one run, seconds and bytes."""

    compute: float
    gradients: float
    crops: float
    keys: float
    memory: dict[str, float]  # GiB
    images: float  # a second
    use: dict[str, float]  # of each resource, 1 is all of it, at the speed of the GPUs' arithmetic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", default="configs/pretrain/knn_moco.yaml", metavar="FILE", help="(%(default)s)")
    parser.add_argument(
        "--machine", nargs=2, action="append", metavar=("N", "GPU"), help=f"GPU one of {', '.join(GPUS)}; repeatable"
    )
    parser.add_argument(
        "--batch-per-gpu", type=natural, metavar="N", help="(default: 128 on two, 64, and 32 from 64 up)"
    )
    parser.add_argument("--images", type=float, action="append", metavar="N", help="of the data set; repeatable")
    parser.add_argument("--efficiency", type=float, default=0.4, help="share of the peak rate (default: %(default)s)")
    parser.add_argument(
        "--core-rate", type=float, default=250, metavar="N", help="images a second of a core (default: %(default)s)"
    )
    parser.add_argument("--image-bytes", type=float, default=160e3, metavar="N", help="(default: %(default)g, COCO's)")
    parser.add_argument(
        "--storage", type=float, default=2.5e8, metavar="N", help="bytes a second for each GPU (default: %(default)g)"
    )
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="of the config")
    args = parser.parse_args()
    machines = args.machine or DEFAULT_MACHINES
    for count, name in machines:
        if not count.isdecimal() or int(count) < 1 or name not in GPUS:
            raise UserError(f"--machine {count} {name}: expected a number and one of {', '.join(GPUS)}")
    machines = [(int(count), name) for count, name in machines]
    assumed = Assumed(args.efficiency, args.core_rate, args.image_bytes, args.storage)
    columns = []
    for count, name in machines:
        batch = args.batch_per_gpu or (128 if count == 2 else 32 if count >= 64 else 64)
        cfg = resolve(args, count, batch)
        columns.append((f"{count:,} {name}", batch, need(cfg, count, GPUS[name], assumed)))
    print(f"{args.config_file}, {cfg.SOLVER.EPOCHS} epochs\n")
    print_columns(columns)
    print()
    print_sizes(args.images or DEFAULT_SIZES, columns, cfg.SOLVER.EPOCHS, assumed)


def resolve(args: argparse.Namespace, count: int, batch: int) -> CfgNode:
    """The config with ``batch`` images on each of ``count`` GPUs."""
    opts = [*args.opts, "SOLVER.IMS_PER_BATCH", str(count * batch)]
    cfg = make_config(args.config_file, opts, num_processes=count, for_here=False)
    if cfg.MODEL.META_ARCHITECTURE not in PRETRAINING:
        raise UserError(f"{args.config_file} trains {cfg.MODEL.META_ARCHITECTURE}: expected a pretraining recipe")
    return cfg


def need(cfg: CfgNode, count: int, gpu: Gpu, assumed: Assumed) -> Need:
    """The formulas of docs/scaling.md."""
    model = build_meta_model(cfg)
    batch = cfg.SOLVER.IMS_PER_BATCH // count
    others = (count - 1) / count
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    compute = (
        batch * (flops_per_image(cfg, model) + head_flops_per_image(cfg, model)) / (assumed.efficiency * gpu.flops)
    )
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


def print_columns(columns: list[tuple[str, int, Need]]) -> None:
    def row(title: str, values: list[str]) -> None:
        print(f"| {title} | {' | '.join(values)} |")

    needs = [need for _, _, need in columns]
    row("GPUs", [name for name, _, _ in columns])
    row("---", ["---"] * len(columns))
    row("images a GPU", [str(batch) for _, batch, _ in columns])
    row("arithmetic of a step (ms)", [f"{1000 * n.compute:.1f}" for n in needs])
    row("gradients (ms)", [f"{1000 * n.gradients:.1f}" for n in needs])
    row("shuffled crops (ms)", [f"{1000 * n.crops:.2f}" for n in needs])
    row("keys (ms)", [f"{1000 * n.keys:.2f}" for n in needs])
    for name in needs[0].memory:
        row(f"{name.replace('_', ', ')} (GiB a GPU)", [f"{n.memory[name]:.2f}" for n in needs])
    row("images a second, by arithmetic", [f"{n.images:,.0f}" for n in needs])
    for name in needs[0].use:
        row(f"{name}, share in use at that speed", [f"{100 * n.use[name]:,.0f} %" for n in needs])
    row("runs out first", [max(n.use, key=n.use.get) if max(n.use.values()) > 1 else "arithmetic" for n in needs])


def print_sizes(sizes: Sequence[float], columns: list[tuple[str, int, Need]], epochs: int, assumed: Assumed) -> None:
    """What grows with the data set alone; days at the speed that the scarcest resource allows."""
    names = " | ".join(f"days on {name}" for name, _, _ in columns)
    print(f"| images | on disk (TB) | list of a process, at most (GiB) | {names} |")
    print(f"|{'---|' * (3 + len(columns))}")
    for size in sizes:
        days = []
        for _, _, n in columns:
            slowed = max(1.0, n.use["CPU cores"], n.use["storage"], n.use["network"])
            days.append(f"{epochs * size / n.images * slowed / 86400:,.2f}")
        disk, records = size * assumed.image_bytes / 1e12, size * RECORD_BYTES / GIB
        print(f"| {size:,.0f} | {disk:,.2f} | {records:,.2f} | {' | '.join(days)} |")


if __name__ == "__main__":
    run_command(main)
