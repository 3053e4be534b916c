"""Pretraining runs that differ in VIEWS.MAX_IOU, and what came of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import yaml

from revisit.errors import UserError
from revisit.viz.curves import read_metrics


class Run(NamedTuple):
    """One pretraining run."""

    max_iou: float
    loss: list[tuple[int, float]]  # loss_inst by iteration
    score: float


def read_runs(folders: list[Path], evaluations: list[Path], key: str) -> list[Run]:
    """The runs, in the order of their limits.

    Args:
        evaluations: folders with evaluation.json, one a run; empty if the runs' own are meant.
        key: of the score in evaluation.json; a dot goes a level down.

    Raises:
        UserError: a file or a key is missing, or the two lists differ in length.
    """
    if evaluations and len(evaluations) != len(folders):
        raise UserError(
            f"CROP_STUDY.EVALUATIONS names {len(evaluations)} folders for {len(folders)} CROP_STUDY.RUNS: expected "
            "one a run, or none"
        )
    pairs = zip(folders, evaluations or folders, strict=True)
    return sorted((_read_run(*pair, key) for pair in pairs), key=lambda run: run.max_iou)


def _read_run(folder: Path, evaluation: Path, key: str) -> Run:
    paths = [folder / "config.yaml", folder / "metrics.json", evaluation / "evaluation.json"]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} not found: expected a run of tools/train_net.py that was evaluated")
    config, metrics, scores = paths
    loss = read_metrics(metrics).get("loss_inst")
    if not loss:
        raise UserError(f"{metrics} has no loss_inst: expected a pretraining run")
    score = json.loads(scores.read_text())
    for part in key.split("."):
        if not isinstance(score, dict) or part not in score:
            raise UserError(f"{scores} has no {key}: set CROP_STUDY.SCORE to one of its keys")
        score = score[part]
    if not isinstance(score, (int, float)):
        raise UserError(f"{key} of {scores} is no number: set CROP_STUDY.SCORE to one of its keys, as bbox.AP50")
    return Run(float(yaml.safe_load(config.read_text())["VIEWS"]["MAX_IOU"]), loss, float(score))
