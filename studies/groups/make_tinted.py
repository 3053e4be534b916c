#!/usr/bin/env python
"""Light images of classes by coloured lamps, which agree with the class or do not: a nuisance to unlearn.

    python studies/groups/make_tinted.py --images DIR --output OUT --agree 0.9

copies a folder of class folders. There are as many lamps as classes. An image has the lamp of its class in that share,
else any of the others; OUT/groups.csv says which, for NEIGHBORS.GROUPS. The same seed gives the same lamps.
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command, whole
from revisit.errors import translated
from revisit.files import output_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--images", required=True, type=Path, metavar="DIR", help="class folders")
    add("--output", required=True, type=output_path, metavar="OUT", help="a new folder")
    add(
        "--agree",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="with the lamp of the class (default: %(default)s)",
    )
    add("--seed", type=whole, default=0, help="another seed, other lamps (default: %(default)s)")
    args = parser.parse_args()
    from studies.groups.tinting import make_tinted

    with translated(f"lighting --images {args.images}"):
        make_tinted(**vars(args))
    print(f"{args.output} has the images, and groups.csv")


if __name__ == "__main__":
    run_command(main)
