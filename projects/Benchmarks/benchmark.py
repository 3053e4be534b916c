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
from projects.Benchmarks.input_pipeline import measure_input
from projects.Benchmarks.loss_head import measure_head
from projects.Benchmarks.shard_reading import measure_shards
from projects.Benchmarks.step_speed import measure_step
from revisit.engine.command import natural, run_command
from revisit.engine.setup import make_config

from detectron2.config import CfgNode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="PART")
    shards = commands.add_parser("shards", help="images read and decoded from shards, against loose files")
    shards.add_argument("--files", required=True, metavar="NAME", help="a data set of loose files, the reference")
    shards.add_argument("--shards", required=True, metavar="DIR", help="the same images, by tools/make_shards.py")
    shards.add_argument("--images", type=natural, default=2000, metavar="N", help="a repeat (default: %(default)s)")
    shards.set_defaults(run=run_shards)
    views = commands.add_parser("input", help="from image files to batches of views, against torchvision and PIL")
    _add_config(views)
    _add_files(views)
    views.add_argument("--images", type=natural, default=256, metavar="N", help="a repeat (default: %(default)s)")
    views.set_defaults(run=run_input)
    head = commands.add_parser("head", help="losses and their gradient, against all logits in memory")
    _add_config(head)
    head.add_argument("--batch", type=natural, default=64, metavar="B", help="images (default: %(default)s)")
    head.add_argument("--feature-dim", type=natural, default=2048, metavar="CG", help="(default: %(default)s)")
    head.set_defaults(run=run_head)
    step = commands.add_parser("step", help="training steps on views in memory, against the textbook's")
    _add_config(step, "configs/toy/pretrain.yaml")
    step.add_argument("--steps", type=natural, default=10, metavar="N", help="a repeat (default: %(default)s)")
    step.set_defaults(run=run_step)
    whole = commands.add_parser("end2end", help="training from files, against a plain pipeline and the textbook's step")
    _add_config(whole)
    _add_files(whole)
    whole.add_argument("--images", type=natural, default=1024, metavar="N", help="of them (default: %(default)s)")
    whole.add_argument("--steps", type=natural, default=60, metavar="N", help="a repeat (default: %(default)s)")
    whole.set_defaults(run=run_end_to_end)
    parser.add_argument("--repeats", type=natural, default=7, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    result = args.run(args)
    for name, value in result.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def _add_config(command: argparse.ArgumentParser, default: str = "configs/pretrain/knn_moco.yaml") -> None:
    command.add_argument("--config-file", default=default, help="(default: %(default)s)")
    command.add_argument("opts", nargs="*", metavar="KEY VALUE", help="keys of the config to change")


def _add_files(command: argparse.ArgumentParser) -> None:
    command.add_argument("--files", metavar="NAME", help="a data set (default: made-up photographs of 640 x 480)")


def run_shards(args: argparse.Namespace) -> dict[str, object]:
    return measure_shards(args.files, args.shards, images=args.images, repeats=args.repeats)


def run_input(args: argparse.Namespace) -> dict[str, object]:
    return measure_input(_config(args), files=args.files, images=args.images, repeats=args.repeats)


def run_head(args: argparse.Namespace) -> dict[str, object]:
    return measure_head(_config(args), batch=args.batch, feature_dim=args.feature_dim, repeats=args.repeats)


def run_step(args: argparse.Namespace) -> dict[str, object]:
    return measure_step(_config(args), steps=args.steps, repeats=args.repeats)


def run_end_to_end(args: argparse.Namespace) -> dict[str, object]:
    sizes = {"images": args.images, "steps": args.steps, "repeats": args.repeats}
    return measure_end_to_end(_config(args), files=args.files, **sizes)


def _config(args: argparse.Namespace) -> CfgNode:
    return make_config(args.config_file, args.opts, for_here=False)


if __name__ == "__main__":
    run_command(main)
