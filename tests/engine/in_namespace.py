"""``python in_namespace.py NAME SCRIPT ARGUMENTS``: what ``ip netns exec NAME python`` does, as a fork can do it."""

import ctypes
import os
import runpy
import sys

if __name__ == "__main__":
    namespace, *sys.argv = sys.argv[1:]
    handle = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    runpy.run_path(sys.argv[0], run_name="__main__")
