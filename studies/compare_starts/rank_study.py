#!/usr/bin/env python
"""Does a probe order starts as finetuning does? Spearman's rank correlation over the starts of a finished comparison.

    python studies/compare_starts/rank_study.py output/compare/toy_starts
    python studies/compare_starts/rank_study.py output/compare/toy_starts --others scores.csv

OUTPUT is that of tools/compare_starts.py, given both with --how probe and with one number of --labels. --others are
scores that something else says of the same starts: a CSV file with the column start and a column for each score, such
as knn_top1 and rankme of the pretrainings.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from revisit.engine.command import run_command
from revisit.errors import expect, translated
from revisit.files import output_path
from revisit.markdown import CsvDicts, markdown_table

DRAWS = 2000  # of the bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=output_path, metavar="OUTPUT", help="folder of the comparison")
    parser.add_argument("--others", type=Path, metavar="FILE", help="CSV of further scores of the starts")
    args = parser.parse_args()
    with translated(f"reading {args.output}"):
        probed = json.loads((args.output / "probe/results.json").read_text())["scores"]
        rows = _rows(args.output / "comparison/scores.csv")
        finetuned = {row["start"]: float(row["mean"]) for row in rows if row["mean"]}
    predictors = {
        f"probe: {name}": {start: scores[name]["value"] for start, scores in probed.items()}
        for name in next(iter(probed.values()))
    }
    if args.others:
        predictors |= read_others(args.others)
    lines = [[name, *correlation(values, finetuned)] for name, values in predictors.items()]
    print(markdown_table(["score", "starts", "Spearman", "95 % of the bootstrap over starts"], lines))


def read_others(file: Path) -> dict[str, dict[str, float]]:
    """Scores of starts, by their column in a CSV file. Raises UserError for one that is no number, or without a column
    ``start``."""
    scores: dict[str, dict[str, float]] = {}
    with translated(f"--others {file}, expected a column start and columns of numbers", content=True):
        for row in _rows(file):
            start = row.pop("start")
            for name, value in row.items():
                if value:
                    scores.setdefault(name, {})[start] = float(value)
    return scores


def correlation(scores: Mapping[str, float], finetuned: Mapping[str, float]) -> tuple[str, str, str]:
    """How many starts have both scores, their rank correlation, and its interval.

    Raises:
        UserError: fewer than four.
    """
    starts = sorted(scores.keys() & finetuned.keys())
    expect(len(starts) >= 4, f"{len(starts)} starts have both scores: expected at least 4, whose titles are the same")
    pairs = np.array([[scores[start], finetuned[start]] for start in starts])
    rng = np.random.default_rng(0)
    drawn = (pairs[rng.integers(len(pairs), size=len(pairs))] for _ in range(DRAWS))
    values = [spearman(part) for part in drawn]
    low, high = np.percentile([value for value in values if not math.isnan(value)], (2.5, 97.5))
    return str(len(starts)), f"{spearman(pairs):.2f}", f"{low:.2f} to {high:.2f}"


def spearman(pairs: np.ndarray) -> float:
    """Of (n, 2) scores; NaN where all of a column are the same."""
    return math.nan if (pairs == pairs[0]).all(axis=0).any() else float(spearmanr(*pairs.T).statistic)


def _rows(path: Path) -> list[dict[str, str]]:
    with translated(f"reading {path}"), open(path, newline="", encoding="utf-8-sig") as file:
        return list(CsvDicts(file))


if __name__ == "__main__":
    run_command(main)
