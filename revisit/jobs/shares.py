"""Parts made by processes that something else has started, torchrun or a SLURM array.

Of n processes number i makes every n-th batch of parts from the i-th on: a batch is one part, or some of very many.
"""

import atexit
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from revisit.errors import UserError, expect
from revisit.files import one_at_a_time
from revisit.jobs.runner import Parts, Runner, in_batches, make_here, missing

_held: list[FileLock] = []  # until this process ends


@dataclass(frozen=True)
class Share(Runner):
    """One of ``count`` processes. They need not run at the same time, but see the same folder."""

    number: int
    count: int

    def run(self, parts: Parts) -> None:
        own = in_batches(range(len(parts.names)), self.count)[self.number :: self.count]
        todo = sorted({*chain(*own)}.intersection(missing(parts)))
        try:
            make_here(parts, todo)
        except UserError as error:
            # Every process says what is wrong with its own parts; of torchrun's, a command's end lets the first one.
            if os.environ.get("LOCAL_RANK", "0") != "0":
                print(f"error: {error}", file=sys.stderr, flush=True)
            raise
        if missing(parts) or not _is_first(parts):
            print(
                f"{parts.title}: process {self.number} of {self.count} has made its parts; the process that finds "
                "all of them continues, or this command once more",
                flush=True,
            )
            raise SystemExit(0)

    def in_charge(self, lock: Path) -> AbstractContextManager:
        return nullcontext()  # several of them make parts, and one puts these together: ``run``

    def alone(self, folder: Path | None) -> AbstractContextManager:
        # An upload to a store is whole, and of the same bytes.
        return one_at_a_time(folder / ".shares.lock") if folder else nullcontext()


def _is_first(parts: Parts) -> bool:
    """Whether no other process puts the parts together, or has done so already."""
    if parts.lock is None:
        return True
    lock = FileLock(parts.lock)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    _held.append(lock)
    atexit.register(parts.lock.unlink, missing_ok=True)  # of what is put together outside ``in_parts``, too
    if done := bool(missing(parts)):  # and deleted since
        parts.lock.unlink(missing_ok=True)
    return not done


def share_of_torchrun() -> Share:
    """By RANK and WORLD_SIZE; on a machine with several GPUs each process takes its own.

    Raises UserError where they are not set, or contradict each other.
    """
    started = "torchrun sets it for each process that it starts: torchrun --nproc-per-node 2 tools/..."
    rank, count, local = (_number(name, started) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    expect(rank < count, f"RANK is {rank} and WORLD_SIZE {count}: expected a rank below it")
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(local % torch.cuda.device_count())
    return Share(rank, count)


def share_of_array() -> Share:
    """By SLURM_ARRAY_TASK_ID and its like. A task that is submitted alone makes all that is missing.

    Raises UserError where they are not set, or contradict each other.
    """
    in_array = "SLURM sets it in a job array: sbatch --array=0-7"
    task = _number("SLURM_ARRAY_TASK_ID", in_array)
    count = _number("SLURM_ARRAY_TASK_COUNT", in_array)
    first = _number("SLURM_ARRAY_TASK_MIN", "SLURM sets it", "0")
    step = _number("SLURM_ARRAY_TASK_STEP", "SLURM sets it", "1")
    expected = first + step * (count - 1)
    is_last_known = "SLURM_ARRAY_TASK_MAX" in os.environ
    last = _number("SLURM_ARRAY_TASK_MAX", "SLURM sets it") if is_last_known else expected
    number, rest = divmod(task - first, max(1, step))
    expect(
        last == expected and rest == 0 and 0 <= number < count,
        f"SLURM_ARRAY_TASK_* say task {task} of {count} tasks from {first} to {last} in steps of {step}: expected "
        "tasks without a gap, as of sbatch --array=0-7",
    )
    return Share(number, count)


def _number(name: str, who: str, by_default: str = "") -> int:
    text = os.environ.get(name, by_default)
    expect(text.isdecimal(), f"{name} is {text!r}: expected a whole number; {who}")
    return int(text)
