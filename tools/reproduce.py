#!/usr/bin/env python
"""Reproduce a table of the paper: pretrain, convert and evaluate every row, print the paper's values and ours.

It draws the paper's figures too.

    python tools/reproduce.py ablation --dry-run
    python tools/reproduce.py ablation --profile toy --seeds 1
    python tools/reproduce.py sota --only "+CC+A+kNN,seg_VOC" --num-gpus 2
    python tools/reproduce.py transfer --profile toy --weights random backbone.pth --seeds 1 2 3
    python tools/reproduce.py transfer --on slurm --partition gpu --num-gpus 8

--profile paper runs the paper's recipes on its data sets. --profile toy runs the same code on a small scale, on
ToyScenes and a CPU: it shows whether everything works, not what the paper's numbers would be. It pretrains on images of
single objects; for scenes give another --output, and --opts DATASETS.TRAIN "('toy_scenes_train',)".
All tables share their runs. What is done is skipped, what was interrupted resumes from its checkpoint: give the same
command again. OUTPUT/TABLE/table.md, .csv and .tex hold the table as far as it has come.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from projects.Paper.paper_tables import COLUMNS, PROFILES, ROWS, given_rows, note_of
from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import write_whole
from revisit.jobs.command_options import add_job_options, do_jobs, show_jobs

if TYPE_CHECKING:
    from projects.Paper.cells import Cell
    from revisit.jobs.commands import Job

TABLES = (*ROWS, "figures")
NETWORKS = {
    "final": "after the last iteration",
    "best": "at their best evaluation, chosen on the very images that the score is of, which flatters it",
}


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    parser.add_argument("table", metavar="TABLE", help=", ".join(TABLES))
    add(parser, "profile", choices=PROFILES, default="paper", help=f"the paper's data sets, or ToyScenes {DEFAULT}")
    only = "only these cells; ,COLUMN is a whole column, and ROW, a whole row"
    add(parser, "only", metavar="ROW,COLUMN", help=only)
    weights = "converted backbones to evaluate instead of the paper's rows; {seed} in FILE stands for the seed"
    add(parser, "weights", nargs="+", default=[], metavar="random|FILE", help=weights)
    add(parser, "seeds", default=[1], help="a cell is the mean of these (default: 1)")
    judged = f"judge a finetuned network after its last iteration, or at its best evaluation {DEFAULT}"
    add(parser, "how", choices=("final", "best"), default="final", help=judged)
    add(parser, "full")
    add(parser, "output", help="folder of all runs (default: output/reproduce/PROFILE)")
    add_job_options(parser, processes="one; toy: one per core")
    add(parser, "opts")
    args = parse(parser)
    expect(args.table in TABLES, f"no table {args.table!r}: expected one of {', '.join(TABLES)}")
    args.seeds, args.weights = (list(dict.fromkeys(given)) for given in (args.seeds, args.weights))
    for_tables = args.only or args.weights or len(args.seeds) > 1 or args.how == "best"
    problem = "figures are drawn together, of one seed, of final networks: expected one of --seeds, and no --only"
    expect(args.table != "figures" or not for_tables, f"{problem}, --weights or --how best")
    return args


def main() -> None:
    args = parse_args()
    from projects.Paper.cells import JobBuilder, make_cells
    from projects.Paper.figures import figure_jobs
    from revisit.jobs.commands import missing_inputs, with_needs

    root = (args.output or Path("output/reproduce") / args.profile).resolve()
    builder = JobBuilder(args.profile, root, tuple(args.opts), args.num_gpus, args.full, args.how)
    cells: list[Cell] = []
    if args.table == "figures":
        jobs = figure_jobs(builder, args.seeds[0])
    else:
        rows = given_rows(args.weights) if args.weights else ROWS[args.table]
        cells = make_cells(args.table, rows, builder, seeds=args.seeds, only=args.only)
        jobs = with_needs(job for cell in cells for job in cell.jobs)
    missing = {job.result: what for job in jobs if (what := missing_inputs(job))}
    if args.dry_run:
        show_jobs(jobs, missing)
        if args.profile == "paper":
            print(gpu_hours_in_words([job for job in jobs if not job.done]))
        return
    folder = root / f"{args.table}{'_weights' * bool(args.weights)}{'_best' * (args.how == 'best')}"

    def write_all() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        print(f"\n{write(cells, jobs, folder, args)}\n\nwritten to {folder}")

    parallel = os.cpu_count() if args.profile == "toy" else 1
    do_jobs(runnable(jobs, missing), root, args, parallel=parallel, write=write_all)
    for result, what in missing.items():
        print(f"not run for want of data: {result.parent.relative_to(root)} needs {what}", file=sys.stderr)


def gpu_hours_in_words(jobs: list[Job]) -> str:
    """What the pretrainings among the jobs take on GPUs, what that assumes, and what it leaves out."""
    from projects.Planning.run_cost import ASSUMED, gpu_hours
    from revisit.jobs.commands import planned_training

    planned = [planned_training(job) for job in jobs]
    trainings = [cfg for cfg in planned if cfg is not None]
    hours = [hours for cfg in trainings if (hours := gpu_hours(cfg)) is not None]
    others = f"{len(trainings) - len(hours)} other trainings and {len(jobs) - len(trainings)} jobs without training"
    return f"{sum(hours):,.0f} GPU-hours for {len(hours)} pretrainings at {ASSUMED}; not counted: {others}"


def runnable(jobs: list[Job], missing: dict[Path, str]) -> list[Job]:
    """Jobs that find their inputs, and so do those that they need; UserError where there is none."""

    def fits(job: Job) -> bool:
        return job.done or (job.result not in missing and all(map(fits, job.needs)))

    ready = [job for job in jobs if fits(job)]
    what = "; ".join(sorted(set(missing.values())))
    way_out = "datasets/README.md says where it comes from, projects/ToyScenes/make_toy_scenes.py draws ToyScenes"
    expect(bool(ready or not jobs), f"nothing can run here; missing: {what}; {way_out}")
    return ready


def write(cells: list[Cell], jobs: list[Job], folder: Path, args: argparse.Namespace) -> str:
    """Write the table's files, or the page of figures; returns its Markdown."""
    from projects.Paper.figures import figure_page
    from projects.Paper.result_table import as_csv, as_latex, as_markdown, plot_sweep

    if not cells:
        markdown = figure_page(jobs, folder)
        write_whole(folder / "figures.md", markdown)
        return markdown
    columns = dict.fromkeys(cell.column for cell in cells)
    spread = ", mean ± standard deviation" if len(args.seeds) > 1 else ""
    notes = [f"Paper: {note_of(args.table)}. Ours: profile {args.profile}, seeds {args.seeds}{spread}."]
    if any(cell.network for cell in cells):
        notes.append(f"Finetuned networks are judged {NETWORKS[args.how]}.")
    if args.profile == "toy":
        forms = [f"{name} is {COLUMNS[name].toy_means}" for name in columns if COLUMNS[name].toy_means]
        notes.append(f"Ours is measured on ToyScenes, another world than the paper's. {'; '.join(forms)}.")
    if "depth_NYUD_rmse" in columns:
        notes.append("Of depth_NYUD_rmse lower is better.")
    markdown = as_markdown(cells, f"{args.table}, {args.profile} profile", notes)
    write_whole(folder / "table.md", f"{markdown}\n")
    write_whole(folder / "table.csv", as_csv(cells))
    write_whole(folder / "table.tex", as_latex(cells, f"{args.table}, {args.how} networks"))
    if args.table == "knn":
        plot_sweep(cells, folder / "sweep.png")
    return markdown


if __name__ == "__main__":
    run_command(main)
