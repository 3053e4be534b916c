"""How every entry script ends: quietly, with one line for the user's mistake, or with our traceback.

Like all that a script needs to understand its command line, this imports neither torch nor Detectron2.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable
from datetime import timedelta

from revisit.errors import InterruptedRunError, StoppedRunError, UserError

TIMEOUT = timedelta(minutes=30)  # how long processes of a run wait for each other


def run_command(main: Callable[[], None]) -> None:
    """Run an entry script's ``main``: UserError becomes one line and its exit code, Ctrl-C exit code 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        main()
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # torchrun's other processes on this machine found the same
            print(f"{'' if isinstance(error, StoppedRunError) else 'error: '}{error}", file=sys.stderr)
        sys.exit(error.EXIT_CODE)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(InterruptedRunError.EXIT_CODE)


def natural(text: str) -> int:
    """A whole number above 0, as a type of argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text}")
    return int(text)
