"""Memory that a run frees, kept for its next step where the CPU computes."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
LARGEST = 2**31 - 1


def keep_freed_memory(device: str) -> bool:
    """Let this process keep what it frees, if ``device`` is the CPU; False where the C library has no such option.

    glibc gives large blocks back to the kernel, which zeroes their pages when the next step asks for them again: half
    of the CPU time of a training on large batches, and most of that of frozen features. Results stay the same; the
    process is up to a seventh larger.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if device != "cpu" or mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST))
