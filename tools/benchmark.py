#!/usr/bin/env python
"""Measure one part of the project against a reference in the same run: medians, spread and their ratio.

    python tools/benchmark.py shards --files toy_scenes_train --shards /data/toy_shards --json shards.json

Timings of two runs do not compare; the ratio of one run does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from revisit.data.catalog import get_records
from revisit.data.mapper import read_record
from revisit.engine.command import natural, run_command
from revisit.errors import UserError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="PART")
    shards = commands.add_parser("shards", help="images read and decoded from shards, against loose files")
    shards.add_argument("--files", required=True, metavar="NAME", help="a data set of loose files, the reference")
    shards.add_argument("--shards", required=True, metavar="DIR", help="the same images, by tools/make_shards.py")
    shards.add_argument("--images", type=natural, default=2000, metavar="N", help="a repeat (default: %(default)s)")
    shards.set_defaults(run=measure_shards)
    parser.add_argument("--repeats", type=natural, default=7, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    result = args.run(args)
    for name, value in result.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def measure_shards(args: argparse.Namespace) -> dict[str, object]:
    """Images a second of one process; ratio above 1 says that shards are faster."""
    files, shards = get_records(args.files), get_records(f"shards:{args.shards}")
    if len(files) != len(shards):
        raise UserError(f"{args.files} has {len(files)} images, {args.shards} {len(shards)}: expected the same images")
    order = np.random.default_rng(0).permutation(len(files))[: args.images].tolist()

    def read(records: list[dict]) -> Callable[[], None]:
        return lambda: [read_record(records[index]) for index in order]

    seconds = measure({"files": read(files), "shards": read(shards)}, args.repeats)
    return compare(seconds, "shards", "files", len(order))


def measure(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each repeat of each part, after one that does not count; parts take turns, so that a machine that is
    busy now and then is so for all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(repeats + 1):
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def compare(seconds: dict[str, list[float]], ours: str, reference: str, images: int) -> dict[str, object]:
    """Images a second of both, median and range over repeats, and the ratio of the medians."""
    rates = {name: sorted(images / s for s in values) for name, values in seconds.items()}
    result: dict[str, object] = {"ratio": statistics.median(rates[ours]) / statistics.median(rates[reference])}
    for name in (ours, reference):
        result[f"{name}_images_per_second"] = statistics.median(rates[name])
        result[f"{name}_range"] = [round(rates[name][0], 1), round(rates[name][-1], 1)]
    return result


if __name__ == "__main__":
    run_command(main)
