"""How many cores this process may use, and threads that are gone when they are said to have ended."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_OF_THIS_PROCESS = Path("/proc/self/task")  # Linux's threads by number
_OFTEN = 1e-4  # seconds


def cores(processes: int = 1) -> int:
    """Of this process, where so many share what it may use: its affinity, and its container's share of the time; at
    least 1. A machine may have many more."""
    from joblib import cpu_count  # not at start-up: a second

    return max(1, cpu_count() // processes)


@contextmanager
def thread_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of so many threads. This process may be forked after it.

    Before Python 3.13, a thread counts as ended while libraries still clear up after it. A fork at that moment, one in
    thousands, copies a lock that they hold, such as OpenCV's, and the new process waits for it for ever.
    """
    started = []
    try:
        with ThreadPoolExecutor(threads, initializer=lambda: started.append(threading.get_native_id())) as pool:
            yield pool
    finally:
        for number in started:
            while (_OF_THIS_PROCESS / str(number)).exists():
                time.sleep(_OFTEN)
