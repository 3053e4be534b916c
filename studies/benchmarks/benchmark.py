#!/usr/bin/env python
"""Measure one part of the project against a reference in the same run: medians, spread and their ratio.

    python studies/benchmarks/benchmark.py input
    python studies/benchmarks/benchmark.py input --height 3000 --images 16
    python studies/benchmarks/benchmark.py channels --channels 13
    python studies/benchmarks/benchmark.py --repeats 9 head --batch 64
    python studies/benchmarks/benchmark.py step SOLVER.AMP.ENABLED False MODEL.CHANNELS_LAST False
    python studies/benchmarks/benchmark.py --repeats 3 end2end --files folder:/data/photos DATALOADER.NUM_WORKERS 16
    python studies/benchmarks/benchmark.py --json shards.json shards --files toy_scenes_train --shards /data/toy_shards

Compare ratios, each of one run: timings of separate runs differ with the load of the machine.
"""

import argparse
import inspect
import json

from revisit.command.options import DEFAULT, add, parse
from revisit.engine.command import natural, run_command
from revisit.engine.setup import make_config
from revisit.files import make_folder, output_path
from studies.benchmarks.input_pipeline import measure_channels, measure_input, measure_shards
from studies.benchmarks.training_speed import measure_end_to_end, measure_head, measure_step

PARTS = {
    "shards": (measure_shards, "images read and decoded from shards, against loose files"),
    "input": (measure_input, "from image files to batches of views, against torchvision and PIL"),
    "channels": (measure_channels, "from TIFFs of n channels to batches of views, against RGB PNGs"),
    "head": (measure_head, "losses and their gradient, against all logits in memory"),
    "step": (measure_step, "training steps on views in memory, against the textbook's"),
    "end2end": (measure_end_to_end, "training from files, against a plain pipeline and the textbook's step"),
}
OPTIONS = {
    "files": {"metavar": "NAME", "help": "a data set of loose files; input and end2end make up photographs without it"},
    "height": {"type": natural, "metavar": "PX", "help": f"of the made-up photographs, which are 4 : 3 {DEFAULT}"},
    "channels": {"type": natural, "metavar": "N", "help": f"of the made-up TIFFs {DEFAULT}"},
    "shards": {"metavar": "DIR", "help": "the same images, by tools/make_shards.py"},
    "images": {"type": natural, "metavar": "N", "help": f"per repeat; for end2end how many to make up {DEFAULT}"},
    "steps": {"type": natural, "metavar": "N", "help": f"per repeat {DEFAULT}"},
    "batch": {"type": natural, "metavar": "B", "help": f"images per step {DEFAULT}"},
    "feature_dim": {"type": natural, "metavar": "CG", "help": f"features per image, before the head {DEFAULT}"},
}


def main() -> None:
    """Measure, print, and write the figures where they are asked for."""
    options = vars(parse(make_parser()))
    measure, output, opts = (options.pop(name) for name in ("measure", "json", "opts"))
    if "config_file" in options:
        options["cfg"] = make_config(options.pop("config_file"), opts, for_here=False)
    if output:
        make_folder(output.parent, "the folder of --json")
    result = measure(**options)
    for name, value in result.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    if output:
        output.write_text(json.dumps(result, indent=2) + "\n")


def make_parser() -> argparse.ArgumentParser:
    """A command for each part; its options and their defaults are those of the function that measures it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add(parser, "opts")
    parser.add_argument("--repeats", type=natural, default=7, metavar="N", help=f"before PART {DEFAULT}")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="before PART: write the figures there too")
    commands = parser.add_subparsers(required=True, metavar="PART")
    for part, (measure, text) in PARTS.items():
        command = commands.add_parser(part, help=text)
        command.set_defaults(measure=measure)
        parameters = inspect.signature(measure).parameters
        for name in filter(parameters.get, OPTIONS):
            given = parameters[name].default
            fate = {"required": True} if given is inspect.Parameter.empty else {"default": given}
            command.add_argument(f"--{name.replace('_', '-')}", **OPTIONS[name], **fate)
        if "cfg" in parameters:
            recipe = "configs/toy/pretrain.yaml" if part == "step" else "configs/pretrain/knn_moco.yaml"
            add(command, "config-file", default=recipe, help=f"the recipe {DEFAULT}")
    return parser


if __name__ == "__main__":
    run_command(main)
