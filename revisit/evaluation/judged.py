"""Whether a run has anything to evaluate."""

from revisit.evaluation.registry import evaluations_on
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode


def why_not_judged(cfg: CfgNode) -> str:
    """What is lacking to score the network by labels, in words; "" where nothing is."""
    if not cfg.DATASETS.TEST:
        return "DATASETS.TEST is empty"
    if method_of(cfg) and not cfg.KNN_EVAL.BANK:
        return "KNN_EVAL.BANK names no images that vote"
    return ""


def nothing_to_evaluate(cfg: CfgNode) -> str:
    """What is lacking to evaluate the network at all, in words; "" where nothing is."""
    is_judged = any(evaluation.SCORES for evaluation in evaluations_on(cfg))
    return "" if is_judged else why_not_judged(cfg)
