"""How far a run has come, so that a number of half a run is never taken for a result."""

import re
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.run_folder import FINAL, checkpoints_of_run, iteration_of

DAMAGED = 10**12  # iterations: a checkpoint that cannot be read claims to be of a later one


class RunState(NamedTuple):
    """What became of a run."""

    kind: str  # finished | unfinished | stopped | untrained
    text: str  # the same in words, with the iterations
    notes: list[str]

    @property
    def so_far(self) -> bool:
        """Whether its numbers are those of a part of the run."""
        return self.kind in ("unfinished", "stopped")


def state_of(folder: Path, series: dict[str, list[tuple[int, float]]], max_iter: int) -> RunState:
    """Read a run's state off its folder.

    Args:
        series: of its metrics.json.
        max_iter: SOLVER.MAX_ITER; 0 if it is not known.
    """
    ends = {path.stem: iteration_of(path) for path in checkpoints_of_run(folder)}
    trained = series.get("total_loss") or series.get("lr") or [(-1, 0.0)]
    last = max(trained[-1][0], *(end for end in [-1, *ends.values()] if end < DAMAGED))
    end = ends.get(FINAL, -1)
    of_all = f"{last + 1} of {max_iter} iterations" if max_iter else f"{last + 1} iterations, of how many is not known"
    notes = [f"an earlier run of this folder is in {path.name}" for path in sorted(folder.glob("earlier_run_*"))]
    names = (re.match(r"iteration_(\d+)_process_\d+", path.name) for path in folder.glob("non_finite/*"))
    non_finite = max((int(name[1]) for name in names if name), default=-1)
    if end >= DAMAGED:
        notes.append(f"{FINAL}.pth is there but cannot be read")
    elif end >= max(last, 0):  # metrics of later iterations: a finished run that was resumed with more of them
        if non_finite >= 0:
            notes.append(f"it met a loss that was not finite at iteration {non_finite} and resumed from a checkpoint")
        return RunState("finished", f"finished, {end + 1} iterations", notes)
    if non_finite >= max(last, 0):
        return RunState("stopped", f"stopped by a loss that was not finite at iteration {non_finite}; {of_all}", notes)
    if last >= 0:
        if 0 <= end < DAMAGED:
            notes.append(f"it had finished {end + 1} iterations ({FINAL}.pth) and was resumed with more to do")
        return RunState("unfinished", f"unfinished: {of_all}{'' if end >= 0 else f', no {FINAL}.pth'}", notes)
    files = {path.name for path in folder.iterdir()}
    if files & {"evaluation.json", "results.json"}:
        return RunState("untrained", "evaluation only", notes)
    if files & {"log.txt", "metrics.json"}:
        return RunState("unfinished", "started, no iteration written yet", notes)
    return RunState("untrained", "dry run only" if "dry_run.json" in files else "no training", notes)
