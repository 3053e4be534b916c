"""SIGTERM, SIGUSR1 and Ctrl-C during a training: all processes agree to stop after the same step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import torch
import torch.distributed as dist

from revisit.compat.private_names import gloo_group
from revisit.data.loading.workers import STOP_SIGNALS, SignalSafeLoader
from revisit.errors import InterruptedRunError, StoppedRunError

from detectron2.utils import comm

PATIENCE = 30  # seconds


class StopSignals:
    """While entered, records the signals that ask a training to stop, and ``report`` is called with each of them.

    ``received``: 0 if none came, else 1 + the index in STOP_SIGNALS. A second Ctrl-C raises KeyboardInterrupt at once.
    """

    def __init__(self, report: Callable[[int], None] = lambda number: None):
        self.received = 0
        self._report = report
        self._before: dict[int, object] = {}
        self._waits = False

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was among them."""
        return self.received == 1 + STOP_SIGNALS.index(signal.SIGINT)

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._end_wait)
        SignalSafeLoader.waiting = self.waiting
        return self

    def __exit__(self, *error: object) -> None:
        SignalSafeLoader.waiting = nullcontext
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.interrupted:
            raise KeyboardInterrupt
        self.received = max(self.received, 1 + STOP_SIGNALS.index(number))
        self._report(number)
        if self._waits:
            signal.alarm(PATIENCE)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a batch is awaited: a worker that hangs delays a wish to stop by PATIENCE seconds, and no longer.

        Raises StoppedRunError then.
        """
        self._waits = True
        if self.received:
            signal.alarm(PATIENCE)
        try:
            yield
        finally:
            self._waits = False
            signal.alarm(0)

    def _end_wait(self, number: int, frame: FrameType | None) -> None:
        kind = InterruptedRunError if self.interrupted else StoppedRunError
        raise kind(
            f"stopped by {STOP_SIGNALS[self.received - 1].name}, after which no batch came for {PATIENCE} s (does a "
            "disk not answer?): the same command with --resume continues from the last checkpoint"
        )


def ignore_from_now_on() -> None:
    """Let this process end by itself, with exit code 0: the training is over, and there is nothing left to stop."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def announce(number: int) -> None:
    """Say on the terminal what Ctrl-C does."""
    if number == signal.SIGINT and comm.is_main_process():  # without a stream, which the interrupted code may be in
        os.write(2, b"\na checkpoint is written after this step; Ctrl-C again stops at once\n")


class SharedWish:
    """Tells all processes of a run, after the same step, which signal any of them has received.

    One number is reduced over all processes after every step and read after the next one, so that nobody waits for it.
    """

    def __init__(self) -> None:
        self._group = gloo_group() if comm.get_world_size() > 1 else None
        self._sent: tuple[torch.Tensor, dist.Work] | None = None

    def __call__(self, received: int) -> signal.Signals | None:
        """Share what this process has ``received``; returns the signal that all processes know of. All call it."""
        agreed = received
        if self._group is not None:
            agreed = 0
            if self._sent is not None:
                number, work = self._sent
                work.wait()
                agreed = int(number)
            number = torch.tensor(received)
            self._sent = number, dist.all_reduce(number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return STOP_SIGNALS[agreed - 1] if agreed else None
