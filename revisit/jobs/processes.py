"""Parts made on this machine: by this process, or by several that it starts."""

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial

import cv2
import torch

from revisit.compat.private_names import kill_with_parent
from revisit.errors import UserError
from revisit.jobs.runner import CONTINUES, Parts, Runner, in_batches, make_batch, make_here, missing, progress_of
from revisit.progress import share_terminal
from revisit.threads import cores, thread_pool

_parts: list[Parts] = []  # of a worker: the one that it was started for


@dataclass(frozen=True)
class Processes(Runner):
    """One worker is this process itself."""

    workers: int = 1

    def run(self, parts: Parts) -> None:
        todo = missing(parts)
        if self.workers == 1:
            make_here(parts, todo)
        elif todo:
            self._make_in_pool(parts, todo)

    def _make_in_pool(self, parts: Parts, todo: list[int]) -> None:
        if parts.in_threads:
            workers = thread_pool(self.workers)
            make = partial(make_batch, parts)
        else:
            # Spawned processes inherit no threads or locks, whatever this one has loaded before.
            context = multiprocessing.get_context("spawn")
            workers = ProcessPoolExecutor(self.workers, context, _begin_worker, (parts, self.workers))
            make = _make_batch
        with progress_of(parts, len(todo)) as bar, workers as pool:
            futures = [pool.submit(make, batch) for batch in in_batches(todo, self.workers)]
            try:
                for future in as_completed(futures):
                    bar.update(future.result())
            except BrokenProcessPool as error:
                raise UserError(
                    f"{parts.title}: a worker was killed, perhaps for lack of memory: {CONTINUES}, also with fewer "
                    "--processes"
                ) from error
            except BaseException:  # Ctrl-C too: what is left is not waited for
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in multiprocessing.active_children():
                    worker.kill()
                raise


HERE = Processes()


def _begin_worker(parts: Parts, workers: int) -> None:
    """First thing in a worker: the parent answers signals, and the cores and the terminal are shared."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kill_with_parent()
    share_terminal()
    cv2.setNumThreads(0)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores(workers))
    _parts.append(parts)


def _make_batch(numbers: list[int]) -> int:
    return make_batch(_parts[0], numbers)
