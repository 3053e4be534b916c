"""How far a long piece of work has come, and how long the rest takes."""

import sys

from tqdm import tqdm

IN_A_LOG = {"mininterval": 60.0, "maxinterval": 60.0, "delay": 10.0}  # seconds


def progress(title: str, total: int, unit: str, done: int = 0) -> tqdm:
    """A bar that moves in a terminal. A log file has it once a minute, and nothing of what takes less."""
    how_often = {} if sys.stderr.isatty() else IN_A_LOG
    return tqdm(desc=title, total=total, unit=unit, initial=done, **how_often)
