#!/usr/bin/env python
"""What a pretraining run needs on 2, 8 or 1,024 GPUs, and what runs out first.

    python projects/Benchmarks/scaling.py --config-file configs/pretrain/knn_moco.yaml
    python projects/Benchmarks/scaling.py --machine 64 H200 --batch-per-gpu 64 --images 1e8 SOLVER.EPOCHS 100

Memory, parameters and floating-point operations are counted on a step that runs without numbers. What no config
knows is assumed, and can be given: the share of a GPU's peak rate that a step reaches, how many images a CPU core
prepares, the bytes of an image. projects/Benchmarks/README.md has the formulas.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from projects.common.tables import markdown_table
from projects.Planning.run_cost import GIB
from projects.Planning.step_cost import step_cost
from revisit.engine.command import natural, parse_with_pairs, run_command
from revisit.engine.dry_run import build_meta_model
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.modeling.meta_arch.moco import MoCo
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

RECORD_BYTES = 500  # of one image of shards in the list of a data set while it is loaded; a fifth of it afterwards


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
DEFAULT_SIZES = (118287, 1.28e6, 1e8, 1e9)
DEFAULT_MACHINES = (("2", "V100"), ("8", "H200"), ("1024", "H200"))
USE = "% in use at that speed"
# How a figure is printed, by its unit.
FORMATS = {"per GPU": "d", "ms": ".2f", "GiB per GPU": ".2f", "per second": ",.0f", USE: ",.0f"}
Figures = dict[str, dict[str, float]]  # by unit and name


def main() -> None:
    """Two tables: what a step needs on each machine, what grows with the data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, names = parser.add_argument, ", ".join(GPUS)
    add("--config-file", default="configs/pretrain/knn_moco.yaml", metavar="FILE", help="(default: %(default)s)")
    add("--machine", nargs=2, action="append", metavar=("N", "GPU"), help=f"N GPUs of one kind: {names}; repeatable")
    add("--batch-per-gpu", type=natural, metavar="N", help="images (default: 128 on 2 GPUs, 32 on 64 or more, else 64)")
    add("--images", type=amount, action="append", metavar="N", help="in the data set; repeatable")
    add("--efficiency", type=amount, default=0.4, metavar="X", help="share of the peak rate (default: %(default)s)")
    add("--bandwidth-share", type=amount, default=0.8, metavar="X", help="of the memory's (default: %(default)s)")
    add("--core-rate", type=amount, default=250, metavar="N", help="images per second and core (default: %(default)s)")
    add("--image-bytes", type=amount, default=160e3, metavar="N", help="(default: %(default)g, COCO's)")
    add("--storage", type=amount, default=2.5e8, metavar="N", help="bytes per second and GPU (default: %(default)g)")
    add("opts", nargs="*", metavar="KEY VALUE", help="override the config, in pairs")
    args = parse_with_pairs(parser)
    machines: dict[str, Figures] = {}
    for number, gpu in args.machine or DEFAULT_MACHINES:
        is_known = number.isdecimal() and int(number) > 0 and gpu in GPUS
        expect(is_known, f"--machine {number} {gpu}: expected a number and one of {names}")
        count = int(number)
        batch = args.batch_per_gpu or (128 if count == 2 else 32 if count >= 64 else 64)
        amp = ["SOLVER.AMP.ENABLED", str(gpu != "V100")]  # what its peak rate is of
        cfg = make_recipe(args.config_file, [*amp, *args.opts], count, batch)
        machines[f"{count:,} {gpu}"] = needs(cfg, count, GPUS[gpu], args)
    print(f"{args.config_file}, {cfg.SOLVER.EPOCHS} epochs\n")
    sizes = args.images or DEFAULT_SIZES
    print(machine_table(machines), size_table(sizes, machines, cfg.SOLVER.EPOCHS, args.image_bytes), sep="\n\n")


def amount(text: str) -> float:
    """A number above 0, as a type of argparse, which takes a ValueError for a refusal."""
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def make_recipe(config_file: str, opts: list[str], count: int, batch: int) -> CfgNode:
    """The config with ``batch`` images on each of ``count`` GPUs."""
    opts = [*opts, "SOLVER.IMS_PER_BATCH", str(count * batch)]
    cfg = make_config(config_file, opts, num_processes=count, for_here=False)
    has_queue = issubclass(method_of(cfg) or object, MoCo)
    trains = f"{config_file} trains {cfg.MODEL.META_ARCHITECTURE}"
    expect(has_queue, f"{trains}: expected a pretraining recipe with a queue")
    return cfg


def needs(cfg: CfgNode, count: int, gpu: Gpu, assumed: argparse.Namespace) -> Figures:
    """What a step needs on ``count`` GPUs, by the formulas of projects/Benchmarks/README.md; ``assumed`` are the
    options ``efficiency``, ``bandwidth_share``, ``core_rate``, ``image_bytes`` and ``storage``."""
    model = build_meta_model(cfg)
    batch = cfg.SOLVER.IMS_PER_BATCH // count
    others = (count - 1) / count
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    cost = step_cost(cfg, count)
    seconds = {
        "arithmetic of a step": (cost.forward_flops + cost.backward_flops) / (assumed.efficiency * gpu.flops),
        "memory traffic of a step": cost.traffic / (assumed.bandwidth_share * gpu.bandwidth),
        "gradients": 2 * others * 4 * trained / gpu.link,
        "shuffled crops": others * batch * 3 * cfg.VIEWS.LARGE_SIZE**2 / gpu.link,
        "keys": (count - 1) * batch * 4 * sum(model.queue_widths().values()) / gpu.link,
    }
    arithmetic, traffic, *sent = seconds.values()
    compute = max(arithmetic, traffic)
    memory = {kind: size / GIB for kind, size in cost.memory.items()}
    memory["total"] = sum(memory.values())
    use = {
        "CPU cores": batch / compute / assumed.core_rate / gpu.cores,
        "storage": batch / compute * assumed.image_bytes / assumed.storage,
        "network": sum(sent) / compute,
        "GPU memory": memory["total"] / gpu.memory,
    }
    return {
        "per GPU": {"images": batch},
        "ms": {name: 1000 * value for name, value in seconds.items()},
        "GiB per GPU": memory,
        "per second": {"images, by arithmetic and traffic": count * batch / compute},
        USE: {name: 100 * share for name, share in use.items()},
    }


def machine_table(machines: dict[str, Figures]) -> str:
    """What a step needs, a column for each machine."""
    figures = list(machines.values())
    rows = [
        [f"{name} ({unit})", *(f"{needed[unit][name]:{FORMATS[unit]}}" for needed in figures)]
        for unit, names in figures[0].items()
        for name in names
    ]
    uses = [needed[USE] for needed in figures]
    slower = ["memory traffic" if ms[1] > ms[0] else "arithmetic" for ms in (list(n["ms"].values()) for n in figures)]
    scarce = [max(use, key=use.get) if max(use.values()) > 100 else own for use, own in zip(uses, slower, strict=True)]
    return markdown_table(["GPUs", *machines], [*rows, ["runs out first", *scarce]])


def size_table(sizes: Sequence[float], machines: dict[str, Figures], epochs: int, image_bytes: float) -> str:
    """What grows with the data set alone; days at the speed that the scarcest resource allows."""
    rows = []
    for size in sizes:
        values = [size * image_bytes / 1e12, size * RECORD_BYTES / GIB]
        for needed in machines.values():
            slowed = max(100.0, *(share for name, share in needed[USE].items() if name != "GPU memory")) / 100
            values.append(epochs * size / needed["per second"]["images, by arithmetic and traffic"] * slowed / 86400)
        rows.append([f"{size:,.0f}", *(f"{value:,.2f}" for value in values)])
    days = (f"days on {name}" for name in machines)
    return markdown_table(["images", "on disk (TB)", "list of a process, at most (GiB)", *days], rows)


if __name__ == "__main__":
    run_command(main)
