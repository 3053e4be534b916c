"""Commands that end with the process that has started them, however that ends. On Linux; elsewhere they outlive it.

    python with_parent.py PID PROGRAM ARGUMENTS...

PID is the parent's. The program takes this process' place and gets SIGTERM when the parent ends; a training then writes
a checkpoint. This file is a script of its own, which imports nothing slow.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; an exec keeps what it sets


def with_parent(words: list[str]) -> list[str]:
    """The words of a command that ends with this process, and with this thread."""
    return [sys.executable, "-IS", os.path.abspath(__file__), str(os.getpid()), *words]


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # it ended before
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
