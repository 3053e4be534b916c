"""What the command lines of job makers share: how many jobs at a time, here or by SLURM, or a plan of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from revisit.command.options import add
from revisit.engine.command import in_shell
from revisit.errors import UserError
from revisit.files import make_folder
from revisit.plugins import name_from_here

if TYPE_CHECKING:
    from revisit.jobs.commands import Job


def add_job_options(parser: argparse.ArgumentParser, *, processes: str) -> None:
    """Add the options; ``processes`` says in words how many jobs run at a time by default."""
    add(parser, "processes", help=f"jobs at a time (default: {processes})")
    add(parser, "num-gpus", help="of each training (default: %(default)s)")
    add(parser, "on", choices=("here", "slurm"), metavar=None, help="slurm submits the jobs by sbatch")
    add(parser, "partition")
    add(parser, "hours", default=48)
    add(parser, "dry-run", help="show jobs, their cost and missing data; run nothing")


def do_jobs(
    jobs: list[Job],
    root: Path,
    args: argparse.Namespace,
    *,
    parallel: int,
    write: Callable[[], None],
    result_of: Callable[[Job], str] = lambda job: "",
) -> None:
    """Run or submit what is not done yet, as the options say; then ``write`` what has come of it, also after a failure.

    All are claimed before anything runs or is written: where another recipe has been, its results and tables stay.
    ``root`` is their folder, --output; ``parallel`` run at a time where the options do not say. What ``result_of`` says
    of a job that is done is printed.
    """
    from revisit.jobs.commands import run_jobs, submit_jobs

    make_folder(root, "--output")
    for job in jobs:
        job.claim()
    try:
        if args.on == "slurm":
            submit_jobs(jobs, hours=args.hours, partition=args.partition, gpus=args.num_gpus)
        else:
            run_jobs(jobs, args.processes or parallel, result_of)
    except BaseException:
        with suppress(UserError):  # what ended the jobs is what the user has to see
            write()
        raise
    write()


def show_jobs(jobs: list[Job], missing: Mapping[Path, str]) -> None:
    """Print every job with its cost, what it lacks by its result, and its commands."""
    from revisit.jobs.commands import cost_of

    todo = [job for job in jobs if not job.done]
    for job in jobs:
        lacks = f"; MISSING {missing[job.result]}" if job.result in missing else ""
        print(f"{'done' if job.done else 'to do'}: {job.name} ({cost_of(job)}{lacks})")
        for command in job.commands:
            words = map(in_shell, [name_from_here(command[0]), *command[1:]])
            print(f"    python {' '.join(words)}")
    print(f"{len(jobs)} jobs, {len(jobs) - len(todo)} done, {sum(job.result in missing for job in todo)} without data")
