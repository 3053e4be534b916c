#!/usr/bin/env python
"""Show how many images each class has, where every class has a folder: the class histogram of a long-tailed data set.

    python datasets/count_classes.py imagenet_118k_lt --output output/classes

Data sets are named as in DATASETS.TRAIN. DIR/classes.png has a line for each, its largest class first, and
DIR/classes.json the numbers by class.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from projects.Pictures.curves import saved_plot
from revisit.data.sources.catalog import get_records
from revisit.engine.command import run_command
from revisit.files import make_folder, output_path, written_whole


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", metavar="DATASET", help="names, such as imagenet_118k or folder:PATH")
    parser.add_argument("--output", metavar="DIR", type=output_path, required=True, help="folder for classes.png")
    args = parser.parse_args(argv)
    counts = {name: count_classes(name) for name in args.datasets}
    make_folder(args.output, "--output")
    short = {name: Path(name).stem for name in counts}
    called = short if len(set(short.values())) == len(short) else {name: name for name in counts}
    plot_classes({called[name]: of_classes for name, of_classes in counts.items()}, args.output / "classes.png")
    with written_whole(args.output / "classes.json") as temporary:
        temporary.write_text(json.dumps(counts, indent=2) + "\n")
    for name, of_classes in counts.items():
        sizes = of_classes.values()
        print(f"{name}: {sum(sizes):,} images of {len(sizes):,} classes, {min(sizes)} to {max(sizes)} a class")


def count_classes(name: str) -> dict[str, int]:
    """Images of a data set by the folder that they are in."""
    return dict(Counter(Path(record["file_name"]).parent.name for record in get_records(name)))


def plot_classes(counts: Mapping[str, Mapping[str, int]], path: Path) -> None:
    """Images a class, the largest class first, one line for each data set."""
    with saved_plot(path, size=(7, 4)) as (axis,):
        for name, wanted in counts.items():
            axis.stairs(sorted(wanted.values(), reverse=True), label=f"{name}: {sum(wanted.values()):,}")
        axis.set(yscale="log", xlabel="classes, the largest first", ylabel="images")


if __name__ == "__main__":
    run_command(main)
