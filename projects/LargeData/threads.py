"""Threads that work while a training runs."""

import signal
from collections.abc import Callable
from threading import Thread
from typing import Any


def quiet_thread(work: Callable[..., None], *args: Any) -> Thread:
    """A thread for ``work(*args)``, which does not keep a process from ending, and hears no signals."""

    def run() -> None:
        # Signals are the main thread's to hear, which one that another thread gets does not wake.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        work(*args)

    return Thread(target=run, name=work.__qualname__, daemon=True)
