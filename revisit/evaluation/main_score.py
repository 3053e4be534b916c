"""Which of a run's scores says how well it went."""

from collections.abc import Mapping

from revisit.errors import expect
from revisit.keys import DETECTORS
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

PRETRAINING_SCORE = "knn_top1"
# By meta-architecture, as Detectron2's evaluators name them.
FINETUNING_SCORES = {
    **dict.fromkeys(DETECTORS, "bbox/AP"),
    "SemanticSegmentor": "sem_seg/mIoU",
    "DepthEstimator": "depth/rmse",
}
# By the main one, what the evaluators write of a data set as a whole; a dash and a class's name may follow some.
SCORES = {
    "bbox/AP": tuple(f"{of}/AP{part}" for of in ("bbox", "segm", "keypoints") for part in ("", 50, 75, "s", "m", "l")),
    "sem_seg/mIoU": ("sem_seg/mIoU", "sem_seg/fwIoU", "sem_seg/mACC", "sem_seg/pACC"),
    "depth/rmse": ("depth/rmse", "depth/absrel", "depth/delta1", "depth/delta2", "depth/delta3"),
}
LOWER_IS_BETTER = ("depth/rmse", "depth/absrel")


def main_score(cfg: CfgNode) -> str:
    """The name of the score that a run of this config is about, "" where nothing says which."""
    return PRETRAINING_SCORE if method_of(cfg) else FINETUNING_SCORES.get(cfg.MODEL.META_ARCHITECTURE, "")


def why_not_judged(cfg: CfgNode) -> str:
    """What is lacking to score the network by labels, in words; "" where nothing is."""
    if not cfg.DATASETS.TEST:
        return "DATASETS.TEST is empty"
    if method_of(cfg) and not cfg.KNN_EVAL.BANK:
        return "KNN_EVAL.BANK names no images that vote"
    return ""


def nothing_to_evaluate(cfg: CfgNode) -> str:
    """What is lacking to evaluate the network at all, in words; "" where nothing is."""
    return "" if cfg.MONITOR.IMAGES else why_not_judged(cfg)


def find_score(cfg: CfgNode, results: Mapping[str, float]) -> float:
    """The main score among flattened results, of the first of DATASETS.TEST where there are several.

    Raises:
        UserError: it is not among them.
    """
    score, first = main_score(cfg), cfg.DATASETS.TEST[0]
    found = [results[name] for name in (score, f"{first}/{score}", f"{score}/{first}") if name in results]
    expect(len(found) > 0, f"no {score} in the evaluation of {first}: found {', '.join(results) or 'nothing'}")
    return float(found[0])


def is_better(score: str, value: float, than: float) -> bool:
    """Whether a value of a score is better than another one; nothing is better for being undefined (NaN)."""
    if value != value or than != than:
        return value == value
    return value < than if score in LOWER_IS_BETTER else value > than
