#!/usr/bin/env python
"""How often does a sentence of compare_starts name a difference of equal starts? By simulation: at most 5 % should.

    python studies/compare_starts/false_alarms.py
    python studies/compare_starts/false_alarms.py --trials 500 --seeds 3 --sentences probe

Scores are those of equal starts with a part that a seed, which draws the images, gives to all of them alike, and noise
of each training: any number, coarse steps of half the noise or the whole, or one training in ten that collapses. The
sentences are those of --labels (of a start, for one number of labels and four), of --time (halvings and looks after
each seed included), of --how until-flat (all that are not called equal) and of --how probe (the same), whose images
differ in how hard they are.
"""

import argparse
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from projects.CompareStarts.budget import Budget, Round
from projects.CompareStarts.flatness import ALPHA, compare_ends, overlap_factor
from projects.CompareStarts.label_curves import LabelCurve, equivalences, sentence
from projects.CompareStarts.probe import Probe, equal_to_best
from projects.CompareStarts.starts import Start
from projects.CompareStarts.task import Task
from projects.Paper.paper_tables import GivenBackbone
from projects.Rows.leave_image_out import Interval, balanced_accuracy, root_mean_square, with_interval
from revisit.engine.command import run_command
from revisit.markdown import markdown_table

Trial = Callable[[np.random.Generator], bool]  # whether a sentence names a difference

COUNTS = (50, 200, 800, 2000)  # of labelled images
MINUTE = 60.0  # of a made-up training, s
COLLAPSED = -8.0  # standard deviations of the noise
NOISES: Mapping[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "any score": lambda rng, noise: noise,
    "steps of half the noise": lambda rng, noise: np.round(2 * noise) / 2,
    "steps of the noise": lambda rng, noise: np.round(noise),
    "one in ten collapses": lambda rng, noise: np.where(rng.random(noise.shape) < 0.1, COLLAPSED, noise),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="comparisons of each kind")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 5], help="numbers of seeds")
    parser.add_argument("--sentences", nargs="+", choices=SENTENCES, default=list(SENTENCES), help="which ones")
    args = parser.parse_args()
    print(markdown_table(["sentence", "scores", "of", "starts", "differ, %"], []))
    for name in args.sentences:
        for what, trial in SENTENCES[name](args.seeds):
            share = share_of_alarms(trial, args.trials)
            print(f"| {name} | {' | '.join(what)} | {100 * share:.1f} |", flush=True)
    error = 100 * math.sqrt(ALPHA * (1 - ALPHA) / args.trials)
    print(f"\n{args.trials:,} comparisons each: the standard error of a share of {ALPHA:.0%} is {error:.1f} %")


def share_of_alarms(trial: Trial, trials: int) -> float:
    """Of so many comparisons of equal starts, always the same ones."""
    rng = np.random.default_rng(0)
    return sum(trial(rng) for _ in range(trials)) / trials


def drawn_scores(rng: np.random.Generator, noise: str, starts: int, of_seeds: np.ndarray) -> np.ndarray:
    """(starts, seeds) scores of equal starts, in standard deviations of their noise around 30."""
    return 30 + of_seeds + NOISES[noise](rng, rng.normal(size=(starts, *of_seeds.shape)))


def drawn_seeds(rng: np.random.Generator, seeds: int) -> np.ndarray:
    """(seeds,) what a seed's images give to all starts alike; whole numbers, so that coarse scores stay coarse."""
    return np.round(2 * rng.normal(size=seeds))


def labels_sentences(seeds: list[int]) -> Iterator[tuple[list[str], Trial]]:
    for noise, count, labels in product(NOISES, seeds, (1, len(COUNTS))):
        trial = partial(labels_differ, noise=noise, seeds=count, labels=labels)
        yield [noise, f"{count} seeds, {labels} numbers of labels", "2"], trial


def labels_differ(rng: np.random.Generator, noise: str, seeds: int, labels: int) -> bool:
    of_seeds = drawn_seeds(rng, seeds)
    scores: dict[str, dict[int, list[float]]] = {"a": {}, "b": {}}
    for count in COUNTS[:labels]:
        for name, row in zip(scores, drawn_scores(rng, noise, 2, of_seeds), strict=True):
            scores[name][count] = row.tolist()
    one, other = (LabelCurve(name, by_labels) for name, by_labels in scores.items())
    return not sentence("a", "b", equivalences(one, other), seeds=seeds).startswith("No difference")


def flat_sentences(seeds: list[int]) -> Iterator[tuple[list[str], Trial]]:
    for noise, count, starts in product(NOISES, seeds, (2, 5)):
        yield [noise, f"{count} seeds", str(starts)], partial(ends_differ, noise=noise, seeds=count, starts=starts)


def ends_differ(rng: np.random.Generator, noise: str, seeds: int, starts: int) -> bool:
    scores = drawn_scores(rng, noise, starts, drawn_seeds(rng, seeds))
    verdict = compare_ends({str(number): row.tolist() for number, row in enumerate(scores)})
    return len(verdict.equal) < starts - 1


def budget_sentences(seeds: list[int]) -> Iterator[tuple[list[str], Trial]]:
    for noise, count, times, starts in product(NOISES, seeds, (1, 2), (2, 5)):
        trial = partial(choice_differs, noise=noise, seeds=count, most=times * count, starts=starts)
        yield [noise, f"{count} seeds, time for {times * count}", str(starts)], trial


def choice_differs(rng: np.random.Generator, noise: str, seeds: int, most: int, starts: int) -> bool:
    budget = DrawnBudget(rng, noise, starts, most)
    budget.measure(1)
    text = budget.choose(range(1, seeds + 1), budget.names)
    return text.startswith("Start from") and "may be chance" not in text and "says nothing of chance" not in text


class DrawnBudget(Budget):
    """Its trainings take a minute each, and have drawn scores; there is time for ``most`` seeds of the last two."""

    SOLVER = types.SimpleNamespace(MAX_ITER=400, WARMUP_ITERS=0, LR_SCHEDULER_NAME="WarmupMultiStepLR", STEPS=())

    def __init__(self, rng: np.random.Generator, noise: str, starts: int, most: int):
        self._rng, self._noise = rng, noise
        self.names = [f"start {number}" for number in range(starts)]
        before = {2: 1, 5: 9}[starts]  # the pilot, and halvings from 5 to 3 to 2
        given = {name: Start(GivenBackbone("random")) for name in self.names}
        options = {"minutes": before + 2 * most + 0.5, "root": Path("nowhere"), "run": print, "parallel": 1}
        super().__init__(Task("", (), False, "", 16, ("bbox", "AP"), ()), given, 16, **options)
        self._test.detectable = lambda differences: math.inf  # of the rest of the sentence, and slow

    def _solver(self, seed: int) -> types.SimpleNamespace:
        return self.SOLVER

    def _go(self, solver, iterations, seed, names, kept) -> list[str]:
        scores = drawn_scores(self._rng, self._noise, len(names), drawn_seeds(self._rng, 1))[:, 0]
        of_starts = dict(zip(names, scores.tolist(), strict=True))
        self.rounds.append(Round(iterations, seed, list(names), MINUTE * len(names), of_starts))
        self._begun += 1
        self._around, self._iteration = MINUTE, 0.0
        return self._kept(self.rounds[-1], kept)


def probe_sentences(seeds: list[int]) -> Iterator[tuple[list[str], Trial]]:
    """Of one seed."""
    for score, images, starts in product(("class", "depth"), (4, 8, 30), (2, 5, 10)):
        yield (
            [score, f"{images} images", str(starts)],
            partial(probes_differ, score=score, images=images, starts=starts),
        )


def probes_differ(rng: np.random.Generator, score: str, images: int, starts: int) -> bool:
    numbers = np.repeat(np.arange(images), rng.integers(1, 9, images))  # of 1 to 8 regions each
    hard, drawn = rng.normal(size=images), {"class": drawn_accuracy, "depth": drawn_rmse}[score]
    classes = np.unique(rng.integers(0, 3, len(numbers)), return_inverse=True)[1]
    intervals = [drawn(rng, numbers, classes, hard + 0.5 * rng.normal(size=images)) for _ in range(starts)]
    factor = overlap_factor(starts, images)
    probes = [Probe(str(number), {}, each.widened(factor), 0.0) for number, each in enumerate(intervals)]
    probes.sort(key=lambda probe: probe.score.value, reverse=score == "class")
    return len(equal_to_best(probes)) < starts


def drawn_accuracy(rng: np.random.Generator, numbers: np.ndarray, classes: np.ndarray, hard: np.ndarray) -> Interval:
    """The mean of two classifiers' accuracies that are mostly right and wrong together."""
    is_right = rng.random(len(numbers)) < 1 / (1 + np.exp(hard[numbers] - 0.4))
    also = np.where(rng.random(len(numbers)) < 0.3, rng.permutation(is_right), is_right)
    wrong = (classes + 1) % (classes.max() + 1)
    known = torch.from_numpy(classes), torch.from_numpy(numbers)
    scores = [
        balanced_accuracy(torch.from_numpy(np.where(right, classes, wrong)), *known) for right in (is_right, also)
    ]
    return with_interval(lambda weights: np.mean([score(weights) for score in scores], axis=0), len(hard))


def drawn_rmse(rng: np.random.Generator, numbers: np.ndarray, classes: np.ndarray, hard: np.ndarray) -> Interval:
    errors = torch.from_numpy(rng.normal(size=len(numbers)) * np.exp(0.5 * hard[numbers]))
    return with_interval(root_mean_square(errors, torch.zeros_like(errors), torch.from_numpy(numbers)), len(hard))


SENTENCES: Mapping[str, Callable[[list[int]], Iterator[tuple[list[str], Trial]]]] = {
    "labels": labels_sentences,
    "until-flat": flat_sentences,
    "time": budget_sentences,
    "probe": probe_sentences,
}

if __name__ == "__main__":
    run_command(main)
