#!/usr/bin/env python
"""Measure one part of the project against a reference in the same run: medians, spread and their ratio.

    python projects/Benchmarks/benchmark.py input
    python projects/Benchmarks/benchmark.py --repeats 9 head --batch 64
    python projects/Benchmarks/benchmark.py step SOLVER.AMP.ENABLED True MODEL.CHANNELS_LAST True
    python projects/Benchmarks/benchmark.py --repeats 3 end2end --files folder:/data/photos DATALOADER.NUM_WORKERS 16
    python projects/Benchmarks/benchmark.py shards --files toy_scenes_train --shards /data/toy_shards --json shards.json

Timings of two runs do not compare; the ratio of one run does.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import projects.ToyScenes  # noqa: F401  (knows the names of its data sets)
from projects.Benchmarks.end_to_end import measure_end_to_end
from projects.Benchmarks.input_pipeline import measure_input, measure_shards
from projects.Benchmarks.loss_head import measure_head
from projects.Benchmarks.step_speed import measure_step
from revisit.engine.command import natural, run_command
from revisit.engine.setup import make_config

RECIPE, TOY_RECIPE = "configs/pretrain/knn_moco.yaml", "configs/toy/pretrain.yaml"
DEFAULT = "(default: %(default)s)"


def main() -> None:
    """Measure, print, and write the figures where they are asked for."""
    options = vars(make_parser().parse_args())
    measure, output = options.pop("measure"), options.pop("json")
    if "config_file" in options:
        options["cfg"] = make_config(options.pop("config_file"), options.pop("opts"), for_here=False)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
    result = measure(**options)
    for name, value in result.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    if output:
        output.write_text(json.dumps(result, indent=2) + "\n")


def make_parser() -> argparse.ArgumentParser:
    """A command for each part; its options are the arguments of the function that measures it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=natural, default=7, metavar="N", help=DEFAULT)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    commands = parser.add_subparsers(required=True, metavar="PART")

    shards = commands.add_parser("shards", help="images read and decoded from shards, against loose files")
    shards.set_defaults(measure=measure_shards)
    shards.add_argument("--files", required=True, metavar="NAME", help="a data set of loose files, the reference")
    shards.add_argument("--shards", required=True, metavar="DIR", help="the same images, by tools/make_shards.py")

    views = commands.add_parser("input", help="from image files to batches of views, against torchvision and PIL")
    views.set_defaults(measure=measure_input)

    head = commands.add_parser("head", help="losses and their gradient, against all logits in memory")
    head.set_defaults(measure=measure_head)
    head.add_argument("--batch", type=natural, default=64, metavar="B", help=f"images {DEFAULT}")
    head.add_argument("--feature-dim", type=natural, default=2048, metavar="CG", help=DEFAULT)

    step = commands.add_parser("step", help="training steps on views in memory, against the textbook's")
    step.set_defaults(measure=measure_step)

    whole = commands.add_parser("end2end", help="training from files, against a plain pipeline and the textbook's step")
    whole.set_defaults(measure=measure_end_to_end)

    for command in (views, whole):
        command.add_argument("--files", metavar="NAME", help="a data set (default: made-up photographs of 640 x 480)")
    for command, images in ((shards, 2000), (views, 256), (whole, 1024)):
        help_text = f"photographs to make up {DEFAULT}" if command is whole else f"per repeat {DEFAULT}"
        command.add_argument("--images", type=natural, default=images, metavar="N", help=help_text)
    for command, steps in ((step, 10), (whole, 60)):
        command.add_argument("--steps", type=natural, default=steps, metavar="N", help=f"per repeat {DEFAULT}")
    for command in (views, head, step, whole):
        command.add_argument("--config-file", default=TOY_RECIPE if command is step else RECIPE, help=DEFAULT)
        command.add_argument("opts", nargs="*", metavar="KEY VALUE", help="keys of the config to change")
    return parser


if __name__ == "__main__":
    run_command(main)
