"""Time ways to do the same thing, in turns, and compare them; how much memory one takes."""

import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from revisit.progress import progress


def now() -> float:
    """Seconds of a clock, after all that a GPU was given to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timer(call: Callable[[], object], clock: Callable[[], float] = now) -> Callable[[], float]:
    """Makes the call and returns the seconds of the ``clock`` that it took."""

    def seconds() -> float:
        start = clock()
        call()
        return clock() - start

    return seconds


def compare(timers: dict[str, Callable[[], float]], repeats: int, images: int) -> dict[str, object]:
    """Images per second of each form, median and range of the repeats, after one that does not count.

    They take turns, so that a machine that is busy now and then is so for all of them. ``timers`` give the seconds of
    ours, of other forms of ours and, last, of the reference, to whose rate ``ratio`` and ``NAME_ratio`` are.
    """
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in progress("repeats", "run", range(repeats + 1)):
        for name, values in seconds.items():
            values.append(timers[name]())
    rates = {name: sorted(images / s for s in values[1:]) for name, values in seconds.items()}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    (_, ours), *others, (_, reference) = medians.items()
    result: dict[str, object] = {"ratio": ours / reference}
    result |= {f"{name}_ratio": rate / reference for name, rate in others}
    for name, values in rates.items():
        result[f"{name}_images_per_second"] = medians[name]
        result[f"{name}_range"] = [round(values[0], 1), round(values[-1], 1)]
    return result


def peak_memory(make: Callable[..., Callable[[], object]], *arguments: object) -> int:
    """Bytes that ``make(*arguments)()`` takes at its peak, in a process of its own: resident memory on the CPU, by
    Linux's /proc, what tensors take on a GPU."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (make, *arguments))


def _measured(make: Callable[..., Callable[[], object]], *arguments: object) -> int:
    call = make(*arguments)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size is counted from here
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)[1])
