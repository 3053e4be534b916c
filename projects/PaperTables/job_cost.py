"""How long a job is, from its command line, before anything runs."""

from __future__ import annotations

from projects.PaperTables.columns import FINETUNE
from projects.PaperTables.jobs import Job
from revisit.engine.schedule import resolve_schedule
from revisit.engine.setup import count_images, make_config
from revisit.errors import UserError


def cost_of(job: Job) -> str:
    """The training's iterations, or what else the job does, in words."""
    command = job.commands[0]
    if command[0] == FINETUNE:
        return _iterations(command[1:])
    if command[0] == "-c":
        return "a plot"
    return "frozen features" if command[0].startswith("projects/") else command[0]


def _iterations(words: tuple[str, ...]) -> str:
    """``92,400 iterations of 256 images``; data sets that are not on disk count with their published sizes."""
    config, options = words[words.index("--config-file") + 1], words[words.index("--resume") + 1 :]
    opts: list[str] = []
    for key, value in zip(options[::2], options[1::2], strict=True):
        opts += () if key in ("MODEL.WEIGHTS", "OUTPUT_DIR") else (key, value)  # neither is there yet
    cfg = make_config(config, opts, for_here=False)
    if cfg.SOLVER.MAX_ITER <= 0:
        try:
            resolve_schedule(cfg, count_images(cfg, assume_missing=True))
        except UserError:
            return f"{cfg.SOLVER.EPOCHS} epochs"
    return f"{cfg.SOLVER.MAX_ITER:,} iterations of {cfg.SOLVER.IMS_PER_BATCH} images"
