"""The end of a run that continued: is it better than its start, and what is the result?"""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from projects.Reports import best_checkpoint, start_scores  # noqa: F401  (their hooks come before ours)
from revisit.checkpoint.run_folder import FINAL
from revisit.engine.evaluation_hooks import EVALUATION_HOOK_REGISTRY
from revisit.engine.hooks import write_checkpoint
from revisit.errors import expect
from revisit.evaluation.classifiers import BankEvaluation, percent
from revisit.evaluation.judged import why_not_judged
from revisit.evaluation.registry import is_scored_as, scored_by
from revisit.keys import network_of
from revisit.modeling.distributed import unwrap

from detectron2.engine import DefaultTrainer, HookBase
from detectron2.utils import comm

logger = logging.getLogger(__name__)

TRAINED = "model_trained"  # what training made, where model_final is the start
RESAMPLES = 10_000
LEVEL = 95  # % of the interval


class Verdict(NamedTuple):
    """A score of a network and of its start, on the same images."""

    score: str
    images: int
    before: float  # %
    now: float  # %
    low: float  # of the interval of now - before, points
    high: float

    @property
    def word(self) -> str:
        """better, worse, or as good as the interval can tell."""
        if self.low > 0:
            return "better than"
        return "worse than" if self.high < 0 else "as good as"

    def __str__(self) -> str:
        return (
            f"this run is {self.word} its start: {self.score} {self.now:.1f} against {self.before:.1f} % on "
            f"{self.images} images ({self.now - self.before:+.1f}; {LEVEL} % interval {self.low:+.1f} to "
            f"{self.high:+.1f} by a paired bootstrap)"
        )


def compare(score: str, before: Tensor, now: Tensor) -> Verdict:
    """Of whether each of the same images was right, (M,) bool, before and now.

    The interval is that of a paired bootstrap over the images. What an image adds to the difference is 1, 0 or -1, so
    the counts of a resample are drawn from their multinomial distribution.
    """
    change = now.long() - before.long()
    counts = np.array([(change == step).sum().item() for step in (1, -1, 0)])
    drawn = np.random.default_rng(0).multinomial(len(change), counts / len(change), RESAMPLES)
    differences = 100 * (drawn[:, 0] - drawn[:, 1]) / len(change)
    low, high = np.percentile(differences, [(100 - LEVEL) / 2, (100 + LEVEL) / 2]).tolist()
    return Verdict(score, len(change), percent(before), percent(now), low, high)


class AgainstStart(HookBase):
    """Compares the network at the end with that before the first step, by the labelled images of the first of
    DATASETS.TEST: by the linear classifier where it is fitted (KNN_EVAL.LINEAR), else by kNN.

    Where it is worse, model_final.pth becomes the start, and model_trained.pth is what was trained. The last line of
    the log says what came out. Must follow what evaluates before the first step, and what may end the run.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._start: tuple[str, Tensor] | None = None  # a score, and which images were right, on the main process
        self._gave_back = False
        self._line = ""

    def state_dict(self) -> dict:
        return {"start": self._start, "gave_back": self._gave_back, "scored_by": scored_by(self.trainer.cfg)}

    def load_state_dict(self, state: dict) -> None:
        is_as_before = is_scored_as(self.trainer.cfg, state.get("scored_by"))
        self._start = state["start"] if is_as_before else None
        self._gave_back = state["gave_back"]

    def before_train(self) -> None:
        trained = self._folder / f"{TRAINED}.pth"
        expect(
            not self._gave_back,
            f"{FINAL}.pth is the start, which this run has given back: to train on, rename {trained} to it",
        )
        if not self.trainer.start_iter:
            self._start = self._hits()

    def after_step(self) -> None:
        if not self.trainer.is_last_step:
            return
        verdict = self._verdict()
        if verdict is None:
            lacking = why_not_judged(self.trainer.cfg) or "the start was evaluated otherwise"
            self._line = f"whether this run is better than its start nobody can say: {lacking}"
        else:
            self._line = f"{verdict}"
        if comm.all_gather(verdict is not None and verdict.word == "worse than")[0]:
            self._give_back()

    def after_train(self) -> None:
        if self._line and comm.is_main_process():
            logger.log(logging.WARNING if self._gave_back else logging.INFO, self._line)

    def _hits(self) -> tuple[str, Tensor] | None:
        """The score that judges, and which images it found right in the last evaluation."""
        judges = [each for each in self.trainer.evaluators if isinstance(each, BankEvaluation) and each.hits]
        if not judges:
            return None
        test = self.trainer.cfg.DATASETS.TEST[0]
        return judges[-1].SCORES[0].name, judges[-1].hits[test]

    def _verdict(self) -> Verdict | None:
        now = self._hits()
        if now is None or self._start is None:
            return None
        (score, hits), (of_start, before) = now, self._start
        is_same = score == of_start and len(hits) == len(before)
        return compare(score, before, hits) if is_same else None

    def _give_back(self) -> None:
        failure = write_checkpoint(self.trainer, self._folder, TRAINED)
        if failure:
            self._line += f". {FINAL}.pth is worse all the same: {failure}"
            return
        self._gave_back = True
        model = unwrap(self.trainer.model)
        model.give_back_start()
        self.trainer.results = self.trainer.test(self.trainer.cfg, model, self.trainer.evaluators)
        self.trainer.storage.put_scalars(smoothing_hint=False, **self.trainer.results)  # the last are the result's
        self._line += f". {FINAL}.pth is the start, given back; what was trained is {TRAINED}.pth"


@EVALUATION_HOOK_REGISTRY.register()
def against_start(trainer: DefaultTrainer) -> AgainstStart | None:
    """Of a method that continues."""
    return AgainstStart(trainer.folder) if network_of(trainer.cfg).continues else None
