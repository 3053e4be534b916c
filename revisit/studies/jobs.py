"""Jobs of a study: command lines that leave one result file each, run a few at a time, skipped when done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from revisit.errors import UserError


@dataclass(frozen=True)
class Job:
    """Commands, run one after the other by this Python, that end with ``result`` on disk."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: Path

    @property
    def done(self) -> bool:
        return self.result.is_file()


def run_jobs(jobs: list[Job], parallel: int) -> None:
    """Run what is not done yet, ``parallel`` jobs at a time with one thread each; progress goes to stdout.

    Each job's output goes to log.txt-like ``job.log`` beside its result. On Ctrl-C the running jobs are stopped;
    the same call goes on from their checkpoints.

    Raises:
        UserError: a job failed; names its log. The others finish first.
    """
    todo = [job for job in jobs if not job.done]
    print(f"{len(jobs)} jobs, {len(jobs) - len(todo)} done before, {parallel} at a time", flush=True)
    start, failed = time.perf_counter(), []
    running: set[subprocess.Popen] = set()
    with ThreadPoolExecutor(parallel) as pool:
        futures = {pool.submit(_run, job, running): job for job in todo}
        try:
            for count, future in enumerate(as_completed(futures), 1):
                job, seconds = futures[future], future.result()
                if not job.done:
                    failed.append(job)
                left = (time.perf_counter() - start) / count * (len(todo) - count)
                state = "FAILED" if job in failed else f"{seconds:.0f} s"
                print(f"[{count}/{len(todo)}] {job.name}: {state}; {left / 60:.0f} minutes left", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                os.killpg(process.pid, signal.SIGTERM)
            raise
    if failed:
        logs = ", ".join(str(_log_of(job)) for job in failed)
        raise UserError(f"{len(failed)} of {len(todo)} jobs failed; their output is in {logs}")


def _log_of(job: Job) -> Path:
    return job.result.parent / "job.log"


def _run(job: Job, running: set[subprocess.Popen]) -> float:
    start = time.perf_counter()
    job.result.parent.mkdir(parents=True, exist_ok=True)
    with open(_log_of(job), "a") as log:
        for command in job.commands:
            process = subprocess.Popen(
                [sys.executable, *command],
                env=os.environ | {"OMP_NUM_THREADS": "1"},  # more busy threads than cores cost far more than they give
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            running.add(process)
            code = process.wait()
            running.discard(process)
            if code:
                break
    return time.perf_counter() - start
