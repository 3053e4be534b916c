"""How long a job is, from its command line, before anything runs."""

from __future__ import annotations

import argparse

from revisit.engine.schedule import resolve_schedule
from revisit.engine.setup import count_images, load_config
from revisit.errors import UserError
from revisit.studies.jobs import Job

TRAIN = "tools/train_net.py"


def cost_of(job: Job) -> str:
    """The training's iterations, or what else the job does, in words."""
    command = job.commands[0]
    if command[0] == TRAIN:
        return _iterations(command[1:])
    if command[0] == "-c":
        return "a plot"
    return "frozen features" if command[0].startswith("projects/") else command[0]


def _iterations(words: tuple[str, ...]) -> str:
    """``92,400 iterations of 256 images``; data sets that are not on disk count with their published sizes."""
    config, options = words[words.index("--config-file") + 1], list(words[words.index("--resume") + 1 :])
    single = {"num_gpus": 1, "num_machines": 1, "resume": False, "dry_run": True}
    keep = [
        (k, v) for k, v in zip(options[::2], options[1::2], strict=True) if k not in ("MODEL.WEIGHTS", "OUTPUT_DIR")
    ]
    cfg = load_config(argparse.Namespace(config_file=config, opts=[word for pair in keep for word in pair], **single))
    if cfg.SOLVER.MAX_ITER <= 0:
        try:
            resolve_schedule(cfg, count_images(cfg, assume_missing=True))
        except UserError:
            return f"{cfg.SOLVER.EPOCHS} epochs"
    return f"{cfg.SOLVER.MAX_ITER:,} iterations of {cfg.SOLVER.IMS_PER_BATCH} images"
