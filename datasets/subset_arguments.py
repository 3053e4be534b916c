"""The command line that the scripts writing lists of images share."""

import argparse
from pathlib import Path

from revisit.data.catalog import datasets_root
from revisit.engine.command import natural


def subset_parser(
    description: str, source: str, folder: str, contents: str, *, seeded: bool
) -> argparse.ArgumentParser:
    """A parser with --SOURCE (``folder`` of the data sets, which has ``contents``), --output and, if ``seeded``, --seed
    and --size."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        f"--{source}",
        type=Path,
        default=datasets_root() / folder,
        metavar="DIR",
        help=f"with {contents} (default: $DETECTRON2_DATASETS/{folder})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=datasets_root() / "subsets",
        metavar="DIR",
        help="for the lists (default: $DETECTRON2_DATASETS/subsets, where the names in DATASETS.TRAIN look)",
    )
    if seeded:
        parser.add_argument("--seed", type=int, default=0, help="another seed, other images (default: %(default)s)")
        parser.add_argument(
            "--size", type=natural, default=118000, help="images of the smallest list (default: %(default)s)"
        )
    return parser
