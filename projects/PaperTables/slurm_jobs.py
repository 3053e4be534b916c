"""The jobs of a table as SLURM's: one each, started when those that it needs have ended well."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from projects.PaperTables.jobs import ROOT, Job
from revisit.errors import UserError


def submit_jobs(jobs: list[Job], *, hours: int, gpus: int, partition: str | None) -> None:
    """Submit what is not done by sbatch; each job's output goes to ``job.log`` beside its result.

    A job that SLURM preempts is queued again and goes on from its checkpoint; one whose ``hours`` are up ends, and
    those behind it with it: submit again what is left.

    Args:
        jobs: each behind those that it needs.

    Raises:
        UserError: there is no sbatch here, or it refuses a job. Or a folder is another job's.
    """
    numbers: dict[Path, str] = {}
    for job in jobs:
        job.claim()
    for job in jobs:
        if job.done:
            continue
        waits = [numbers[needed.result] for needed in job.needs if needed.result in numbers]
        options = ["--parsable", f"--job-name={job.name}", f"--output={job.log}", "--open-mode=append", "--requeue"]
        options += [f"--time={hours}:00:00", f"--chdir={ROOT}"]
        options += [f"--gpus={gpus if any('--num-gpus' in command for command in job.commands) else 1}"]
        options += [f"--partition={partition}"] if partition else []
        options += [f"--dependency=afterok:{':'.join(waits)}", "--kill-on-invalid-dep=yes"] if waits else []
        numbers[job.result] = _sbatch([*options, f"--wrap={_script(job)}"])
        print(f"submitted as {numbers[job.result]}: {job.name}", flush=True)


def _script(job: Job) -> str:
    return " && ".join(shlex.join([sys.executable, *command]) for command in job.commands)


def _sbatch(options: list[str]) -> str:
    try:
        done = subprocess.run(["sbatch", *options], text=True, capture_output=True)
    except FileNotFoundError as error:
        raise UserError("no sbatch on this machine: submit from a login node, or run without --slurm") from error
    if done.returncode:
        raise UserError(f"sbatch refused the job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]
