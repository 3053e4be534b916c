#!/usr/bin/env python
"""Write one HTML page about one or several runs: curves, pictures, evaluations, settings, environment.

    python tools/report.py output/toy/pretrain --output output/report.html
    python tools/report.py output/moco output/knn_moco --output output/report.html

A folder is that of a run or a study, or one with such folders right below it. The page needs no network.
"""

from pathlib import Path

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import translated
from revisit.files import make_place, written_whole


def main() -> None:
    """Collect, draw, write."""
    parser = parser_of(__doc__, __file__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUTPUT_DIR", help="what runs or studies wrote")
    add(parser, "output", required=True, metavar="FILE", help="the page, such as report.html")
    args = parse(parser)
    make_place(args.output, "--output", ".html", ".htm")
    from projects.Reports.collect import collect
    from projects.Reports.page import render

    page = render(*collect(args.folders))
    with translated(f"writing --output {args.output}"), written_whole(args.output) as temporary:
        temporary.write_text(page, errors="backslashreplace")  # names of files need not be UTF-8
    print(f"written to {args.output}: {len(page) / 1e6:.1f} MB")


if __name__ == "__main__":
    run_command(main)
