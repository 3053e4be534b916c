#!/usr/bin/env python
"""Split a data set into training, validation and test so that images that belong together are on one side.

    python tools/split.py --data coco:/data/frames:/data/boxes.json --rule video val=0.1 test=0.2 --output output/split
    python tools/split.py --data folder:/data/photos --rule day groups=output/curated/groups.csv --output output/split

Writes train.txt, val.txt and test.txt, data sets list:output/split/train.txt; of boxes train.json and so on, too, with
what the file says of their images; groups.csv, what was kept together; and sizes.csv. Images that any of several rules
joins stay together, and so do windows of one file, of tiles:SIZE:NAME. Of each class every side gets its share. The
same seed gives the same split.
"""

import argparse

from revisit.command.options import DEFAULT, add, named, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect

RULES = """folder; video: equal names but for the number at the end; pattern=REGEX: what its groups find in the name
with its folders; day: of EXIF; patient: of DICOM; block=METRES: squares of a map; groups=FILE: file_name,group, as of
tools/curate.py; val=0.1 test=0.1: shares of the images"""


def nothing(text: str) -> str:
    """A type of argparse."""
    if text:
        raise argparse.ArgumentTypeError(f"this rule takes no value, got {text!r}")
    return text


def something(text: str) -> str:
    """A type of argparse."""
    if not text:
        raise argparse.ArgumentTypeError("this rule takes a value: expected NAME=VALUE")
    return text


def metres(text: str) -> float:
    """A type of argparse."""
    if not 1 <= float(text) <= 1e6:
        raise argparse.ArgumentTypeError(f"expected 1 to 1,000,000 m, got {text}")
    return float(text)


def share(text: str) -> float:
    """A type of argparse."""
    if not 0 <= float(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a share of at least 0, below 1, got {text}")
    return float(text)


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "data", required=True)
    add(parser, "output", required=True)
    of_names = dict.fromkeys(("folder", "video", "day", "patient"), nothing)
    of_values = {"pattern": something, "groups": something, "block": metres, "val": share, "test": share}
    add(parser, "rule", type=named({**of_names, **of_values}), metavar="RULE", help=RULES)
    add(parser, "seed", help=f"of the draw {DEFAULT}")
    return parse(parser)


def main() -> None:
    args = parse_args()
    shares = {"val": 0.1, "test": 0.1}
    shares |= {name: value for name, value in args.rule if name in shares}
    rest = 1 - sum(shares.values())
    expect(rest > 0, f"--rule val={shares['val']} test={shares['test']}: expected less than 1 together, to train on")
    rules = [pair for pair in args.rule if pair[0] not in shares]
    from projects.Labels.splitting import write_split

    for line in write_split(args.data, args.output, rules, {"train": rest, **shares}, args.seed):
        print(line, flush=True)


if __name__ == "__main__":
    run_command(main)
