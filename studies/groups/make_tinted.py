#!/usr/bin/env python
"""Light images of classes by coloured lamps, which agree with the class or do not: a nuisance to unlearn.

    python studies/groups/make_tinted.py --data DIR --output OUT --agree 0.9

copies a folder of class folders. There are as many lamps as classes. An image has the lamp of its class in that share,
else any of the others; OUT/groups.csv says which, for NEIGHBORS.GROUPS. The same seed gives the same lamps.
"""

from pathlib import Path

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import translated


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add(parser, "data", required=True, type=Path, metavar="DIR", help="class folders")
    add(parser, "output", required=True, metavar="OUT", help="a new folder")
    parser.add_argument(
        "--agree",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="with the lamp of the class (default: %(default)s)",
    )
    add(parser, "seed", help=f"another seed, other lamps {DEFAULT}")
    args = parse(parser)
    from studies.groups.tinting import make_tinted

    with translated(f"lighting --data {args.data}"):
        make_tinted(args.data, args.output, args.agree, args.seed)
    print(f"{args.output} has the images, and groups.csv")


if __name__ == "__main__":
    run_command(main)
