"""How much a detector has found, and where that is nothing, what a lower threshold would draw."""

from collections.abc import Sequence

import numpy as np

from projects.Predict.file_predictions import FilePredictor
from projects.Predict.predictions import Predictor, heads_of
from revisit.data.sources.records import sample

from detectron2.config import CfgNode

LOWEST = 0.05  # score, of what is looked for again; below it are guesses alone
MOST = 100  # images that are looked at again
STEP = 0.05  # thresholds are multiples of it


def objects_in_words(cfg: CfgNode, predictor: FilePredictor, threshold: float) -> str:
    """How many objects score at least the threshold, and in how many images there is none."""
    count, scores = len(predictor.images), f"at least {threshold:g} (--score-threshold)"
    counts = [len(image["objects"]) for image in predictor.images]
    if total := sum(counts):
        empty = counts.count(0)
        without = f"; {empty} of {count} images have none" if empty else ""
        return f"{total} objects score {scores}{without}"
    none = f"none of {count} images has an object that scores {scores}"
    files = predictor.seen_whole
    return f"{none}; {advice(cfg, files)}" if files and threshold > LOWEST else none


def advice(cfg: CfgNode, files: Sequence[str]) -> str:
    """Look at image files again, with the score threshold at LOWEST; returns what that shows."""
    cfg = cfg.clone()
    heads_of(cfg).SCORE_THRESH_TEST = LOWEST
    predictor = Predictor(cfg)
    chosen = [{"file_name": file} for file in sample(files, MOST)]
    scores = np.concatenate([_scores(predictor, record) for record in chosen])
    some = f"in {len(chosen)} of them " if len(chosen) < len(files) else ""
    if not len(scores):
        return f"{some}no object scores even {LOWEST:g}: train for longer, or with more labels"
    threshold = np.floor((scores.max() - 1e-6) / STEP) * STEP
    would_draw = (scores > threshold).sum()
    return f"{some}the highest score is {scores.max():.2f}: --score-threshold {threshold:g} would draw {would_draw}"


def _scores(predictor: Predictor, record: dict) -> np.ndarray:
    predicted = predictor(record, predictor.read(record))
    return predicted["instances"].scores.cpu().numpy()
