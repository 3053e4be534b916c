"""Which start, within so many minutes: successive halving (Jamieson and Talwalkar, AISTATS 2016) over starts.

All starts train for a short while, the better half twice as long, and so on; the last two as long as the recipe says,
with one seed after the other as long as there is time.
"""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from projects.common.tables import markdown_table
from projects.CompareStarts.comparison import Task, make_job
from projects.CompareStarts.starts import Start
from projects.PaperTables.cells import Cell
from projects.PaperTables.jobs import Job
from revisit.engine.data_checks import inspect_training
from revisit.engine.solver import resolve_schedule
from revisit.errors import expect
from revisit.evaluation.main_score import LOWER_IS_BETTER
from revisit.files import strict_json, written_whole

from detectron2.config import CfgNode

PILOT = 20  # iterations that are timed before lengths are chosen
LEAST = 0.02  # share of the recipe's length that the last two train at least
SURE = 2  # standard errors


class Round(NamedTuple):
    """Trainings of one length by one seed, what they took and what was decided by them."""

    iterations: int
    seed: int
    starts: Sequence[str]
    seconds: float = 0.0  # of interrupted attempts too
    scores: Mapping[str, float] = {}  # empty until all are done
    decision: str = ""


class Budget:
    """Chooses among starts within ``minutes``. OUTPUT/choice/rounds.json keeps what was done and decided, so that
    the same call after an interruption repeats nothing.

    Args:
        starts: at least two; of those that score alike the first ones go on.
        count: labelled images that all learn from.
        run: brings jobs to their end, those that are not done.
        parallel: how many of them at a time.
    """

    def __init__(
        self,
        task: Task,
        starts: Mapping[str, Start],
        count: int,
        *,
        minutes: float,
        root: Path,
        run: Callable[[list[Job]], None],
        parallel: int,
    ):
        self._task, self._starts, self._count = task, starts, count
        self._minutes, self._root, self._run, self._parallel = minutes, root, run, parallel
        self._sign = -1 if "/".join(task.score) in LOWER_IS_BETTER else 1
        self._record = root / "choice/rounds.json"
        recorded = json.loads(self._record.read_text()) if self._record.is_file() else []
        self.rounds = [_read_round(*fields) for fields in recorded]
        self._begun = 0  # rounds, by this call
        self._iteration = self._around = 0.0  # seconds of an iteration, and of a training around its iterations

    def choose(self, seeds: Sequence[int]) -> str:
        """A sentence: which start, how sure, and what more minutes would settle.

        Args:
            seeds: of the last two starts; the first one is that of all shorter trainings. More follow where there is
                time and they do not tell the starts apart.

        Raises:
            UserError: not even short trainings fit into the minutes.
        """
        solver, names = self._solver(seeds[0]), list(self._starts)
        self._go(solver, PILOT, seeds[0], names[:1], 1)
        halvings = math.ceil(math.log2(len(names) / 2))
        longest = self._longest(solver, halvings)
        for number in range(halvings, 0, -1):
            kept = max(2, math.ceil(len(names) / 2))
            names = self._go(solver, longest >> number, seeds[0], names, kept)
        finals: list[Round] = []
        for seed in itertools.chain(seeds, itertools.count(max(seeds) + 1)):
            enough = len(finals) >= len(seeds) and self._verdict(finals)[1]
            if finals and (enough or not self._fits(longest)):
                return self._verdict(finals)[0]
            self._go(solver, longest, seed, names, 2)
            finals.append(self.rounds[self._begun - 1])

    def table(self) -> str:
        """Every round and its decision, in Markdown."""
        headers = ["iterations", "seed", "/".join(self._task.score), "minutes", "decision"]
        rows = []
        for each in self.rounds:
            scores = ", ".join(f"{name} {each.scores[name]:.4g}" for name in self._order(each))
            numbers = [f"{each.iterations:,}", str(each.seed), scores or "begun", f"{each.seconds / 60:.1f}"]
            rows.append([*numbers, each.decision])
        return markdown_table(headers, rows)

    def _solver(self, seed: int) -> CfgNode:
        cfg = self._task.load(self._task.options_for(self._count, seed))
        resolve_schedule(cfg, inspect_training(cfg)[0])
        return cfg.SOLVER

    def _longest(self, solver: CfgNode, halvings: int) -> int:
        """Iterations of the last trainings: the recipe's, or as many as leave time for all."""
        sizes = [len(self._starts)]
        while sizes[-1] > 2:
            sizes.append(max(2, math.ceil(sizes[-1] / 2)))
        batches = [math.ceil(size / self._parallel) for size in sizes]
        work = self._iteration * sum(n / 2 ** (halvings - rank) for rank, n in enumerate(batches))
        before = self.rounds[0].seconds + self._around * sum(batches)
        fits, least = int((60 * self._minutes - before) / work), math.ceil(LEAST * solver.MAX_ITER)
        needed = math.ceil((before + least * work) / 60)
        found = f"--budget {self._minutes:g}m is too short for {len(self._starts)} starts"
        expect(fits >= least, f"{found}: expected at least {needed}m, or fewer starts")
        return min(fits, solver.MAX_ITER) >> halvings << halvings

    def _go(self, solver: CfgNode, iterations: int, seed: int, names: Sequence[str], kept: int) -> list[str]:
        """The best ``kept`` of these starts, by one round: as recorded where it has ended, else run now."""
        number, self._begun = self._begun, self._begun + 1
        if number == len(self.rounds):
            self.rounds.append(Round(iterations, seed, list(names)))
        each = self.rounds[number]
        same = (each.iterations, each.seed, list(each.starts)) == (iterations, seed, list(names))
        expect(same, f"{self._record} is of other starts, seeds or minutes: give another --output, or remove it")
        cells = [self._cell(solver, name, each) for name in names]
        if not each.scores:
            self._save()
            began = time.perf_counter()
            try:
                self._run([cell.jobs[0] for cell in cells])
            finally:
                each = self.rounds[number] = each._replace(seconds=each.seconds + time.perf_counter() - began)
                self._save()
            each = each._replace(scores={cell.row: cell.values()[0] for cell in cells})
            self.rounds[number] = each._replace(decision=self._decision(each, kept))
            self._save()
        self._iteration = _seconds_of_iteration(cells[0].jobs[0]) or self._iteration
        batches = math.ceil(len(names) / self._parallel)
        self._around = max(0.0, each.seconds / batches - iterations * self._iteration)
        return self._order(each)[:kept]

    def _cell(self, solver: CfgNode, name: str, each: Round) -> Cell:
        length = () if each.iterations == solver.MAX_ITER else shortened(solver, each.iterations)
        suffix = f"_{each.iterations}_iterations" if length else ""
        where = {"root": self._root, "length": length, "suffix": suffix}
        job = make_job(self._task, name, self._starts[name], self._count, each.seed, **where)
        return Cell(name, str(self._count), None, [job], self._task.score)

    def _fits(self, iterations: int) -> bool:
        """Whether both of the last starts can train once more."""
        seconds = math.ceil(2 / self._parallel) * (self._around + iterations * self._iteration)
        return sum(each.seconds for each in self.rounds) + seconds <= 60 * self._minutes

    def _order(self, each: Round) -> list[str]:
        """Best first; an undefined score is the worst."""
        goodness = {name: self._sign * score for name, score in each.scores.items()}
        return sorted(each.scores, key=lambda name: math.inf if math.isnan(goodness[name]) else -goodness[name])

    def _decision(self, each: Round, kept: int) -> str:
        if len(each.starts) == 1:
            return "timed"
        left = self._order(each)[kept:]
        return f"without {', '.join(left)}: the worse half" if left else "the last two, by the mean of all seeds"

    def _verdict(self, finals: Sequence[Round]) -> tuple[str, bool]:
        """Which start, how sure, what more minutes would settle; and whether it is sure."""
        means = {name: statistics.mean(each.scores[name] for each in finals) for name in finals[0].starts}
        best, other = sorted(means, key=lambda name: -self._sign * means[name])
        gains = [self._sign * (each.scores[best] - each.scores[other]) for each in finals]
        gain, minutes = statistics.mean(gains), statistics.mean(each.seconds for each in finals) / 60
        score, seeds = "/".join(self._task.score), f"{len(gains)} seed{'s' * (len(gains) > 1)}"
        text = f"Start from {best}: {score} {means[best]:.2f}, {other} has {means[other]:.2f} ({seeds}, "
        text += f"{finals[0].iterations:,} iterations"
        if len(gains) == 1:
            return f"{text}). One seed says nothing of chance: a second one takes {minutes:.0f} minutes.", False
        spread = statistics.stdev(gains)
        error = spread / math.sqrt(len(gains))
        text = f"{text}; difference {gain:.2f}, standard error {error:.2f})"
        if gain > SURE * error:
            return f"{text}.", True
        more = math.ceil((SURE * spread / gain) ** 2) - len(gains) if gain > 0 else math.inf
        settled = f"{more} more seeds, {more * minutes:.0f} minutes, would settle a difference of this size"
        return f"{text}. That may be chance: {settled if more < 100 else 'take either'}.", False

    def _save(self) -> None:
        self._record.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(self._record) as temporary:
            temporary.write_text(strict_json(self.rounds) + "\n")


def _read_round(iterations: int, seed: int, starts: list, seconds: float, scores: dict, decision: str) -> Round:
    scores = {name: math.nan if score is None else score for name, score in scores.items()}
    return Round(iterations, seed, starts, seconds, scores, decision)


def shortened(solver: CfgNode, iterations: int) -> tuple[str, ...]:
    """KEY VALUE pairs of a training of so many iterations with the same course of the learning rate."""
    steps = (max(1, round(step * iterations / solver.MAX_ITER)) for step in solver.STEPS)
    lengths = {
        "SOLVER.EPOCHS": 0,
        "SOLVER.STEP_EPOCHS": (),
        "SOLVER.MAX_ITER": iterations,
        "SOLVER.STEPS": tuple(dict.fromkeys(steps)),
        "SOLVER.WARMUP_ITERS": min(solver.WARMUP_ITERS, iterations // 10),
    }
    return tuple(str(word) for pair in lengths.items() for word in pair)


def _seconds_of_iteration(job: Job) -> float:
    """The last that the training's metrics say; 0 where they say none."""
    path = job.result.parent / "metrics.json"
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((metrics["time"] for metrics in map(json.loads, reversed(lines)) if "time" in metrics), 0.0)
