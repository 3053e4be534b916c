"""How far a long piece of work has come, and how long the rest takes."""

import sys
from collections.abc import Iterable

from tqdm import tqdm

IN_A_TERMINAL = {"delay": 2.0}  # seconds
IN_A_LOG = {"mininterval": 60.0, "maxinterval": 60.0, "delay": 10.0}


def share_terminal() -> None:
    """In one of several processes whose bars lie in one line of a terminal: each moves as seldom as in a log, or they
    would write over each other all the time."""
    IN_A_TERMINAL.update(IN_A_LOG)


def progress(title: str, unit: str, items: Iterable | None = None, *, total: int | None = None, done: int = 0) -> tqdm:
    """``items`` with a bar that moves in a terminal; without them the caller moves it, from ``done`` to ``total``.

    A log file has it once a minute, and nothing of what takes less than ten seconds; a terminal nothing of two.
    """
    how_often = IN_A_TERMINAL if sys.stderr.isatty() else IN_A_LOG
    return tqdm(items, desc=title, unit=unit, total=total, initial=done, **how_often)
