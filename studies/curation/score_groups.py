#!/usr/bin/env python
"""Score groups that tools/curate.py has found against the true ones, such as those of make_copies.py.

    python studies/curation/score_groups.py --groups output/curated/groups.csv --truth output/copies/truth.csv

Precision is the share of pairs in one group that belong together, recall the share of pairs that belong together and
are in one group.
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command
from revisit.errors import expect, translated
from revisit.markdown import CsvDicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--groups", required=True, type=Path, metavar="FILE", help="a CSV file with the columns file_name and group")
    add("--truth", required=True, nargs="+", type=Path, metavar="FILE", help="others, of the same images")
    args = parser.parse_args()
    groups, truth = read_groups(args.groups), {}
    for path in args.truth:
        truth |= {name: f"{path} {group}" for name, group in read_groups(path).items()}
    expect(groups.keys() == truth.keys(), f"{args.groups} and --truth are of other images: expected the same ones")
    names = sorted(groups)
    precision, recall = pair_scores([groups[name] for name in names], [truth[name] for name in names])
    print(f"{len(set(groups.values()))} groups, truly {len(set(truth.values()))}", end=": ")
    print(f"precision {precision:.4f}, recall {recall:.4f}")


def read_groups(path: Path) -> dict[Path, str]:
    """The group of each image; names are from the file's folder. Raises UserError for another file."""
    with translated(f"reading {path}", content=True), open(path, newline="", errors="surrogateescape") as file:
        return {path.parent.absolute() / line["file_name"]: line["group"] for line in CsvDicts(file)}


def pair_scores(groups: list[str], truth: list[str]) -> tuple[float, float]:
    """Precision and recall, 0 to 1, of the pairs of N images that are in one group; 1 where there are none."""
    import numpy as np

    _, ours = np.unique(groups, return_inverse=True)
    _, true = np.unique(truth, return_inverse=True)
    _, both = np.unique(np.stack([ours, true]), axis=1, return_counts=True)
    right, together, belonging = map(_pairs, (both, np.bincount(ours), np.bincount(true)))
    return right / together if together else 1.0, right / belonging if belonging else 1.0


def _pairs(sizes) -> int:
    """How many pairs there are in groups of these sizes (G,)."""
    return int((sizes * (sizes - 1) // 2).sum())


if __name__ == "__main__":
    run_command(main)
