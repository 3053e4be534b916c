"""Time two ways to do the same thing, in turns, and compare them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from tqdm import tqdm


def now() -> float:
    """Seconds of a clock, after all that a GPU was given to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timer(call: Callable[[], object]) -> Callable[[], float]:
    """Makes the call and returns the seconds that it took."""

    def seconds() -> float:
        start = now()
        call()
        return now() - start

    return seconds


def measure(timers: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each repeat of each part, after one that does not count; parts take turns, so that a machine that is
    busy now and then is so for all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in tqdm(range(repeats + 1), desc="repeats", leave=False):
        for name, values in seconds.items():
            values.append(timers[name]())
    return {name: values[1:] for name, values in seconds.items()}


def compare(seconds: dict[str, list[float]], ours: str, reference: str, images: int) -> dict[str, object]:
    """Images per second of both, median and range over repeats, and the ratio of the medians: above 1, ours is
    faster."""
    rates = {name: sorted(images / s for s in seconds[name]) for name in (ours, reference)}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    result: dict[str, object] = {"ratio": medians[ours] / medians[reference]}
    for name, values in rates.items():
        result[f"{name}_images_per_second"] = medians[name]
        result[f"{name}_range"] = [round(values[0], 1), round(values[-1], 1)]
    return result
