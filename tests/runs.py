"""Whole training runs inside the test's process."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import ROOT
from tiny import tiny_config

from revisit.checkpoint.metrics_file import read_metrics
from revisit.engine.dry_run import dry_run
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.trainer import RevisitTrainer
from revisit.keys import Facts, resolve_auto_values

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.utils import comm
from detectron2.utils.env import seed_all_rng


def run_config(output: Path, *options: object) -> CfgNode:
    """A tiny pretraining recipe on the 60 images of ToyScenes: 7 iterations an epoch."""
    cfg = tiny_config("DATASETS.TRAIN", ("toy_scenes_train",), "OUTPUT_DIR", str(output), *options)
    resolve_auto_values(cfg, Facts(images=60, processes=comm.get_world_size()))
    cfg.freeze()
    return cfg


def dry_recipe(output: Path, *options: object, num_images: int = 60, num_processes: int = 1) -> dict:
    """What a dry run of ``run_config`` writes."""
    dry_run(run_config(output, *options), Facts(images=num_images, processes=num_processes))
    return json.loads((output / "dry_run.json").read_text())


def run(
    cfg: CfgNode,
    *,
    trainer_class: type[RevisitTrainer] = PretrainTrainer,
    resume: bool = False,
    hook: HookBase | None = None,
) -> RevisitTrainer:
    """Train from the start or the last checkpoint, perhaps with one more hook."""
    seed_all_rng(cfg.SEED)
    trainer = trainer_class(cfg)
    trainer.register_hooks([hook])
    trainer.resume_or_load(resume)
    trainer.train()
    return trainer


def train(output: Path, *options: object, **how: object) -> PretrainTrainer:
    """``run`` with ``run_config``."""
    return run(run_config(output, *options), **how)


def assert_resumes(
    whole: Path, parts: Path, iteration: int, *options: object, train: Callable[..., RevisitTrainer] = train
) -> RevisitTrainer:
    """A run in ``parts`` that resumes after ``iteration`` of the whole one, from its checkpoint, ends as that does."""
    parts.mkdir()
    shutil.copy(whole / f"model_{iteration:07d}.pth", parts)
    trainer = train(parts, *options, resume=True)
    assert trainer.start_iter == iteration + 1
    one, other = (load(folder / "model_final.pth") for folder in (whole, parts))
    for part in ("model", "trainer"):
        assert_same(one[part], other[part])
    return trainer


def train_for_module(toy_root: Path, output: Path, *options: object, **how: object) -> Path:
    """``train`` for a fixture that lives longer than the environment of one test; returns ``output``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETECTRON2_DATASETS", str(toy_root))
        patch.chdir(ROOT)
        train(output, *options, **how)
    return output


def assert_numbers_are_explained(output: Path) -> None:
    """docs/training.md has a row for every number that a run wrote."""
    written = {name for name in read_metrics(output / "metrics.json") if not name.startswith("rank_")}  # Detectron2's
    _, reading = (ROOT / "docs/training.md").read_text().split("## Reading a run\n")
    rows = [line for line in reading.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert written <= explained, written - explained


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def assert_same(one: object, other: object, name: str = "") -> None:
    """Every tensor and every value of two checkpoints is the same, bit by bit, but for the record of their configs."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one.keys() - {"config"}:
            assert_same(one[key], other[key], f"{name}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), name
        for n, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{name}/{n}")
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name
