#!/usr/bin/env python
"""Reproduce a table of the paper: pretrain, convert and evaluate every row, then print the paper's values and ours.

    python tools/reproduce.py ablation --dry-run
    python tools/reproduce.py ablation --profile toy --seeds 1
    python tools/reproduce.py sota --only "+CC+A+kNN,seg_VOC" --gpus 2
    python tools/reproduce.py transfer --slurm --partition gpu --gpus 8

--profile paper runs the paper's recipes on its data sets. --profile toy runs every table in small on ToyScenes, on a
CPU: the same code, another world, so its numbers say whether things work and not what the paper's would be.
Runs are shared by all tables. What is done is skipped, what was interrupted goes on from its checkpoint: give the same
command again. OUTPUT/TABLE/table.md, .csv and .tex hold the table as far as it has come.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from projects.PaperTables.cells import PROFILES, Cell, all_jobs, choose, make_cells, missing_inputs
from projects.PaperTables.columns import TOY_FORMS
from projects.PaperTables.job_cost import cost_of
from projects.PaperTables.jobs import Job, run_jobs
from projects.PaperTables.paper_figures import figure_jobs, figure_page
from projects.PaperTables.paper_values import note_of
from projects.PaperTables.result_table import as_csv, as_latex, as_markdown
from projects.PaperTables.rows import ROWS
from projects.PaperTables.slurm_jobs import submit_jobs
from revisit.engine.command import natural, run_command
from revisit.errors import UserError

TABLES = (*ROWS, "figures")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--profile", choices=PROFILES, default="paper", help="(default: %(default)s)")
    parser.add_argument("--only", metavar="ROW,COLUMN", help="a single row, column or cell; either may be empty")
    parser.add_argument("--seeds", type=natural, nargs="+", default=[1], metavar="N", help="(default: 1)")
    parser.add_argument("--output", type=Path, help="folder of all runs (default: output/reproduce/PROFILE)")
    parser.add_argument("--parallel", type=natural, help="jobs at a time (default: one; toy: one a core)")
    parser.add_argument("--gpus", type=natural, default=1, metavar="N", help="of a training (default: %(default)s)")
    parser.add_argument("--slurm", action="store_true", help="submit the jobs by sbatch instead of running them here")
    parser.add_argument("--partition", metavar="NAME", help="with --slurm (default: the cluster's)")
    parser.add_argument("--hours", type=natural, default=48, metavar="N", help="with --slurm (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="show jobs, their cost and missing data; run nothing")
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="last: KEY VALUE pairs for every training")
    args = parser.parse_args()
    if args.table not in TABLES:
        raise UserError(f"no table {args.table!r}: expected one of {', '.join(TABLES)}")
    if len(args.opts) % 2:
        raise UserError(f"--opts: expected pairs KEY VALUE, got {' '.join(args.opts)}")
    args.seeds = list(dict.fromkeys(args.seeds))
    return args


def main() -> None:
    args = parse_args()
    root = (args.output or Path("output/reproduce") / args.profile).resolve()
    extra = tuple(args.opts)
    if args.table == "figures":
        if args.only or len(args.seeds) > 1:
            raise UserError("figures are drawn together and of one seed: expected no --only and one of --seeds")
        cells: list[Cell] = []
        jobs = figure_jobs(profile=args.profile, seed=args.seeds[0], root=root, extra=extra, gpus=args.gpus)
    else:
        options = {"profile": args.profile, "seeds": args.seeds, "root": root, "extra": extra, "gpus": args.gpus}
        cells = make_cells(*choose(args.table, args.only), args.table, **options)
        jobs = all_jobs(cells)
    missing = missing_inputs(jobs)
    if args.dry_run:
        show(jobs, missing, args)
        return
    ready = runnable(jobs, missing)
    if args.slurm:
        submit_jobs(ready, hours=args.hours, partition=args.partition, gpus=args.gpus)
    try:
        if not args.slurm:
            run_jobs(ready, args.parallel or (os.cpu_count() if args.profile == "toy" else 1))
    finally:
        folder = root / args.table
        folder.mkdir(parents=True, exist_ok=True)
        print("\n" + write(cells, jobs, folder, args))
    for result, what in missing.items():
        print(f"not run for want of data: {result.parent.relative_to(root)} needs {what}", file=sys.stderr)


def runnable(jobs: list[Job], missing: dict[Path, str]) -> list[Job]:
    """Jobs that find their inputs, and so do those that they need.

    Raises:
        UserError: there is none.
    """

    def fits(job: Job) -> bool:
        return job.done or (job.result not in missing and all(map(fits, job.needs)))

    ready = [job for job in jobs if fits(job)]
    if jobs and not ready:
        raise UserError(f"nothing can run here; missing: {'; '.join(sorted(set(missing.values())))}")
    return ready


def show(jobs: list[Job], missing: dict[Path, str], args: argparse.Namespace) -> None:
    todo = [job for job in jobs if not job.done]
    for job in jobs:
        lacks = f"; MISSING {missing[job.result]}" if job.result in missing else ""
        print(f"{'done' if job.done else 'to do'}: {job.name} ({cost_of(job)}{lacks})")
        for command in job.commands:
            print(f"    python {shlex.join(command)}")
    print(f"{len(jobs)} jobs, {len(jobs) - len(todo)} done, {sum(job.result in missing for job in todo)} without data")


def write(cells: list[Cell], jobs: list[Job], folder: Path, args: argparse.Namespace) -> str:
    """The table's files; returns what is to be printed."""
    if not cells:
        text = figure_page(jobs, folder)
        (folder / "figures.md").write_text(text)
        return f"{text}\nwritten to {folder / 'figures.md'}"
    columns = dict.fromkeys(cell.column for cell in cells)
    notes = [f"Paper: {note_of(args.table) or 'as printed'}. Ours: profile {args.profile}, seeds {args.seeds}."]
    if args.profile == "toy":
        forms = [f"{name} is {TOY_FORMS[name]}" for name in columns if name in TOY_FORMS]
        notes.append(f"Ours is measured on ToyScenes, another world than the paper's. {'; '.join(forms)}.")
    if any(name == "depth_NYUD_rmse" for name in columns):
        notes.append("Of depth_NYUD_rmse lower is better.")
    markdown = as_markdown(cells, f"{args.table}, {args.profile} profile", notes)
    (folder / "table.md").write_text(markdown + "\n")
    (folder / "table.csv").write_text(as_csv(cells))
    (folder / "table.tex").write_text(as_latex(cells, args.table))
    return f"{markdown}\n\nwritten to {folder}: table.md, table.csv, table.tex"


if __name__ == "__main__":
    run_command(main)
