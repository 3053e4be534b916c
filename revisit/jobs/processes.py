"""Parts made on this machine: by this process, or by several that it starts."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import cv2
import torch
from tqdm import tqdm

from revisit.compat.private_names import kill_with_parent
from revisit.errors import UserError
from revisit.jobs.job import CONTINUES, Job, in_batches, make_batch, make_here, missing, progress_of
from revisit.threads import cores, thread_pool

_jobs: list[Job] = []  # of a worker: the one that it was started for


class Processes(NamedTuple):
    """One worker is this process itself."""

    workers: int = 1

    def run(self, job: Job) -> None:
        todo = missing(job)
        with progress_of(job, len(todo)) as bar:
            if self.workers == 1:
                make_here(job, todo, bar)
            elif todo:
                self._make_in_pool(job, todo, bar)

    def alone(self, folder: Path | None) -> AbstractContextManager:
        return nullcontext()

    def _make_in_pool(self, job: Job, todo: list[int], bar: tqdm) -> None:
        with self._pool(job) as pool:
            make = self._maker(job)
            futures = [pool.submit(make, batch) for batch in in_batches(todo, self.workers)]
            try:
                for future in as_completed(futures):
                    bar.update(future.result())
            except BrokenProcessPool as error:
                killed = f"{job.title}: a worker was killed, perhaps for lack of memory"
                raise UserError(f"{killed}: {CONTINUES}, also with fewer --processes") from error
            except BaseException:  # Ctrl-C too: what is left is not waited for
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in multiprocessing.active_children():
                    worker.kill()
                raise

    def _pool(self, job: Job) -> AbstractContextManager[Executor]:
        if job.in_threads:
            return thread_pool(self.workers)
        # Spawned processes inherit no threads or locks, whatever this one has loaded before.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, context, _begin_worker, (job, self.workers))

    def _maker(self, job: Job) -> Callable[[list[int]], int]:
        if job.in_threads:
            return lambda batch: make_batch(job, batch)
        return _make_batch


HERE = Processes()


def _begin_worker(job: Job, workers: int) -> None:
    """First thing in a worker: the parent answers signals, and the cores are shared."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kill_with_parent()
    cv2.setNumThreads(0)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores(workers))
    _jobs.append(job)


def _make_batch(numbers: list[int]) -> int:
    return make_batch(_jobs[0], numbers)
