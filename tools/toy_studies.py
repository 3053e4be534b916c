#!/usr/bin/env python
"""Run a study of the method on ToyScenes, on a CPU: every row, several seeds, one Markdown table.

    python projects/ToyScenes/make_toy_scenes.py --output $DETECTRON2_DATASETS/toy_scenes --num-images 8000
    python tools/toy_studies.py ablation --output output/studies/ablation
    python tools/toy_studies.py knn --train-set object-centric --seeds 1 2
    python tools/toy_studies.py transfer --weights output/demo/backbone.pth

Jobs that are done are skipped and interrupted ones go on from their checkpoint, so the same command may be given
again at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from pathlib import Path

from projects.PaperTables import toy, transfer
from projects.PaperTables.jobs import Job, run_jobs
from projects.PaperTables.plots import plot_purity, plot_sweeps
from revisit.engine.command import natural, run_command

TABLES = (*toy.TABLES, "transfer")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "table",
        choices=TABLES,
        help="ablation: the six rows; knn: k, lambda and where to mine; transfer: finetuning for detection, "
        "segmentation and depth",
    )
    parser.add_argument("--output", type=Path, help="folder of all runs (default: output/studies/TABLE)")
    parser.add_argument("--seeds", type=natural, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument(
        "--train-set",
        nargs="+",
        choices=toy.TRAIN_SETS,
        default=list(toy.TRAIN_SETS),
        help="of ablation and knn; default: both",
    )
    parser.add_argument(
        "--weights", nargs="+", type=Path, default=[], help="of transfer: a converted backbone, or one a seed"
    )
    parser.add_argument("--only", nargs="+", metavar="ROW", help="some rows, named as --dry-run does (default: all)")
    parser.add_argument("--parallel", type=natural, default=os.cpu_count(), help="runs at a time (default: one a core)")
    parser.add_argument("--dry-run", action="store_true", help="only list the jobs")
    parser.add_argument(
        "--opts", nargs=argparse.REMAINDER, default=[], help="last: KEY VALUE pairs, config overrides for every run"
    )
    args = parser.parse_args()
    for name in ("seeds", "train_set", "only"):
        given = getattr(args, name)
        setattr(args, name, given and list(dict.fromkeys(given)))
    if len(args.opts) % 2:
        parser.error(f"--opts: expected pairs KEY VALUE, got {' '.join(args.opts)}")
    return args


def pretraining_jobs(args: argparse.Namespace, output: Path) -> list[Job]:
    rows = toy.choose_rows(args.table, args.only)
    return toy.make_jobs(rows, args.train_set, args.seeds, output, tuple(args.opts))


def pretraining_table(args: argparse.Namespace, output: Path) -> tuple[list[dict], str]:
    """Results and their table; draws the pictures of ablation and knn."""
    rows = toy.choose_rows(args.table, args.only)
    results = toy.collect(rows, args.train_set, args.seeds, output)
    table = toy.as_markdown(results, args.train_set)
    if args.table == "knn":
        table += "\n\nThe paper's values for lambda and for mining are at k 20."
        plot_sweeps(results, output / "sweep.png")
    for name in args.train_set:
        plot_purity(toy.metrics_files(rows, name, args.seeds, output), output / f"purity_{name}.png")
    return results, table


def transfer_jobs(args: argparse.Namespace, output: Path) -> list[Job]:
    return transfer.make_jobs(transfer.choose_tasks(args.only), args.weights, args.seeds, output, tuple(args.opts))


def transfer_table(args: argparse.Namespace, output: Path) -> tuple[list[dict], str]:
    """Results and their table."""
    results = transfer.collect(transfer.choose_tasks(args.only), args.seeds, output)
    return results, transfer.as_markdown(results)


def main() -> None:
    args = parse_args()
    output = (args.output or Path("output/studies") / args.table).resolve()
    transfers = args.table == "transfer"
    jobs = transfer_jobs(args, output) if transfers else pretraining_jobs(args, output)
    if args.dry_run:
        for job in jobs:
            print(f"{'done' if job.done else 'to do'}: {job.name}")
            for command in job.commands:
                print(f"    python {shlex.join(command)}")
        return
    run_jobs(jobs, args.parallel)
    results, table = transfer_table(args, output) if transfers else pretraining_table(args, output)
    (output / "results.json").write_text(json.dumps(results, indent=2))
    (output / "table.md").write_text(table + "\n")
    print(f"\n{table}\n\nwritten to {output}: table.md and what belongs to it")


if __name__ == "__main__":
    run_command(main)
