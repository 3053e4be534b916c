"""Which start, within so many minutes: successive halving (Jamieson and Talwalkar, AISTATS 2016) over starts.

All starts train for a short while, the better half twice as long, and so on; the last two as long as the recipe says,
with one seed after the other as long as there is time. No training is shorter than the recipe's warm-up, and starts
that score alike stay or go together.
"""

import bisect
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from projects.CompareStarts.sequential_test import POWER, SequentialTest, seeds_to_settle, standard_error
from projects.CompareStarts.starts import RANDOM, Start, Starts
from projects.CompareStarts.task import SEED, Task
from projects.CompareStarts.trial import Trial
from projects.Paper.cells import Cell
from projects.Paper.paper_tables import GivenBackbone
from revisit.checkpoint.metrics_file import last_metric
from revisit.engine.schedules import schedule_reads
from revisit.errors import expect
from revisit.files import strict_json, write_whole
from revisit.jobs.commands import Job
from revisit.jobs.record import left_by_earlier_call
from revisit.markdown import markdown_table

from detectron2.config import CfgNode

PILOT = 20  # iterations that are timed before lengths are chosen
LEAST = 0.02  # share of the recipe's length that the last two train at least


class Round(NamedTuple):
    """Trainings of one length by one seed, what they took and what was decided by them."""

    iterations: int
    seed: int
    starts: Sequence[str]
    seconds: float = 0.0  # of interrupted attempts too
    scores: Mapping[str, float] = {}  # empty until all are done; NaN: the evaluation has no such score
    decision: str = ""


class Budget:
    """Chooses among starts within ``minutes``. OUTPUT/choice/rounds.json keeps what was done and decided, so that
    the same calls after an interruption repeat nothing.

    Args:
        starts: at least two.
        count: labelled images that all learn from.
        run: brings jobs to their end, those that are not done.
        parallel: how many of them at a time.
        gpus: of each training.
        report: called after every round.
    """

    def __init__(
        self,
        task: Task,
        starts: Starts,
        count: int,
        *,
        minutes: float,
        root: Path,
        run: Callable[[list[Job]], None],
        parallel: int,
        gpus: int = 1,
        report: Callable[[Round], None] = lambda ended: None,
    ):
        self._task = task
        self._starts = {RANDOM: Start(GivenBackbone("random"))} | dict(starts)
        self._count = count
        self._minutes = minutes
        self._root = root
        self._parallel = parallel
        self._gpus = gpus
        self._run = run
        self._report = report
        self._names = list(starts)
        self._record = root / "choice/rounds.json"
        with left_by_earlier_call(self._record):
            recorded = json.loads(self._record.read_text()) if self._record.is_file() else []
            self.rounds = [_read_round(*fields) for fields in recorded]
        self.is_of_others = False  # the record: nothing of it may be written over
        self._test = SequentialTest()
        self._begun = 0  # rounds, by this call
        self._iteration = self._around = 0.0  # seconds of an iteration, and of a training around its iterations

    def pilot(self, seed: int) -> Job:
        """The short training that is timed, of a start that needs no pretraining before it."""
        return self._cell(self._solver(seed), self._timed, Round(PILOT, seed, [self._timed])).jobs[0]

    def measure(self, seed: int) -> None:
        """Time a short training, before anything that takes long.

        Raises:
            UserError: not even the shortest trainings fit into the minutes.
        """
        solver = self._solver(seed)
        self._go(solver, PILOT, seed, [self._timed], 1)
        number = _halvings(len(self._names))
        needed = math.ceil((self._spent + self._seconds(solver, len(self._names), number, _least(solver, number))) / 60)
        expect(
            self._longest(solver, len(self._names), number) > 0,
            f"--time {self._minutes:g}m is too short for {len(self._names)} starts: expected at least {needed}m, as "
            f"no training is shorter than the warm-up of {_warm_up(solver)} iterations, or fewer starts",
        )

    def choose(self, seeds: Sequence[int], names: Sequence[str]) -> str:
        """A sentence: which start, how sure, and what more minutes would settle. ``measure`` comes before.

        Args:
            seeds: of the last two starts; the first one is that of all shorter trainings. More follow where there is
                time, they do not tell the starts apart, and no file is of a seed alone.
            names: the starts.

        Raises:
            UserError: no start has the score.
        """
        solver = self._solver(seeds[0])
        names = list(names)
        finals = []
        for number in range(_halvings(len(names)), -1, -1):
            iterations = _length(solver, self._longest(solver, len(names), number), number)
            if not self._is_longer(iterations):
                return self._verdict([self._last_of(names)])[0]
            if number:
                names = self._go(solver, iterations, seeds[0], names, max(2, math.ceil(len(names) / 2)))
        more = () if self._has_files_of_seeds(names) else itertools.count(max(seeds) + 1)
        for seed in itertools.chain(seeds, more):
            left = self._seeds_left(iterations, len(names))
            if finals and (len(finals) >= len(seeds) or not left):
                sentence, is_sure = self._verdict(finals, left)
                if is_sure or not left:
                    return sentence
            self._go(solver, iterations, seed, names, len(names))
            finals.append(self.rounds[self._begun - 1])
        return self._verdict(finals)[0]

    def plan(self, seed: int) -> str:
        """What ``choose`` would do, in words."""
        solver = self._solver(seed)
        number = _halvings(len(self._names))
        rounds = f"{number} round{'s' * (number > 1)} of shorter trainings, then " * bool(number)
        return (
            f"{rounds}two starts with {_least(solver, number):,} to {solver.MAX_ITER:,} iterations each, "
            "one seed after the other"
        )

    def table(self) -> str:
        """Every round and its decision, in Markdown."""
        headers = ["iterations", "seed", self._task.score_name, "minutes", "decision"]
        rows = []
        for each in self.rounds:
            row = [
                f"{each.iterations:,}",
                str(each.seed),
                self.scores(each) or "begun",
                f"{each.seconds / 60:.1f}",
                each.decision,
            ]
            rows.append(row)
        return markdown_table(headers, rows)

    def scores(self, each: Round) -> str:
        """A round's scores, best first."""
        return ", ".join(f"{name} {each.scores[name]:.4g}" for name in self._order(each))

    @property
    def _timed(self) -> str:
        given = (name for name in self._names if self._starts[name].is_given)
        return next(given, RANDOM)

    def _has_files_of_seeds(self, names: Sequence[str]) -> bool:
        """Whether the labelled images, or one of these starts, are a file for each seed that was asked for."""
        sources = [self._starts[name].source for name in names]
        files = [source.path for source in sources if isinstance(source, GivenBackbone)]
        return any(SEED in file for file in (*files, self._task.picked))

    @property
    def _spent(self) -> float:
        """Seconds of the rounds that this call has come to."""
        return sum(each.seconds for each in self.rounds[: self._begun])

    def _solver(self, seed: int) -> CfgNode:
        return self._task.resolved(self._count, seed).SOLVER

    def _seconds(self, solver: CfgNode, count: int, number: int, longest: int) -> float:
        """What so many starts take from here on, ``number`` halvings before the last trainings."""
        total = 0.0
        for left in range(number, -1, -1):
            batches = math.ceil(count / self._parallel)
            total += batches * (self._around + self._iteration * _length(solver, longest, left))
            count = max(2, math.ceil(count / 2))
        return total

    def _longest(self, solver: CfgNode, count: int, number: int) -> int:
        """Iterations of the last trainings: the recipe's, or as many as leave time for all before them; 0: none."""
        left = 60 * self._minutes - self._spent
        lengths = range(_least(solver, number), solver.MAX_ITER + 1)
        fitting = bisect.bisect_right(lengths, left, key=lambda n: self._seconds(solver, count, number, n))
        return lengths[fitting - 1] if fitting else 0

    def _is_longer(self, iterations: int) -> bool:
        """Whether trainings of so many iterations may say more than those of the last round."""
        return iterations > (self.rounds[self._begun - 1].iterations if self._begun > 1 else 0)

    def _go(self, solver: CfgNode, iterations: int, seed: int, names: Sequence[str], kept: int) -> list[str]:
        """The best ``kept`` of these starts, and those that score as the last of them, by one round: as recorded where
        it has ended, else run now."""
        number = self._begun
        self._begun += 1
        if number == len(self.rounds):
            self.rounds.append(Round(iterations, seed, list(names)))
        each = self.rounds[number]
        self.is_of_others = True
        expect(
            each[:3] == (iterations, seed, list(names)),
            f"{self._record} is of other starts, seeds or minutes: give another --output, or remove it",
        )
        cells = [self._cell(solver, name, each) for name in names]
        for cell in cells:
            cell.jobs[0].claim()  # what was recorded is of this recipe and these data, too
        self.is_of_others = False
        if not each.scores:
            self._save()
            self._announce(each)
            began = time.perf_counter()
            try:
                self._run([cell.jobs[0] for cell in cells])
            finally:
                each = self.rounds[number] = each._replace(seconds=each.seconds + time.perf_counter() - began)
                self._save()
            each = each._replace(scores={cell.row: cell.values()[0] for cell in cells})
            self.rounds[number] = each = each._replace(decision=self._decision(each, kept))
            self._save()
            self._report(each)
        expect(
            not all(map(math.isnan, each.scores.values())),
            f"no start has a {self._task.score_name}: DATASETS.TEST has nothing that it scores, or all trainings "
            "failed; expected another test set, or --score NAME",
        )
        seconds = last_metric(cells[0].jobs[0].result.parent, "time")
        self._iteration = self._iteration if math.isnan(seconds) else seconds
        batches = math.ceil(len(names) / self._parallel)
        self._around = max(0.0, each.seconds / batches - iterations * self._iteration)
        return self._kept(each, kept)

    def _announce(self, each: Round) -> None:
        what = f"{len(each.starts)} starts, {each.iterations:,} iterations, seed {each.seed}"
        what = what if self._begun > 1 else f"{each.iterations} iterations, to be timed"
        print(f"round {self._begun}: {what}; {self._spent / 60:.0f} of {self._minutes:g} minutes are used", flush=True)

    def _cell(self, solver: CfgNode, name: str, each: Round) -> Cell:
        length = () if each.iterations == solver.MAX_ITER else of_length(solver, each.iterations)
        suffix = f"_{each.iterations}_iterations" if length else ""
        trial = Trial(self._task, name, self._starts[name], self._count, each.seed)
        job = trial.job(self._root, self._gpus, length=length, suffix=suffix)
        return Cell(name, str(self._count), None, [job], self._task.score)

    def _seeds_left(self, iterations: int, count: int) -> int:
        """For how many more seeds there is time, of trainings of so many iterations from each of ``count`` starts."""
        seconds = math.ceil(count / self._parallel) * (self._around + iterations * self._iteration)
        return max(0, math.floor((60 * self._minutes - self._spent) / seconds))

    def _order(self, each: Round) -> list[str]:
        """Best first; of equal ones the first of the round's."""
        return sorted(each.scores, key=lambda name: -self._task.goodness(each.scores[name]))

    def _kept(self, each: Round, count: int) -> list[str]:
        order = self._order(each)
        last = self._task.goodness(each.scores[order[count - 1]])
        return [name for name in order if self._task.goodness(each.scores[name]) >= last]

    def _decision(self, each: Round, count: int) -> str:
        if len(each.starts) == 1:
            return "timed"
        if count == len(each.starts):
            return f"the last {'two' if count == 2 else count}, by the mean of all seeds"
        kept = self._kept(each, count)
        left = [name for name in self._order(each) if name not in kept]
        if len(kept) == count:
            return f"without {', '.join(left)}: the worse half"
        equal = [name for name in kept if each.scores[name] == each.scores[kept[-1]]]
        without = f"without {', '.join(left)}: worse; " * bool(left)
        return f"{without}{', '.join(equal)} score alike and stay"

    def _last_of(self, names: Sequence[str]) -> Round:
        """The last round, with these of its starts alone."""
        last = self.rounds[self._begun - 1]
        return last._replace(starts=list(names), scores={name: last.scores[name] for name in names})

    def _goodness(self, finals: Sequence[Round]) -> dict[str, float]:
        """Of each start, the mean over seeds."""
        return {
            name: statistics.fmean(self._task.goodness(each.scores[name]) for each in finals)
            for name in finals[0].starts
        }

    def _verdict(self, finals: Sequence[Round], seeds_left: int = 0) -> tuple[str, bool]:
        """Which start, how sure, what more minutes would settle; and whether it is sure.

        Args:
            seeds_left: for which there is time yet.
        """
        goodness = self._goodness(finals)
        best, other, *_ = sorted(goodness, key=goodness.get, reverse=True)
        score = self._task.score_name
        how = f"{len(finals)} seed{'s' * (len(finals) > 1)}, {finals[0].iterations:,} iterations"
        value = self._task.sign * goodness[best]
        if goodness[other] == -math.inf:
            return f"Start from {best}: {score} {value:.2f}, {other} has none ({how}).", True
        if goodness[best] == goodness[other]:
            alike = " and ".join(name for name in goodness if goodness[name] == goodness[best])
            return f"No difference: {alike} have {score} {value:.2f} ({how}). Give more minutes, or take any.", False
        minutes = statistics.fmean(each.seconds for each in finals) / 60
        text = f"Start from {best}: {score} {value:.2f}, {other} has {self._task.sign * goodness[other]:.2f} ({how}"
        if len(finals) == 1:
            return f"{text}). One seed says nothing of chance: a second one takes {minutes:.0f} minutes.", False
        gains = [self._task.sign * (each.scores[best] - each.scores[other]) for each in finals]
        is_sure = self._test.look(gains, len(gains) + seeds_left)
        if math.isinf(standard_error(gains)):
            return f"{text}; the difference is the same with every seed, which says nothing of chance).", False
        text = (
            f"{text}; the difference is {statistics.fmean(gains):.2f}, "
            f"chance alone reaches {self._test.limit(gains):.2f})"
        )
        if is_sure:
            return f"{text}.", True
        power = f"{POWER:.0%} of true differences of {self._test.detectable(gains):.2f} would be found"
        total = seeds_to_settle(gains)
        if total is None:
            return f"{text}. That may be chance, though {power}: take either.", False
        more = total - len(gains)
        return (
            f"{text}. That may be chance ({power}): {more} more seeds, {more * minutes:.0f} minutes, "
            "would settle a difference of this size.",
            False,
        )

    def _save(self) -> None:
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._record, strict_json(self.rounds) + "\n")


def _read_round(iterations: int, seed: int, starts: list, seconds: float, scores: dict, decision: str) -> Round:
    scores = {name: math.nan if score is None else score for name, score in scores.items()}
    return Round(iterations, seed, starts, seconds, scores, decision)


def _halvings(count: int) -> int:
    """Of so many starts to two."""
    return math.ceil(math.log2(count / 2))


def _length(solver: CfgNode, longest: int, number: int) -> int:
    """Iterations of the trainings ``number`` halvings before those of ``longest``; 0 where those are none."""
    return max(min(_warm_up(solver), longest), longest >> number)


def _least(solver: CfgNode, number: int) -> int:
    """Iterations of the last trainings at least, so that those ``number`` halvings before are as long as a warm-up."""
    return min(solver.MAX_ITER, max(math.ceil(LEAST * solver.MAX_ITER), _warm_up(solver) << number))


def _warm_up(solver: CfgNode) -> int:
    """Iterations; some schedules have none."""
    return solver.WARMUP_ITERS if schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.WARMUP_ITERS") else 0


def of_length(solver: CfgNode, iterations: int) -> tuple[str, ...]:
    """KEY VALUE pairs of a training of so many iterations with the same course of the learning rate."""
    steps = (max(1, round(step * iterations / solver.MAX_ITER)) for step in solver.STEPS)
    lengths = {
        "SOLVER.EPOCHS": 0,
        "SOLVER.STEP_EPOCHS": (),
        "SOLVER.MAX_ITER": iterations,
        "SOLVER.STEPS": tuple(dict.fromkeys(steps)),
        "SOLVER.WARMUP_ITERS": min(solver.WARMUP_ITERS, iterations // 10),
    }
    return tuple(map(str, itertools.chain.from_iterable(lengths.items())))
