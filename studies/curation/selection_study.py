#!/usr/bin/env python
"""What a classifier of frozen rows knows from a few labels, by the way in which the labelled images were chosen.

    python studies/curation/selection_study.py --embeddings output/rows --test output/test_rows --labels 31

Both tables are of tools/embed.py and of images with classes (--data class_folders:DIR). Prints the accuracy of the
nearest labelled row and of logistic regression, mean and standard deviation over the seeds, and how many classes the
chosen images are of.
"""

import argparse
import statistics
from pathlib import Path

from projects.Rows.row_table import RowTable, load_table
from revisit.engine.command import natural, run_command, whole
from revisit.errors import expect
from revisit.markdown import markdown_table, mean_and_spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--embeddings", required=True, type=Path, metavar="DIR", help="the images to choose from")
    add("--test", required=True, type=Path, metavar="DIR", help="the images to classify")
    add("--labels", type=natural, nargs="+", default=[31], metavar="N", help=f"numbers of labelled images {default}")
    add("--seeds", type=whole, nargs="+", default=[1, 2, 3, 4, 5], metavar="N", help=default)
    add("--regularization", type=float, default=1.0, metavar="C", help=f"of the regression: less with more {default}")
    args = parser.parse_args()
    import numpy as np

    from projects.Rows.selection import SELECTIONS

    pool, test = load_table(args.embeddings), load_table(args.test)
    have_classes = all("" not in table.classes for table in (pool, test))
    expect(have_classes, "a row has no class: expected tables of --data class_folders:DIR")
    most = max(args.labels)
    expect(most <= len(pool.rows), f"--labels {most}: expected {len(pool.rows)} at most, the images of --embeddings")
    lines = []
    for count in args.labels:
        for how, select in SELECTIONS.items():
            nothing = np.zeros(len(pool.rows), bool)
            chosen = [select(pool.rows, nothing, count, seed) for seed in args.seeds]
            scores = zip(*(accuracies(pool.of(places), test, args.regularization) for places in chosen), strict=True)
            classes = statistics.mean(len(set(pool.classes[places])) for places in chosen)
            lines.append([str(count), how, *(mean_and_spread(values, 1) for values in scores), f"{classes:g}"])
    print(markdown_table(("labels", "chosen", "nearest row (%)", "logistic regression (%)", "classes"), lines))


def accuracies(labelled: RowTable, test: RowTable, strength: float) -> tuple[float, float]:
    """Of two RowTables: how many of the test rows (%) their nearest labelled row, and logistic regression, classify."""
    from sklearn.linear_model import LogisticRegression

    from revisit.evaluation.nearest import nearest

    places = nearest(test.rows, labelled.rows, 1).places.numpy()
    right = labelled.classes[places[:, 0]] == test.classes
    by_nearest = 100 * float(right.mean())
    if len(set(labelled.classes)) == 1:  # of which a regression would say that all are
        return by_nearest, by_nearest
    regression = LogisticRegression(C=strength, max_iter=1000, random_state=0).fit(labelled.rows, labelled.classes)
    return by_nearest, 100 * float(regression.score(test.rows, test.classes))


if __name__ == "__main__":
    run_command(main)
