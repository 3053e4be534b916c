#!/usr/bin/env python
"""Spoil labels in known ways, then count how many of them tools/check_labels.py has put first.

    python studies/label_check/spoil_labels.py --data coco:/data/photos:/data/boxes.json --output output/spoiled
    python studies/label_check/spoil_labels.py --suspects output/suspects --output output/spoiled

Between the two, check the labels of coco:/data/photos:output/spoiled/data_set.json. A share of the boxes gets another
class, is left out, moves next to its object or changes its size or shape; spoiled.json says which ones.

--accepted FILE also writes, for tools/check_labels.py --table, what a person who knows the right labels accepts of the
first suspects of each kind, as many as were spoiled so.
"""

import argparse
from pathlib import Path

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import natural, run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path, write_whole


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    what = parser.add_mutually_exclusive_group(required=True)
    add(what, "data", help="a data set with boxes of several classes, to spoil")
    what.add_argument("--suspects", type=Path, metavar="DIR", help="output of tools/check_labels.py, to score")
    add(parser, "output", required=True, help="of the spoiled labels")
    parser.add_argument(
        "--accepted", type=output_path, metavar="FILE", help="with --suspects, for check_labels.py --table"
    )
    spoiled = f"of the boxes, spoiled in each way {DEFAULT}"
    parser.add_argument("--share", type=float, default=0.05, metavar="S", help=spoiled)
    add(parser, "seed", type=natural, default=1)
    return parse(parser)


def main() -> None:
    args = parse_args()
    expect(not args.accepted or args.suspects, "--accepted needs the --suspects that it is of")
    expect(0 < args.share <= 0.25, f"--share {args.share:g}: expected up to 0.25, as there are four ways")
    from projects.Labels.labels import read_labels_of
    from projects.Labels.suspects import COLUMNS, read_suspects
    from revisit.markdown import csv_table, markdown_table
    from studies.label_check.spoiling import KINDS, accepted, precision, read_spoiled, spoil

    if args.data:
        make_folder(args.output, "--output")
        labels = read_labels_of(args.data)
        swappable = labels.of == "box" and len(labels.class_names) > 1
        expect(swappable, f"--data {args.data}: expected boxes of two classes or more")
        print(f"{len(spoil(labels, args.share, args.seed, args.output))} of {len(labels.classes)} labels are spoiled")
        return
    spoiled = read_spoiled(args.output)
    _, listed = read_suspects(args.suspects)
    suspects = [suspect._asdict() for suspect in listed.values()]
    rows = []
    for kind in KINDS:
        row = precision(suspects, spoiled, kind)
        rows.append([kind, str(row["spoiled"]), str(row["listed"]), f"{row['this way']:.3f}", f"{row['any way']:.3f}"])
    if args.accepted:
        write_whole(args.accepted, csv_table(COLUMNS, accepted(listed, spoiled)))
    print(markdown_table(["kind", "spoiled", "looked at", "spoiled so", "spoiled in any way"], rows))


if __name__ == "__main__":
    run_command(main)
