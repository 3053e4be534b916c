"""What a pretraining has changed: the scores before its first step, and all later ones next to them."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from projects.Reports.main_score import is_better
from revisit.engine.evaluation_hooks import EVALUATION_HOOK_REGISTRY
from revisit.evaluation.registry import PretrainingEvaluation, Score, is_scored_as, scored_by

from detectron2.engine import DefaultTrainer, HookBase

logger = logging.getLogger(__name__)

# Measured in docs/results/tournament.md.
WHAT_HELPS = (
    "What helped small runs most: two crops instead of small ones (VIEWS.NUM_SMALL 0), an objective without a queue, a "
    "low temperature (0.1), AdamW, more iterations"
)


class ScoreChange(NamedTuple):
    """A score before the first step and now. With several test sets the name of one follows the score's."""

    name: str
    before: float
    now: float
    score: Score

    @property
    def is_worse(self) -> bool:
        return bool(self.score.better) and is_better(self.score.name, self.before, self.now)

    def __str__(self) -> str:
        return f"{self.name} from {self.before:.2f} to {self.now:.2f} {self.score.unit}".rstrip()


class StartScores(HookBase):
    """Evaluates the network before the first step, and compares the scores of all later evaluations with these.

    A score below the start's is warned of. At half time and at the end one line says what became of each, so this
    belongs after what may end the run. A run that resumes compares with its first step, unless it evaluates otherwise.

    Args:
        evaluations: those that are on.
        period: iterations between evaluations.
    """

    def __init__(self, evaluations: Sequence[PretrainingEvaluation], period: int):
        self._scores = [score for evaluation in evaluations for score in evaluation.SCORES]
        self._cfg = evaluations[0].cfg
        self._period = period
        self._start: dict[str, float] = {}

    def state_dict(self) -> dict:
        return {"options": scored_by(self._cfg), "start": self._start}

    def load_state_dict(self, state: dict) -> None:
        if is_scored_as(self._cfg, state["options"]):
            self._start = state["start"]
        else:
            logger.info("the evaluation is another than at the first step: no score is compared")

    def before_train(self) -> None:
        if self.trainer.start_iter:
            return
        logger.info("evaluating the network as it is before the first step")
        self._start = self.trainer.test(self.trainer.cfg, self.trainer.model, self.trainer.evaluators)
        self.trainer.storage.put_scalars(smoothing_hint=False, **self._start)

    def after_step(self) -> None:
        if not self.trainer.is_evaluated:
            return
        changes = list(self._changes())
        worse = [change for change in changes if change.is_worse]
        for change in worse:
            logger.warning(f"{change}: so far this run has made the network worse (docs/training.md: Below the start)")
        done = self.trainer.iter + 1
        is_half_time = done - self._period < self.trainer.max_iter / 2 <= done
        if changes and (self.trainer.is_last_step or is_half_time):
            when = "training" if self.trainer.is_last_step else "half time: training"
            what = ", ".join(map(str, changes))
            advised = worse and not self.trainer.cfg.MODEL.WEIGHTS  # of runs that began at random
            logger.info(f"{when} has taken {what}" + (f". {WHAT_HELPS}" if advised else ""))

    def _changes(self) -> Iterator[ScoreChange]:
        """Of every score that was there at the start and is now."""
        for name, before in self._start.items():
            score = next((score for score in self._scores if f"{name}/".startswith(f"{score.name}/")), None)
            if score and name in self.trainer.results:
                yield ScoreChange(name, before, self.trainer.results[name], score)


@EVALUATION_HOOK_REGISTRY.register()
def start_scores(trainer: DefaultTrainer) -> StartScores | None:
    """Of a pretraining that gives scores."""
    evaluations = trainer.evaluators or ()
    scored = any(evaluation.SCORES for evaluation in evaluations)
    return StartScores(evaluations, trainer.cfg.TEST.EVAL_PERIOD) if scored else None
