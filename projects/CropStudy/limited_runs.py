"""Pretraining runs that differ in VIEWS.MAX_IOU, and their scores."""

import json
from pathlib import Path
from typing import NamedTuple

import yaml

from revisit.errors import expect
from revisit.viz.curves import read_metrics, saved_plot

from .overlap import limit_name


class LimitedRun(NamedTuple):
    """One pretraining run."""

    max_iou: float
    loss: list[tuple[int, float]]  # loss_inst by iteration
    score: float


def read_runs(folders: list[str], evaluations: list[str], key: str) -> list[LimitedRun]:
    """The runs, in the order of their limits.

    Args:
        evaluations: folders with evaluation.json, one for each run; none if they are in the runs' own folders.
        key: of the score in evaluation.json; a dot goes a level down.

    Raises:
        UserError: a file or a key is missing, or the two lists differ in length.
    """
    expect(
        not evaluations or len(evaluations) == len(folders),
        f"CROP_STUDY.EVALUATIONS names {len(evaluations)} folders for {len(folders)} CROP_STUDY.RUNS: expected one for "
        "each run, or none",
    )
    pairs = zip(folders, evaluations or folders, strict=True)
    return sorted((_read_run(Path(run), Path(scores), key) for run, scores in pairs), key=lambda run: run.max_iou)


def _read_run(folder: Path, evaluation: Path, key: str) -> LimitedRun:
    config, metrics, scores = folder / "config.yaml", folder / "metrics.json", evaluation / "evaluation.json"
    for path in (config, metrics, scores):
        expect(path.is_file(), f"{path} not found: expected a run of tools/train_net.py that was evaluated")
    loss = read_metrics(metrics).get("loss_inst", [])
    expect(bool(loss), f"{metrics} has no loss_inst: expected a pretraining run")
    score = json.loads(scores.read_text())
    for part in key.split("."):
        found = isinstance(score, dict) and part in score
        expect(found, f"{scores} has no {key}: set CROP_STUDY.SCORE to one of its keys")
        score = score[part]
    number = isinstance(score, (int, float))
    expect(number, f"{key} of {scores} is no number: set CROP_STUDY.SCORE to one of its keys, such as bbox.AP50")
    return LimitedRun(float(yaml.safe_load(config.read_text())["VIEWS"]["MAX_IOU"]), loss, float(score))


def plot_runs(runs: list[LimitedRun], score: str, path: Path) -> None:
    """Loss by iteration for each limit, and the score against the limit."""
    with saved_plot(path, 2) as (losses, scores):
        for run in runs:
            losses.plot(*zip(*run.loss, strict=True), label=limit_name(run.max_iou))
        losses.set(xlabel="iteration", ylabel="loss_inst")
        scores.plot([run.max_iou for run in runs], [run.score for run in runs], marker="o")
        scores.set(xlabel="limit on the IoU (1: none)", ylabel=score)
