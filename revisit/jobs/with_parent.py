"""Commands that end with the process that has started them, however that ends. On Linux; elsewhere they outlive it.

    python with_parent.py PID PROGRAM ARGUMENTS...

PID is the parent's. The program takes this process' place and gets SIGTERM when the parent ends; a training then writes
a checkpoint. This file is a script of its own, which imports nothing slow.
"""

import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; an exec keeps what it sets


def start_child(words: list[str], **options: Any) -> subprocess.Popen:
    """A command that ends with this process, and with this thread; ``options`` are those of ``subprocess.Popen``."""
    return subprocess.Popen([sys.executable, "-IS", os.path.abspath(__file__), str(os.getpid()), *words], **options)


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # it ended before
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
