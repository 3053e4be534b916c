#!/usr/bin/env python
"""Write one HTML page about one or several runs: curves, pictures, evaluations, settings, environment.

    python tools/report.py output/toy/pretrain --output output/report.html
    python tools/report.py output/moco output/knn_moco --output output/report.html

A folder is that of a run or a study, or one with such folders right below it. The page needs no network.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from projects.RunReport.collect import collect
from revisit.engine.command import run_command
from revisit.errors import UserError
from revisit.files import written_whole

PATIENCE = 10  # seconds without a word


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUTPUT_DIR", help="what runs or studies wrote")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the page, such as report.html")
    return parser.parse_args()


def progress(items: Iterable, what: str) -> Iterable:
    """The items, with a bar on stderr once they take long."""
    return tqdm(items, unit=what, delay=PATIENCE)


def main() -> None:
    args = parse_args()
    if args.output.is_dir():
        raise UserError(f"--output {args.output} is a folder: expected a file to write, such as report.html")
    try:
        from projects.RunReport.page import render
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed: python -m pip install --constraint constraints.txt plotly jinja2"
        ) from error
    page = render(collect(progress(args.folders, "folder")), progress)
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(args.output) as temporary:
            temporary.write_text(page)
    except OSError as error:
        raise UserError(f"--output {args.output} cannot be written: {error.strerror}") from error
    print(f"written to {args.output}: {len(page.encode()) / 1e6:.1f} MB")


if __name__ == "__main__":
    run_command(main)
