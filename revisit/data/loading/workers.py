"""How a loader's workers start and end: one thread each, and signals are the training process's to answer."""

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize, register_after_fork
from types import FrameType, TracebackType
from typing import ClassVar, NamedTuple

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from revisit.compat.private_names import kill_with_parent
from revisit.errors import KilledWorkerError, UserError

# What asks a training to stop after a checkpoint (engine/stop_signals.py); of several, the later one here is reported.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_NO_ROOM = re.compile(r"shared memory|</torch_[^>]*>.*No space left", re.S)  # as torch says it
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]*)")  # so, too
_END = signal.SIGUSR2
_GRACE = 5.0  # seconds
_HEARD = 1.0  # seconds from a connection that a worker's end has cut until the system reports that end
_ALL = (*STOP_SIGNALS, _END)
# How workers start; Python's own choice depends on its version. A fork is there at once, and shares the records, of
# which other processes would get copies. No thread of its parent may hold a library's lock meanwhile: those of ours do
# not (revisit/threads.py), but macOS has some of its own.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"


class SignalSafeLoader(DataLoader):
    """A DataLoader whose workers ignore STOP_SIGNALS from the moment they start; where there is a GPU its batches
    are in pinned memory.

    Ctrl-C and SLURM send their signals to all processes. A worker that died of one would break the step that the
    training process still finishes. ``waiting`` is entered whenever workers' batch is awaited (engine/stop_signals.py).
    Not everywhere is a worker a fork, so the data set and what it calls have to be picklable.
    """

    waiting: ClassVar[Callable[[], AbstractContextManager]] = nullcontext

    def __init__(self, dataset: Dataset, **options: object):
        method = START_METHOD if options.get("num_workers") else None
        how = {"worker_init_fn": start_worker, "multiprocessing_context": method, **options}
        super().__init__(dataset, pin_memory=torch.cuda.is_available(), **how)

    def __iter__(self) -> Iterator:
        if START_METHOD != "fork":
            resource_tracker.ensure_running()  # which lets SIGTERM and SIGINT through again where it is started
        # Workers inherit what is blocked here. One that reaches this thread meanwhile waits.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        try:
            before = {*multiprocessing.active_children()}
            batches = super().__iter__()
            _hear_of_killed_workers()
            return _Batches(batches, {*multiprocessing.active_children()} - before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class _Batches:
    """A loader's iterator, and the workers that it has started."""

    def __init__(self, batches: Iterator, workers: Collection[BaseProcess]):
        self._batches = batches
        self._workers = workers

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> object:
        # Without workers this process makes the batch, however long that takes.
        with SignalSafeLoader.waiting() if self._workers else nullcontext():
            try:
                return next(self._batches)
            except (EOFError, OSError, RuntimeError) as error:
                self._expect_memory(error)
                raise

    def _expect_memory(self, error: Exception) -> None:
        """Raise UserError where the error is of a worker that ended for want of memory."""
        if isinstance(error, RuntimeError) and _NO_ROOM.search(str(error)):
            more = "expected more, by docker run --shm-size 8g, or a lower DATALOADER.NUM_WORKERS"
            raise UserError(f"/dev/shm, where loaders' workers leave their batches, is full: {more}") from error
        if self._workers:
            wait([worker.sentinel for worker in self._workers], _HEARD)
        for worker in self._workers:
            if (worker.exitcode or 0) < 0:
                raise _killed(worker.pid, signal.strsignal(-worker.exitcode)) from error


def _killed(worker: object, by: str | None) -> KilledWorkerError:
    is_shared = by == "Bus error"  # of what two processes share
    why = "/dev/shm is full (docker run --shm-size 8g has more)" if is_shared else "memory ran out"
    end = f"DataLoader worker (pid {worker}) is killed by signal: {by}"
    remedy = "lower DATALOADER.NUM_WORKERS or the batch; --resume continues from the last checkpoint"
    return KilledWorkerError(f"{end}. Most often {why}: {remedy}")


def _hear_of_killed_workers() -> None:
    """Let torch's handler of SIGCHLD, which raises wherever this process is, raise KilledWorkerError."""
    of_torch = signal.getsignal(signal.SIGCHLD)
    is_new = callable(of_torch) and not isinstance(of_torch, _OnEndOfWorker)
    if is_new and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, _OnEndOfWorker(of_torch))


class _OnEndOfWorker(NamedTuple):
    """A handler of SIGCHLD."""

    of_torch: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.of_torch(number, frame)
        except RuntimeError as error:
            if by := _KILLED.search(str(error)):
                raise _killed(*by.groups()) from error
            raise


def start_worker(worker_id: int) -> None:
    """First thing in a worker, whose signals wait until it has said what is to be done with them."""
    cv2.setNumThreads(0)  # OpenCV would start a thread per core in every worker
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_END, lambda *_: os._exit(0))
    kill_with_parent()
    sys.excepthook = _report_of_sharer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)


def _report_of_sharer(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Of Python's thread that hands batches over: no word where who takes them was killed meanwhile, as this worker is
    a moment later."""
    if not issubclass(kind, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, traceback)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute as a worker does."""
    of_torch, of_opencv = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        torch.set_num_threads(of_torch)
        cv2.setNumThreads(of_opencv)


def _end_workers() -> None:
    workers = [process for process in multiprocessing.active_children() if process.daemon]
    for process in workers:
        with suppress(ProcessLookupError):
            os.kill(process.pid, _END)
    end = time.monotonic() + _GRACE
    for process in workers:
        process.join(max(0, end - time.monotonic()))
        process.kill()  # one that hangs hears nothing else


def _end_workers_at_exit(_: object = None) -> None:
    """When a process ends, Python would send SIGTERM, which workers do not hear, and wait."""
    Finalize(None, _end_workers, exitpriority=100)


_end_workers_at_exit()
register_after_fork(_end_workers, _end_workers_at_exit)  # a fork forgets what is to be done at its end
