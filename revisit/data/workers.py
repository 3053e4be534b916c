"""How a loader's worker starts and ends: one thread, and signals are the training process's to answer."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.util import Finalize

import cv2
from torch.multiprocessing import _prctl_pr_set_pdeathsig

# What asks a training to stop behind a checkpoint (engine/stop_signals.py); of several, the later in this row is told.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_END = signal.SIGUSR2


def start_worker(worker_id: int) -> None:
    """For ``worker_init_fn`` of every loader here.

    Ctrl-C and SLURM send their signals to all processes. A worker that died of one would break the step that the
    training process still finishes.
    """
    cv2.setNumThreads(0)  # OpenCV would start a thread per core in every worker
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_END, lambda *_: os._exit(0))
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # of a training process that is killed


def _end_workers() -> None:
    for process in multiprocessing.active_children():
        if process.daemon:
            with suppress(ProcessLookupError):
                os.kill(process.pid, _END)


# When a process ends, Python would send SIGTERM, which workers do not hear, and wait.
Finalize(None, _end_workers, exitpriority=100)
