"""What an evaluation plugs into: two registries, and the names of scores."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple

from torch import nn

from revisit.data.sources.records import Records
from revisit.evaluation.features import Features
from revisit.keys import dotted_keys, is_among, is_read
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.engine import HookBase
from fvcore.common.registry import Registry


class Score(NamedTuple):
    """One number of an evaluation, as metrics.json names it."""

    name: str
    better: Literal["higher", "lower", ""] = "higher"  # "": neither
    unit: str = "%"


# How a finetuned network is tested, as patterns of keys.
OF_TESTS = ("*_TEST", "TEST.DETECTIONS_PER_IMAGE", "TEST.KEYPOINT_OKS_SIGMAS", "TEST.RESIZE_BACK")

EVALUATOR_REGISTRY = Registry("EVALUATOR")
EVALUATOR_REGISTRY.__doc__ = """
Evaluators of finetuned networks: Detectron2's ``DatasetEvaluator``, called with the name of a data set and the config.
Each has

- ``TYPES``: the values of ``evaluator_type`` in a data set's metadata that choose it;
- ``SCORES``: a ``Score`` for each result over the whole data set, the main one first;
- ``NETWORKS``: the meta-architectures that this main score is of, where a data set does not say it; may be empty;
- ``records``, where what is predicted is not the data set's own records: a function of its name.
"""


def evaluator_for(dataset_name: str) -> type | None:
    """The evaluator that a data set's metadata ask for; None if there is none."""
    kind = MetadataCatalog.get(dataset_name).get("evaluator_type")
    return next((evaluator for _, evaluator in EVALUATOR_REGISTRY if kind in evaluator.TYPES), None)


PRETRAINING_EVALUATION_REGISTRY = Registry("PRETRAINING_EVALUATION")
PRETRAINING_EVALUATION_REGISTRY.__doc__ = """
Evaluations while pretraining: subclasses of ``PretrainingEvaluation``. Those that are on run together, in the order in
which they were registered.
"""


class PretrainingEvaluation:
    """Judges a network while it is pretrained, before the first step, every TEST.EVAL_PERIOD and at the end.

    One object serves a whole training, so that ``hooks`` can use what ``evaluate`` has found.
    """

    SCORES: ClassVar[tuple[Score, ...]] = ()  # what ``evaluate`` returns; none: it only draws
    REPLACES: ClassVar[bool] = False  # whether an unreadable image may be left out for another one

    def __init__(self, cfg: CfgNode):
        self.cfg = cfg

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        """Whether the config asks for it."""
        raise NotImplementedError

    @classmethod
    def data_sets(cls, cfg: CfgNode) -> list[str]:
        """Names of the data sets that it reads, which are looked at before a run starts."""
        return []

    @classmethod
    def check(cls, cfg: CfgNode, records: Mapping[str, Records]) -> None:
        """Raise UserError for what it cannot judge, log a warning of what is doubtful.

        ``records`` are those of its data sets that are on disk, by name.
        """

    @classmethod
    def options(cls, cfg: CfgNode) -> dict[str, object]:
        """Plain values, by name, that its scores depend on. Scores are compared while these stay the same."""
        return {}

    def evaluate(self, model: nn.Module, features_of: Callable[[str], Features | None]) -> dict[str, float]:
        """Scores by name; called in all processes, and {} in all but the main one.

        ``features_of`` a data set, by name, computes ``Features`` once in all evaluations, in all processes; None in
        all but the main one.
        """
        raise NotImplementedError

    def hooks(self) -> list[HookBase]:
        """What follows an evaluation in the same iteration, before its checkpoint."""
        return []


def evaluations_on(cfg: CfgNode) -> list[type[PretrainingEvaluation]]:
    """Those that a pretraining's config asks for; none for another network."""
    if not method_of(cfg):
        return []
    return [evaluation for _, evaluation in PRETRAINING_EVALUATION_REGISTRY if evaluation.is_on(cfg)]


def scored_by(cfg: CfgNode) -> dict[str, object]:
    """Plain values, by name, that the scores of a run depend on."""
    if method_of(cfg):
        return {evaluation.__name__: evaluation.options(cfg) for evaluation in evaluations_on(cfg) if evaluation.SCORES}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in dotted_keys(cfg).items()}
    settings = {name: value for name, value in values.items() if is_among(name, OF_TESTS) and is_read(cfg, name)}
    return {"test": list(cfg.DATASETS.TEST), **settings}


def is_scored_as(cfg: CfgNode, before: Mapping[str, object] | None) -> bool:
    """Whether scores of a resumed run compare with those of a state that holds ``before``, its ``scored_by``. What
    earlier versions left out counts as the same, and None for all."""
    now = scored_by(cfg)
    left_out = {} if method_of(cfg) else now
    return before is None or {**left_out, **before} == now
