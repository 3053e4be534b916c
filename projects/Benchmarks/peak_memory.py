"""How much memory a call takes, at its peak, beyond what its process had before."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(make: Callable[..., Callable[[], object]], *arguments: object) -> int:
    """Bytes that ``make(*arguments)()`` takes at its peak, in a process of its own: resident memory on the CPU, what
    tensors take on a GPU.

    Args:
        make: prepares the call, in that process; it and the arguments can be pickled.

    Raises:
        OSError: on a system without Linux's /proc.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (make, arguments))


def _measured(make: Callable[..., Callable[[], object]], arguments: tuple[object, ...]) -> int:
    call = make(*arguments)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    _RESET.write_text("5")  # the highest resident size is counted anew
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return 1024 * int(found[1])
