"""Time two ways to do the same thing, in turns, and compare them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from tqdm import tqdm


def now() -> float:
    """Seconds of a clock, behind all that a GPU was given to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each repeat of each part, after one that does not count; parts take turns, so that a machine that is
    busy now and then is so for all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in tqdm(range(repeats + 1), desc="repeats", leave=False):
        for name, part in parts.items():
            start = now()
            part()
            if repeat:
                seconds[name].append(now() - start)
    return seconds


def compare(seconds: dict[str, list[float]], ours: str, reference: str, images: int) -> dict[str, object]:
    """Images a second of both, median and range over repeats, and the ratio of the medians: above 1, ours is faster."""
    rates = {name: sorted(images / s for s in values) for name, values in seconds.items()}
    result: dict[str, object] = {"ratio": statistics.median(rates[ours]) / statistics.median(rates[reference])}
    for name in (ours, reference):
        result[f"{name}_images_per_second"] = statistics.median(rates[name])
        result[f"{name}_range"] = [round(rates[name][0], 1), round(rates[name][-1], 1)]
    return result
