"""How far a run has come, so that a number of half a run is never taken for a result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.run_folder import FINAL, checkpoints_of_run, iteration_of

DAMAGED = 10**12  # iterations: a checkpoint that cannot be read claims to be of a later one
_NON_FINITE = re.compile(r"iteration_(\d+)_process_\d+")


class State(NamedTuple):
    """What became of a run."""

    kind: str  # finished | unfinished | stopped | untrained
    text: str  # the same in words, with the iterations
    notes: tuple[str, ...] = ()

    @property
    def so_far(self) -> bool:
        """Whether its numbers are those of a part of the run."""
        return self.kind in ("unfinished", "stopped")


def state_of(folder: Path, series: dict[str, list[tuple[int, float]]], max_iter: int) -> State:
    """Read a run's state off its folder.

    Args:
        series: of its metrics.json.
        max_iter: SOLVER.MAX_ITER; 0 if nothing tells it.
    """
    checkpoints = [iteration_of(path) for path in checkpoints_of_run(folder)]
    trained = series.get("total_loss") or series.get("lr") or []
    last = max([trained[-1][0] if trained else -1, *(n for n in checkpoints if n < DAMAGED)])
    final = folder / f"{FINAL}.pth"
    end = iteration_of(final) if final.is_file() else -1
    of_all = f"{last + 1} of {max_iter} iterations" if max_iter else f"{last + 1} iterations, of how many is not known"
    notes = [f"an earlier run of this folder is in {path.name}" for path in sorted(folder.glob("earlier_run_*"))]
    non_finite = _last_non_finite(folder)
    if end >= DAMAGED:
        notes.append(f"{final.name} is there but cannot be read")
    # A finished run that was told to go on for longer has metrics of later iterations than its result.
    if 0 <= end < DAMAGED and last <= end:
        if non_finite is not None:
            notes.append(f"it met a loss that was not finite at iteration {non_finite}, and went on from a checkpoint")
        return State("finished", f"finished, {end + 1} iterations", tuple(notes))
    if non_finite is not None and non_finite >= last:
        return State(
            "stopped", f"stopped by a loss that was not finite at iteration {non_finite}; {of_all}", tuple(notes)
        )
    if last >= 0:
        if 0 <= end < DAMAGED:
            notes.append(f"it had finished {end + 1} iterations ({final.name}) and was told to go on")
        missing = "" if end >= 0 else f", no {final.name}"
        return State("unfinished", f"unfinished: {of_all}{missing}", tuple(notes))
    if (folder / "evaluation.json").is_file() or (folder / "results.json").is_file():
        return State("untrained", "evaluation only", tuple(notes))
    if (folder / "log.txt").is_file() or (folder / "metrics.json").is_file():
        return State("unfinished", "started, no iteration written yet", tuple(notes))
    return State("untrained", "dry run only" if (folder / "dry_run.json").is_file() else "no training", tuple(notes))


def _last_non_finite(folder: Path) -> int | None:
    names = (_NON_FINITE.match(path.name) for path in folder.glob("non_finite/*"))
    return max((int(name[1]) for name in names if name), default=None)
