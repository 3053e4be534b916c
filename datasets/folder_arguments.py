"""The options that the scripts of this folder share."""

import argparse

from revisit.data.sources.catalog import datasets_root
from revisit.engine.command import natural, whole
from revisit.files import output_path

LISTS = ("subsets", "for the lists, where the names in DATASETS.TRAIN look")


def folder_parser(description: str, **folders: tuple[str, str]) -> argparse.ArgumentParser:
    """A parser with an option for each of ``folders``: its default, seen from all data sets' folder, and its help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (folder, what) in folders.items():
        what += f" (default: $DETECTRON2_DATASETS/{folder})"
        place = str(datasets_root() / folder)
        parser.add_argument(f"--{name}", type=output_path, default=place, metavar="DIR", help=what)
    return parser


def seeded_parser(description: str, **folders: tuple[str, str]) -> argparse.ArgumentParser:
    """That, with --seed and --count of lists of images."""
    parser, default = folder_parser(description, **folders, output=LISTS), "(default: %(default)s)"
    parser.add_argument("--seed", type=whole, default=0, help=f"another seed, other images {default}")
    parser.add_argument("--count", type=natural, default=118000, help=f"images of the smallest list {default}")
    parser.add_argument("--size", dest="count", type=natural, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser
