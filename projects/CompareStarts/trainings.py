"""Trainings of other lengths and learning rates than the recipe's: their jobs, scores and costs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from projects.CompareStarts.budget import of_length
from projects.CompareStarts.labelled_parts import HeldOut
from projects.CompareStarts.starts import Starts
from projects.CompareStarts.task import Task
from projects.CompareStarts.trial import Trial
from projects.Paper.cells import read_score
from revisit.checkpoint.metrics_file import last_metric
from revisit.checkpoint.run_folder import FINAL, checkpoints_of_run
from revisit.errors import expect
from revisit.jobs.commands import Job

from detectron2.config import CfgNode

DIVERGED = "Lower SOLVER.BASE_LR"  # in the line with which such a training ends
# Only the last network is scored: other scores would cost time, and none of them chooses a network.
FIXED = {
    "TEST.EVAL_PERIOD": 0,
    "TEST.EVAL_EPOCHS": 0,
    "TEST.KEEP_BEST": False,
    "TEST.PATIENCE": 0,
    "SOLVER.CHECKPOINTS_KEPT": 1,
    "SOLVER.CHECKPOINT_KEPT_EVERY": 0,
}


class Training(NamedTuple):
    """A whole schedule, of ``times`` the recipe's length and ``rate`` times its learning rate."""

    start: str
    labels: int
    seed: int
    times: int = 1
    rate: float = 1.0


class Trainings:
    """What is known of trainings: jobs, and of those that have ended scores and costs."""

    def __init__(
        self,
        task: Task,
        starts: Starts,
        labels: Sequence[int],
        held_out: HeldOut,
        root: Path,
        *,
        gpus: int = 1,
    ):
        self.task = task
        self.starts = starts
        self.held_out = held_out
        self.root = root
        self._gpus = gpus
        (self.test,) = task.load(task.options).DATASETS.TEST
        self.unit, self.metric = task.cost
        self._solvers = {count: self._resolved(count) for count in labels}
        self._jobs: dict[Training, Job] = {}  # a job has the hash of its weights, which takes a while

    def learned(self, labels: int) -> int:
        """How many of so many labelled images a training learns from."""
        return labels - self.held_out.count(labels)

    def iterations(self, training: Training) -> int:
        return self._solvers[training.labels].MAX_ITER * training.times

    def learning_rate(self, training: Training) -> float:
        return self._solvers[training.labels].BASE_LR * training.rate

    def job(self, training: Training) -> Job:
        """The job of a training, whose result has the scores of the held-out images and of the test set."""
        if training not in self._jobs:
            self._jobs[training] = self._make(training)
        return self._jobs[training]

    def _make(self, training: Training) -> Job:
        start, labels, seed, times, _ = training
        solver = self._solvers[labels]
        learned = self.learned(labels)
        rate = f"{self.learning_rate(training):.3g}"
        values = FIXED | {
            "DATASETS.TEST": (self.held_out.data_set(self.task.data, labels, seed), self.test),
            "SOLVER.BASE_LR": rate,
            "SOLVER.CHECKPOINT_PERIOD": min(solver.CHECKPOINT_PERIOD, math.ceil(solver.MAX_ITER / 2)),
        }
        length = of_length(solver, self.iterations(training)) if times > 1 else ()
        pairs = map(str, chain.from_iterable(values.items()))
        held = f"_{labels - learned}_held_out" * (labels > learned)
        trial = Trial(self.task, start, self.starts[start], learned, seed)
        suffix = f"{held}_{times}x_rate_{rate}"
        job = trial.job(self.root, self._gpus, length=(*length, *pairs), suffix=suffix)
        facts = (*job.facts, *self.held_out.facts)
        return replace(job, name=f"{job.name}, {times}x, learning rate {rate}", facts=facts)

    def has_ended(self, training: Training) -> bool:
        """Whether there is nothing more to run: it has its scores, or it has diverged."""
        job = self.job(training)
        return job.done or has_diverged(job)

    def test_score(self, training: Training) -> float:
        return self._score(training, self.test)

    def held_out_score(self, training: Training) -> float:
        return self._score(training, self.held_out.data_set(self.task.data, training.labels, training.seed))

    def seconds(self, training: Training) -> float:
        """What it has cost, its start included, the evaluation at its end not; NaN where nothing says so."""
        return last_metric(self.job(training).result.parent, self.metric)

    def expected_seconds(self, training: Training, like: Training) -> float:
        """By the clock, as far as a shorter one that has ended says it."""
        folder = self.job(like).result.parent
        more = self.iterations(training) - self.iterations(like)
        return last_metric(folder, "wall_seconds") + more * last_metric(folder, "time")

    def remove_networks(self, training: Training, *, final: bool) -> None:
        """Remove the checkpoints of a training that has a result, the last one only if ``final``."""
        job = self.job(training)
        for file in checkpoints_of_run(job.result.parent) if job.done else ():
            if final or file.stem != FINAL:
                file.unlink()

    def _score(self, training: Training, data: str) -> float:
        """NaN where it is undefined or the training has diverged."""
        job = self.job(training)
        return read_score(job.result, f"{data}/{self.task.score_name}") if job.done else math.nan

    def _resolved(self, labels: int) -> CfgNode:
        """The recipe's length and rate, with so many labelled images."""
        solver = self.task.resolved(self.learned(labels), 1).SOLVER
        expect(
            solver.MAX_ITER > 0 and not solver.MINUTES,
            "--how until-flat trains for multiples of the recipe's length: expected SOLVER.MAX_ITER or EPOCHS",
        )
        return solver


def has_diverged(job: Job) -> bool:
    """Whether its last line says that the learning rate is too high: running it again would end alike."""
    return not job.done and job.log.is_file() and DIVERGED in job.last_line
