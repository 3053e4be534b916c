#!/usr/bin/env python
"""What a pretraining on many machines and images reads, sends, keeps and costs, and which wall it meets first.

    python studies/benchmarks/scale.py --config-file configs/pretrain/knn_moco.yaml
    python studies/benchmarks/scale.py --count 1e8 --num-gpus 64 --device A100 \\
        --rule image-kb=80 partitions=30 SOLVER.EPOCHS 100

Memory, parameters and floating-point operations are counted on a step that runs without numbers. What no config knows
is assumed; every assumption is an option. docs/results/scale.md has the formulas, and what was measured of them.
"""

import argparse
from math import ceil
from typing import NamedTuple

from revisit.command.options import DEFAULT, add, named, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.markdown import markdown_table
from revisit.progress import progress
from studies.benchmarks import scale_formulas as formulas

GIB, GB, DAY, HOUR = 2**30, 1e9, 86400, 3600
GPUS_OF_NODE = 8


class Gpu(NamedTuple):
    """By the makers' data sheets."""

    flops: float  # dense peak: float32 of the V100, bfloat16 of the others
    bandwidth: float  # bytes per second of its memory
    memory: float  # GiB
    link: float  # bytes per second of one GPU to the others
    cores: int  # CPU cores for each GPU, as such machines are commonly built


GPUS = {
    "V100": Gpu(15.7e12, 0.9e12, 32, 12e9, 10),
    "A100": Gpu(312e12, 2.04e12, 80, 25e9, 16),
    "H200": Gpu(989e12, 4.8e12, 141, 50e9, 24),
}
# What --rule says otherwise: defaults, and what they are.
ASSUMED = {
    "batch-per-gpu": (64, "images"),
    "gpu-images-per-second": (0, "measured (0: by arithmetic and memory)"),
    "image-kb": (112, "of an image in the store"),
    "efficiency": (0.4, "share of a GPU's peak rate that a step reaches"),
    "bandwidth-share": (0.8, "of a GPU's memory"),
    "core-rate": (250, "images per second that a CPU core makes views of"),
    "latency-ms": (50, "until the store answers"),
    "request-ms": (0.64, "of a core, for an image's request and bytes"),
    "partitions": (1, "of the store, over which the shards' names are spread"),
    "requests": (5500, "a second that a partition answers"),
    "node-gbit": (100, "per second from the store to a machine of 8 GPUs"),
    "node-gib": (2048, "memory of such a machine"),
    "spread": (0.05, "standard deviation of the logarithm of a machine's step time"),
    "save-gb": (1, "per second that a checkpoint is written with"),
    "gpu-hours-to-failure": (50700, "of all GPUs together, between two failures"),
    "start-s": (60, "of a start, without the index of the shards"),
    "index-gb": (0.5, "per second that a machine copies an index from a store and checks it with"),
    "request-price": (4e-7, "dollars"),
    "gb-price": (0.05, "dollars for 10^9 bytes that leave the store's region"),
    "gb-month-price": (0.021, "dollars for 10^9 bytes kept for a month"),
}


class Machine(NamedTuple):
    """One GPU among many, with its share of a machine of eight."""

    sizes: formulas.Sizes
    processes: int  # in all, one a GPU
    epochs: float
    workers: int  # of a process
    ahead: int  # batches that a worker asks a store for
    gap: int  # bytes between two ranges of one request
    seconds: dict[str, float]  # of a step, by what would take them alone
    memory: float  # bytes of the GPU
    gpu: Gpu

    @property
    def node(self) -> int:
        """Processes on a machine."""
        return min(GPUS_OF_NODE, self.processes)

    @property
    def rate(self) -> float:
        """Images per second of the GPU, while it waits for nothing."""
        return self.sizes.images / max(self.seconds.values())


def main() -> None:
    """Two tables: what a step and a second need by the number of GPUs, and a run by that and the number of images."""
    parser = parser_of(__doc__, __file__)
    add(parser, "config-file", default="configs/pretrain/knn_moco.yaml", help=DEFAULT)
    add(parser, "count", nargs="+", default=[10**6, 10**8, 10**9], help="images (default: 1e6 1e8 1e9)")
    add(parser, "num-gpus", nargs="+", default=[8, 64, 512], help="of a run (default: 8 64 512)")
    add(parser, "device", choices=GPUS, default="H200", metavar=None, help=f"which GPU {DEFAULT}")
    assumed = "; ".join(f"{name}={default:g} {meaning}" for name, (default, meaning) in ASSUMED.items())
    add(parser, "rule", type=named(dict.fromkeys(ASSUMED, amount)), help=f"{assumed}")
    add(parser, "opts")
    args = parse(parser)
    numbers = {name: default for name, (default, _) in ASSUMED.items()} | dict(args.rule)
    numbers["batch-per-gpu"] = int(numbers["batch-per-gpu"])
    vars(args).update({name.replace("-", "_"): number for name, number in numbers.items()})
    least = max(args.num_gpus) * args.batch_per_gpu
    fewest = min(args.count)
    expect(fewest >= least, f"--count {fewest:g}: expected {least:,}, a batch of all GPUs, or more")
    machines = [machine_of(args, count) for count in progress("counting a step", "column", args.num_gpus)]
    print(f"{args.config_file}, {machines[0].epochs:g} epochs, {args.device}, {args.batch_per_gpu} images per GPU\n")
    print(step_table(machines, args), run_table(machines, args), sep="\n\n")


def amount(text: str) -> float:
    """A number above 0, as a type of argparse, which takes a ValueError for a refusal."""
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def machine_of(args: argparse.Namespace, processes: int) -> Machine:
    """What a step needs on each of so many GPUs, counted."""
    from projects.LargeData.ranges_ahead import GAP
    from projects.Planning.step_cost import step_cost
    from studies.benchmarks.scale_sizes import recipe, sizes_of

    gpu = GPUS[args.device]
    amp = ["SOLVER.AMP.ENABLED", str(args.device != "V100")]  # what its peak rate is of
    fewest = int(min(args.count))  # for which a recipe decides what it leaves open, such as the length of the queue
    cfg = recipe(args.config_file, [*amp, *args.opts], processes, args.batch_per_gpu, fewest)
    cost = step_cost(cfg, processes)
    operations = cost.forward_flops + cost.backward_flops
    seconds = {
        "arithmetic": operations / (args.efficiency * gpu.flops),
        "memory traffic": cost.traffic / (args.bandwidth_share * gpu.bandwidth),
    }
    if args.gpu_images_per_second:
        seconds = {"computing, measured": args.batch_per_gpu / args.gpu_images_per_second}
    loading = cfg.DATALOADER
    return Machine(
        sizes=sizes_of(cfg, processes),
        processes=processes,
        epochs=cfg.SOLVER.EPOCHS,
        workers=loading.NUM_WORKERS,
        ahead=loading.BATCHES_AHEAD,
        gap=GAP,
        seconds=seconds,
        memory=sum(cost.memory.values()),
        gpu=gpu,
    )


def uses(machine: Machine, args: argparse.Namespace) -> dict[str, float]:
    """Share of each resource that the run uses while no GPU waits; above 1 the GPUs wait for it."""
    rate, gpu = machine.rate, machine.gpu
    of_store = args.partitions * args.requests
    bytes_of_node = machine.node * rate * args.image_kb * 1e3
    cores = rate * (1 / args.core_rate + args.request_ms / 1e3)
    sent = sum(formulas.step_traffic(machine.sizes, machine.processes).values())
    return {
        "the store's requests": machine.processes * rate / of_store,
        "bytes from the store": bytes_of_node / (args.node_gbit * GB / 8),
        "CPU cores": cores / gpu.cores,
        "network": sent / gpu.link * rate / machine.sizes.images,
    }


def slowest(machine: Machine, args: argparse.Namespace) -> float:
    """How many times the mean step a step takes, because the slowest machine decides."""
    return formulas.slowest_of(ceil(machine.processes / GPUS_OF_NODE), args.spread)


def step_table(machines: list[Machine], args: argparse.Namespace) -> str:
    """A column for each number of GPUs."""
    columns = [step_figures(machine, args) for machine in machines]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return markdown_table(["GPUs", *(f"{machine.processes:,}" for machine in machines)], rows)


def step_figures(machine: Machine, args: argparse.Namespace) -> dict[str, str]:
    """What the number of images does not change, by name with its unit."""
    rate, sizes = machine.rate, machine.sizes
    traffic = formulas.step_traffic(sizes, machine.processes)
    reader = formulas.reader_rate(sizes.images, args.latency_ms / 1e3, args.request_ms / 1e3)
    failures = HOUR * args.gpu_hours_to_failure / machine.processes
    saving = sizes.checkpoint_bytes / (args.save_gb * GB)
    period = formulas.checkpoint_period(saving, failures)
    lost = formulas.lost_share(period, saving, args.start_s, failures)
    return {
        **{f"{name} of a step (ms)": f"{1e3 * seconds:.1f}" for name, seconds in machine.seconds.items()},
        "images a second": f"{machine.processes * rate:,.0f}",
        "from the store (GB a second)": f"{machine.processes * rate * args.image_kb / 1e6:,.1f}",
        "workers of a GPU that the store's latency needs": f"{ceil(rate / reader)}",
        **{f"{name} that a GPU receives in a step (MB)": f"{size / 1e6:.1f}" for name, size in traffic.items()},
        "time for these (ms)": f"{1e3 * sum(traffic.values()) / machine.gpu.link:.1f}",
        "memory of a GPU (GiB)": f"{machine.memory / GIB:.1f}",
        "a step with the slowest machine (times the mean)": f"{slowest(machine, args):.3f}",
        "a checkpoint (GB)": f"{sizes.checkpoint_bytes / GB:.2f}",
        "best time between checkpoints (min)": f"{period / 60:.0f}",
        "lost to checkpoints and failures (%)": f"{100 * lost:.2f}",
        **{f"{name} (% in use)": f"{100 * share:,.0f}" for name, share in uses(machine, args).items()},
    }


def run_table(machines: list[Machine], args: argparse.Namespace) -> str:
    """A row for each number of images and of GPUs."""
    rows = [run_figures(machine, images, args) for images in args.count for machine in machines]
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows])


def run_figures(machine: Machine, images: float, args: argparse.Namespace) -> dict[str, str]:
    """A run of all epochs: its time, what it costs, and the walls, of which the first one sets the time."""
    size, use = args.image_kb * 1e3, uses(machine, args)
    waiting = list(use.values())
    alone = slowest(machine, args)
    seconds = machine.epochs * images / (machine.processes * machine.rate)
    loading = {"processes": machine.node, "workers": machine.workers, "ahead": machine.ahead}
    memory = sum(formulas.node_memory(machine.sizes, images, size, **loading).values())
    use["memory of a machine"] = memory / (args.node_gib * GIB)
    walls = sorted((name for name in use if use[name] > 1), key=use.get, reverse=True)
    requests = formulas.requests_of_batch(machine.sizes.images, images, size, machine.gap) / machine.sizes.images
    looks = machine.epochs * images
    return {
        "images": f"{images:,.0f}",
        "GPUs": f"{machine.processes:,}",
        "in the store (TB)": f"{images * size / 1e12:,.1f}",
        "a month there ($)": f"{images * size / GB * args.gb_month_price:,.0f}",
        "requests ($)": f"{looks * requests * args.request_price:,.0f}",
        "leaving its region ($)": f"{looks * size / GB * args.gb_price:,.0f}",
        "memory of a machine (GiB)": f"{memory / GIB:,.0f}",
        "start (min)": f"{formulas.start_seconds(images, args.start_s, args.index_gb * GB) / 60:,.1f}",
        "days without walls": f"{alone * seconds / DAY:,.2f}",
        "days": f"{max(alone, *waiting) * seconds / DAY:,.2f}",
        "walls, the first one first": ", ".join(walls) or "none",
    }


if __name__ == "__main__":
    run_command(main)
