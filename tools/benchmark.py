#!/usr/bin/env python
"""Measure a finetuned detector in the runtimes that it can be deployed to: milliseconds, images per second and AP.

    python tools/benchmark.py --weights output/own/detection/model_final.pth --data folder:/data/photos \\
        --test coco:/data/more_photos:/data/more_boxes.json --output output/own/deployed

Writes detector.ts (TorchScript), detector.onnx and detector_int8.onnx, and scores each of them on the data set's boxes.
detector_int8.onnx computes in 8-bit integers, whose scales come from the images of --data: like those that the
detector will see, and not those that it is scored on. Each file that scores like the network gets a .json, which says
how an image has to be prepared. benchmark.md and benchmark.json have the table. Times are those of this machine's CPU,
of an image in memory in the network's size; KEY VALUE pairs change what concerns the test, such as INPUT.MIN_SIZE_TEST.
"""

import argparse
import json

from projects.Predict.command_line import add_network_options
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder, write_whole

FILES = ("torchscript", "onnx", "int8", "int8_pyramid")
CALIBRATED = 32  # images, spread over the data set: more of them change ranges little
MOST_LOST = 0.5  # AP


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add_network_options(parser)
    add(parser, "test", help="images and boxes to score on (default: the first DATASETS.TEST)")
    add(parser, "data", help="images for int8, such as folder:/data/photos")
    what = "int8_pyramid leaves the heads in float32 (default: torchscript, onnx and, with --data, int8)"
    add(parser, "format", nargs="+", choices=FILES, default=[], help=f"files, next to torch; {what}")
    add(parser, "cpus", help="threads of the CPU (default: as many as torch uses)")
    add(parser, "output", required=True, help="folder for files and table")
    add(parser, "opts")
    return parse(parser)


def main() -> None:
    args = parse_args()
    names = names_of(args)
    import torch

    from projects.Predict.benchmark import about, measure
    from projects.Predict.model_export import card_of, check_place_of_card, load_network, network_images, write_card
    from projects.Predict.predictions import finetuned_config, read_test_set
    from projects.Predict.runtimes import open_runtimes
    from revisit.data.sources.catalog import get_records
    from revisit.data.sources.file_names import expect_file_names
    from revisit.keys import DETECTORS

    cfg = finetuned_config(args)
    kind = cfg.MODEL.META_ARCHITECTURE
    expect(kind in DETECTORS, f"MODEL.META_ARCHITECTURE {kind}: expected a detector, one of {', '.join(DETECTORS)}")
    expect(bool(args.test or cfg.DATASETS.TEST), "no boxes to score on: give --test NAME, or set DATASETS.TEST")
    dataset = args.test or cfg.DATASETS.TEST[0]
    threads = args.cpus or torch.get_num_threads()
    records = read_test_set(cfg, dataset)
    shown = get_records(args.data) if args.data else []
    expect_file_names(shown, f"--data {args.data}")
    images = network_images(cfg, shown, CALIBRATED) if shown else []
    make_folder(args.output, "--output")
    network = load_network(cfg)
    runtimes = open_runtimes(network, ["torch", *names], args.output, images, threads)
    files = [runtime for runtime in runtimes if runtime.path]
    for runtime in files:
        check_place_of_card(runtime.path)
        card_of(runtime.path).unlink(missing_ok=True)  # of an earlier network
    rows = measure(cfg, dataset, records, runtimes, args.output)
    facts = about(dataset, len(records), threads)
    write_tables(args, rows, facts)
    if not rows[0].ap > 0:
        print(f"The network itself has no AP on {dataset}, so what a file loses cannot be seen: train it first")
    lost = {row.runtime: rows[0].ap - row.ap for row in rows}
    for runtime in files:
        if lost[runtime.name] <= MOST_LOST:
            print(f"{runtime.path}: {write_card(network, cfg, runtime.path)} says how to prepare an image")
    worse = [f"{name} loses {points:.1f} AP" for name, points in lost.items() if not points <= MOST_LOST]
    hint = "; int8_pyramid in --format leaves the heads in float32" if lost.get("int8", 0) > MOST_LOST else ""
    expect(not worse, f"{', '.join(worse)}: not to be deployed{hint}")


def names_of(args: argparse.Namespace) -> list[str]:
    """The files to write, in the order of FILES; int8 is made from onnx."""
    asked = {*args.format} or {"torchscript", "onnx", *(["int8"] if args.data else [])}
    has_int8 = any(name.startswith("int8") for name in asked)
    expect(bool(args.data) or not has_int8, "int8 needs --data NAME, images like those to come")
    return [name for name in FILES if name in asked or (name == "onnx" and has_int8)]


def write_tables(args: argparse.Namespace, rows: list, facts: dict) -> None:
    """Print the rows of projects.Predict.benchmark, and write them as JSON and as Markdown."""
    from projects.Predict.benchmark import table

    content = {**facts, "calibrated_on": args.data, "rows": [row._asdict() for row in rows]}
    write_whole(args.output / "benchmark.json", json.dumps(content, indent=2))
    title = ", ".join(f"{key} {value}" for key, value in facts.items())
    write_whole(args.output / "benchmark.md", f"{table(rows, 'github')}\n\n{title}\n")
    print(f"{table(rows, 'simple')}\n\n{title}")


if __name__ == "__main__":
    run_command(main)
