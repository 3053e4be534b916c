"""What may be forked: a process whose threads are really gone, with workers that need not be forks."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from revisit.threads import cores, thread_pool

LIBC = ctypes.CDLL(None)
FORKS = int(os.environ.get("FUZZ_CASES", 100))
PATIENCE = 30  # seconds


@pytest.fixture
def slow_end() -> Iterator[ctypes.c_uint]:
    """A key of threads' own values; a thread that has set one needs so many microseconds, after Python, for its end."""
    key = ctypes.c_uint()
    LIBC.pthread_key_create(ctypes.byref(key), ctypes.cast(LIBC.usleep, ctypes.c_void_p))
    yield key
    LIBC.pthread_key_delete(key)


def test_after_a_pool_its_threads_are_gone_also_where_a_library_takes_long_to_clear_up_and_after_an_error(slow_end):
    numbers = []

    def work(_: int) -> None:
        LIBC.pthread_setspecific(slow_end, ctypes.c_void_p(100_000))
        numbers.append(threading.get_native_id())

    with pytest.raises(ZeroDivisionError), thread_pool(3) as pool:
        list(pool.map(work, range(9)))
        raise ZeroDivisionError
    assert numbers and not [number for number in numbers if Path(f"/proc/self/task/{number}").exists()]


def look(_: int) -> None:
    """What takes OpenCV's lock of all threads."""
    small = cv2.resize(np.ones((64, 64, 3), np.uint8), (16, 16), interpolation=cv2.INTER_AREA)
    cv2.calcHist([small], [0], None, [256], [0, 256])


def fork_hangs() -> bool:
    child = os.fork()
    if child == 0:
        look(0)
        os._exit(0)
    end = time.monotonic() + PATIENCE
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(1e-3)
    return False


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # torch's threads
def test_a_fork_right_after_a_pool_that_has_called_opencv_can_call_it():
    """One of thousands would hang: FUZZ_CASES forks."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        for _ in range(FORKS):
            with thread_pool(8) as pool:
                list(pool.map(look, range(16)))
            assert not fork_hangs()
    finally:
        cv2.setNumThreads(threads)


def test_cores_are_those_that_a_process_may_use(monkeypatch):
    """Its affinity, and a limit such as a container's; at least one each."""
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert cores() == cores(4) == 1
    finally:
        os.sched_setaffinity(0, mine)
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cores() == 1
