#!/usr/bin/env python
"""How many of the boxes that are most like a box are of its class: what features know of objects.

    python tools/embed.py --weights output/objects.pth --features pyramid --boxes coco:/data/photos:/data/boxes.json \\
        --output output/rows
    python studies/groups/purity_study.py --embeddings output/rows

Prints the percent of each box's nearest ones in other images that have its class: the mean over all boxes, and the
mean over classes, in which each counts alike.
"""

import argparse
from pathlib import Path

import numpy as np

from projects.Rows.row_table import RowTable, load_table
from revisit.engine.command import natural, run_command
from revisit.errors import expect
from revisit.markdown import markdown_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--embeddings", required=True, nargs="+", type=Path, metavar="DIR", help="output of tools/embed.py --boxes")
    add("--nearest", type=natural, default=10, metavar="K", help="of each box (default: %(default)s)")
    args = parser.parse_args()
    lines = []
    for folder in args.embeddings:
        table = load_table(folder)
        expect("" not in table.classes, f"{folder}: a row has no class; expected a table of boxes with labels")
        others = len(table.rows) - np.unique(table.files, return_counts=True)[1].max()
        few = f"{folder}: boxes of one image have {others} of other images to compare with"
        expect(others >= args.nearest, f"{few}; expected at least the {args.nearest} of --nearest")
        of_box = purity(table, args.nearest)
        of_classes = [of_box[table.classes == name].mean() for name in np.unique(table.classes)]
        lines.append([str(folder), str(len(of_box)), f"{of_box.mean():.1f}", f"{np.mean(of_classes):.1f}"])
    print(markdown_table(("embeddings", "boxes", "purity (%)", "mean over classes (%)"), lines))


def purity(table: RowTable, count: int) -> np.ndarray:
    """(N,) percent of the ``count`` rows of other images nearest to each that have its class."""
    from revisit.evaluation.nearest import nearest_others

    images = np.unique(table.files, return_inverse=True)[1]
    nearest = nearest_others(table.rows, count, images).places.numpy()
    return 100 * (table.classes[nearest] == table.classes[:, None]).mean(axis=1)


if __name__ == "__main__":
    run_command(main)
