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
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from revisit.checkpoint.run_folder import checkpoints_of_run, iteration_of
from revisit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]  # where tools/ and configs/ are


@dataclass(frozen=True)
class Job:
    """Commands, run one after the other by this Python, that end with ``result`` on disk.

    ``facts`` is what else the result depends on, such as the number of images. ``job.json`` beside the result
    keeps commands and facts; a result of others is not taken for this job's. ``needs`` are jobs that come first.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: Path
    facts: tuple[str, ...] = ()
    needs: tuple[Job, ...] = ()

    @property
    def done(self) -> bool:
        return self.result.is_file()

    @property
    def log(self) -> Path:
        return self.result.parent / "job.log"

    @property
    def ready(self) -> bool:
        """Whether the jobs that come first are done."""
        return all(needed.done for needed in self.needs)

    @property
    def state(self) -> str:
        """How far a job that is not done has come, for a table: never a number that could be taken for its result."""
        for needed in self.needs:
            if not needed.done:
                return needed.state
        folder = self.result.parent
        iterations = [iteration_of(path) + 1 for path in checkpoints_of_run(folder)]
        if iterations:
            return f"half-finished: iteration {max(iterations)}"
        return "begun" if self.log.is_file() else "not run"

    @property
    def owns_result(self) -> bool:
        """Whether what lies in the folder was made by these commands from these facts."""
        try:
            return json.loads((self.result.parent / "job.json").read_text()) == self._identity()
        except (OSError, ValueError):
            return False

    def _identity(self) -> dict:
        return {"commands": [list(command) for command in self.commands], "facts": list(self.facts)}

    def claim(self) -> None:
        """Write ``job.json``, or make sure that it says the same.

        Raises:
            UserError: the folder belongs to a job of other commands or facts.
        """
        path = self.result.parent / "job.json"
        if path.is_file():
            if not self.owns_result:
                raise UserError(
                    f"{self.result.parent} was made by another recipe or from other data ({path}): "
                    "give another --output, or remove it"
                )
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self._identity(), indent=2))


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
    progress = _Progress(len(todo))
    children = _Children()
    with _signals_interrupt(), ThreadPoolExecutor(parallel) as pool:
        waiting, running = list(todo), {}
        try:
            while waiting or running:
                for job in [job for job in waiting if job.ready]:
                    waiting.remove(job)
                    running[pool.submit(_run, job, children)] = job
                if not running:
                    break  # what waits needs what has failed
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    progress.tell(running.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
    if progress.failed:
        logs = ", ".join(str(job.log) for job in progress.failed)
        behind = f"; {len(waiting)} that need them were not run" if waiting else ""
        raise UserError(f"{len(progress.failed)} of {len(todo)} jobs failed; their output is in {logs}{behind}")


class _Progress:
    """A line a job: how long it took, and what the others will at that rate."""

    def __init__(self, total: int):
        self._total = total
        self._start = time.perf_counter()
        self._count = 0
        self.failed: list[Job] = []

    def tell(self, job: Job, seconds: float) -> None:
        self._count += 1
        if not job.done:
            self.failed.append(job)
        left = (time.perf_counter() - self._start) / self._count * (self._total - self._count)
        state = f"{seconds:.0f} s" if job.done else "FAILED"
        print(f"[{self._count}/{self._total}] {job.name}: {state}; {left / 60:.0f} minutes left", flush=True)


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
