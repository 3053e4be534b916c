"""Which of a run's scores says how well it went."""

import re
from collections.abc import Mapping

from revisit.errors import expect
from revisit.evaluation.registry import (
    EVALUATOR_REGISTRY,
    PRETRAINING_EVALUATION_REGISTRY,
    Score,
    evaluations_on,
    evaluator_for,
)
from revisit.keys import architecture_of
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

DIRECTIONS = {"higher": 1, "lower": -1, "": 0}


def scores_of_network(architecture: str) -> tuple[Score, ...]:
    """The scores of a meta-architecture that learns from labels, the main one first; () where none are known."""
    evaluators = (evaluator for _, evaluator in EVALUATOR_REGISTRY if architecture in evaluator.NETWORKS)
    return next((evaluator.SCORES for evaluator in evaluators), ())


def scores_of(cfg: CfgNode) -> tuple[Score, ...]:
    """The scores that a run of this config may be about, the main one first; () where none are known.

    Those of the evaluations that are on in pretraining, else those of the evaluator of the first of DATASETS.TEST.
    """
    if method_of(cfg):
        scores = (score for evaluation in evaluations_on(cfg) for score in evaluation.SCORES)
        return tuple(score for score in scores if score.better)
    evaluator = evaluator_for(cfg.DATASETS.TEST[0]) if cfg.DATASETS.TEST else None
    return evaluator.SCORES if evaluator else scores_of_network(architecture_of(cfg))


def main_score(cfg: CfgNode) -> str:
    """The name of the score that a run of this config is about, "" where nothing says which."""
    scores = scores_of(cfg)
    return scores[0].name if scores else ""


def find_score(cfg: CfgNode, results: Mapping[str, float]) -> float:
    """The main score among flattened results, of the first of DATASETS.TEST where there are several.

    Raises:
        UserError: it is not among them.
    """
    score = main_score(cfg)
    first = next(iter(cfg.DATASETS.TEST), "")
    values = [results[name] for name in (score, f"{first}/{score}", f"{score}/{first}") if name in results]
    where = f"the evaluation of {first}" if first else "the evaluation"
    expect(len(values) > 0, f"no {score} in {where}: found {', '.join(results) or 'nothing'}")
    return float(values[0])


def pretraining_scores() -> tuple[Score, ...]:
    """Of all registered evaluations while pretraining: the scores that are better for being higher or lower."""
    scores = (score for _, evaluation in PRETRAINING_EVALUATION_REGISTRY for score in evaluation.SCORES)
    return tuple(score for score in scores if score.better)


def direction(name: str) -> int:
    """1 if a higher value of the score of this name is better, -1 if a lower one is, 0 if neither is known.

    A data set may come before the score's name with a slash, or follow it so, a class after a dash.
    """
    of_labels = (score for _, evaluator in EVALUATOR_REGISTRY for score in evaluator.SCORES)
    for score in (*pretraining_scores(), *of_labels):
        is_of_score = name == score.name or name.startswith((f"{score.name}/", f"{score.name}-"))
        if is_of_score or name.endswith(f"/{score.name}"):
            return DIRECTIONS[score.better]
    return 0


def is_of_class(name: str) -> bool:
    """Whether a number is that of a class, whose name follows a dash: bbox/AP-cat, or SET/bbox/AP-cat.

    Names of data sets, and those of other numbers, may have dashes.
    """
    if any(name.startswith(f"{score.name}/") for score in pretraining_scores()):
        return False  # the name of a data set follows
    tasks = {score.name.partition("/")[0] for _, evaluator in EVALUATOR_REGISTRY for score in evaluator.SCORES}
    *_, of_task = re.split(rf"(?:^|/)(?:{'|'.join(map(re.escape, tasks))})/", name)
    last = name.rpartition("/")[2] if of_task == name else of_task
    return "/" in name and "-" in last


def is_better(score: str, value: float, than: float) -> bool:
    """Whether a value of a score is better than another one; nothing is better for being undefined (NaN)."""
    if value != value or than != than:
        return value == value
    return value < than if direction(score) < 0 else value > than
