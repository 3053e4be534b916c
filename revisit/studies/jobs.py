"""Jobs of a study: command lines that leave one result file each, run a few at a time, skipped when done."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from revisit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]  # where tools/ and configs/ are


@dataclass(frozen=True)
class Job:
    """Commands, run one after the other by this Python, that end with ``result`` on disk.

    ``facts`` is what else the result depends on, such as the number of images. ``job.json`` beside the result
    keeps commands and facts; a result of others is not taken for this job's.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: Path
    facts: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        return self.result.is_file()

    @property
    def log(self) -> Path:
        return self.result.parent / "job.log"

    def claim(self) -> None:
        """Write ``job.json``, or make sure that it says the same.

        Raises:
            UserError: the folder belongs to a job of other commands or facts.
        """
        path = self.result.parent / "job.json"
        own = {"commands": [list(command) for command in self.commands], "facts": list(self.facts)}
        if path.is_file():
            found = json.loads(path.read_text())
            if found != own:
                raise UserError(
                    f"{self.result.parent} was made by another recipe or from other data ({path}): "
                    "give another --output, or remove it"
                )
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(own, indent=2))


def run_jobs(jobs: list[Job], parallel: int) -> None:
    """Run what is not done yet, ``parallel`` jobs at a time with one thread each; progress goes to stdout.

    Each job's output goes to ``job.log`` beside its result. When this process is interrupted, terminated or loses
    its terminal, it stops the running jobs; the same call goes on from their checkpoints.

    Raises:
        UserError: a job failed; names its log, the others finish first. Or its folder is another job's.
    """
    for job in jobs:
        job.claim()
    todo = [job for job in jobs if not job.done]
    print(f"{len(jobs)} jobs, {len(jobs) - len(todo)} done before, {parallel} at a time", flush=True)
    start, failed = time.perf_counter(), []
    children = _Children()
    with _signals_interrupt(), ThreadPoolExecutor(parallel) as pool:
        futures = {pool.submit(_run, job, children): job for job in todo}
        try:
            for count, future in enumerate(as_completed(futures), 1):
                job, seconds = futures[future], future.result()
                if not job.done:
                    failed.append(job)
                left = (time.perf_counter() - start) / count * (len(todo) - count)
                state = "FAILED" if job in failed else f"{seconds:.0f} s"
                print(f"[{count}/{len(todo)}] {job.name}: {state}; {left / 60:.0f} minutes left", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
    if failed:
        logs = ", ".join(str(job.log) for job in failed)
        raise UserError(f"{len(failed)} of {len(todo)} jobs failed; their output is in {logs}")


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Children:
    """The commands that run, each with a process group of its own, so that all of them can be stopped at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._stopping = False

    def run(self, command: tuple[str, ...], environment: dict[str, str], log: TextIO) -> int:
        """Run one to its end; its exit code, or that of SIGTERM where all are being stopped."""
        with self._lock:  # no command starts unseen by stop()
            if self._stopping:
                return -signal.SIGTERM
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.add(process.pid)
        try:
            return process.wait()
        finally:
            with self._lock:
                self._groups.discard(process.pid)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            for group in self._groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGTERM)


def _run(job: Job, children: _Children) -> float:
    start = time.perf_counter()
    # More busy threads than cores cost far more than they give.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(job.log, "a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{job.name} is being run by another process ({job.log})") from error
        for command in job.commands:
            if children.run(command, environment, log):
                break
    return time.perf_counter() - start
