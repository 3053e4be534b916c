"""A command that gets SIGTERM when the process that has started it ends, however that ends. On Linux alone.

    python with_parent.py PID PROGRAM ARGUMENTS...

PID is the parent's. The program takes this process' place, and a training then writes a checkpoint and ends.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; an exec keeps what it sets


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
