"""What a job's command lines say before anything runs: the data that they read, and how long they train."""

import ast
import functools
import itertools
from pathlib import Path

import projects.ToyScenes  # noqa: F401  registers its data sets
from projects.PaperTables.jobs import TRAIN, Job
from revisit.data.catalog import datasets_root, get_records
from revisit.engine.schedule import resolve_schedule
from revisit.engine.setup import count_images, make_config
from revisit.errors import UserError

from detectron2.config import CfgNode


def missing_inputs(job: Job) -> str:
    """What the job would not find on this machine: data sets, checkpoints of others; "" if nothing is missing."""
    missing = []
    for command in job.commands:
        if command[0] == "tools/convert_to_d2.py" and len(job.commands) == 1 and not Path(command[1]).is_file():
            missing.append(f"{command[1]}, a checkpoint of others")
        elif "--config-file" in command:
            missing += [name for name in _data_sets(command) if _size(name) is None and not _is_drawn(name, job)]
            folder = _config(command).get("LABEL_PROPAGATION", {}).get("DATA")
            if folder and not (datasets_root() / folder).is_dir():
                missing.append(str(datasets_root() / folder))
    return ", ".join(dict.fromkeys(missing))


def data_facts(command: tuple[str, ...]) -> tuple[str, ...]:
    """How many images the command's data sets have, those of them that are on disk and have a fixed name."""
    sizes = {name: _size(name) for name in _data_sets(command) if ":" not in name}
    return tuple(f"{name}: {size} images" for name, size in sizes.items() if size is not None)


def cost_of(job: Job) -> str:
    """The training's iterations, ``92,400 iterations of 256 images``, or what else the job does, in words.

    Data sets that are not on disk count with their published sizes.
    """
    command = job.commands[0]
    if command[0] != TRAIN:
        return {"-c": "a plot"}.get(command[0], "frozen features" if "--config-file" in command else command[0])
    options = _options(command)
    for key in ("MODEL.WEIGHTS", "OUTPUT_DIR"):  # neither is there yet
        options.pop(key, None)
    words = list(itertools.chain.from_iterable(options.items()))
    cfg = make_config(command[command.index("--config-file") + 1], words, for_here=False)
    if cfg.SOLVER.MAX_ITER <= 0:
        try:
            resolve_schedule(cfg, count_images(cfg, assume_missing=True))
        except UserError:
            return f"{cfg.SOLVER.EPOCHS} epochs"
    return f"{cfg.SOLVER.MAX_ITER:,} iterations of {cfg.SOLVER.IMS_PER_BATCH} images"


def _options(command: tuple[str, ...]) -> dict[str, str]:
    """The KEY VALUE pairs that end a command; of a key given twice the last value counts."""
    backwards = zip(command[-2::-2], command[::-2], strict=False)
    return dict(reversed(list(itertools.takewhile(lambda pair: pair[0].isupper(), backwards))))


def _data_sets(command: tuple[str, ...]) -> list[str]:
    options, data = _options(command), _config(command).get("DATASETS", {})
    parts = [options.get(f"DATASETS.{part}", data.get(part, ())) for part in ("TRAIN", "TEST")]
    names = [ast.literal_eval(part) if isinstance(part, str) else part for part in parts]
    return list(dict.fromkeys(itertools.chain.from_iterable(names)))


def _config(command: tuple[str, ...]) -> dict:
    return CfgNode.load_yaml_with_base(command[command.index("--config-file") + 1])


def _is_drawn(name: str, job: Job) -> bool:
    """Whether a data set is a folder that a job before this one draws."""
    return any(name.startswith(f"folder:{needed.result.parent}/") for needed in job.needs)


@functools.cache
def _size(name: str) -> int | None:
    try:
        return len(get_records(name))
    except UserError:
        return None
