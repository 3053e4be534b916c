"""What a run has in its OUTPUT_DIR: checkpoints, what they say of their network, which are outdated; its numbers."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import torch

from revisit.checkpoint.named_weights import weights_file
from revisit.checkpoint.reading import UnreadableCheckpointError, read_checkpoint
from revisit.errors import UserError, expect
from revisit.files import UNFINISHED, read_json, read_yaml, strict_json, write_whole
from revisit.keys import dotted_keys, predictor_of

from detectron2.config import CfgNode
from detectron2.evaluation.testing import flatten_results_dict

# Names without .pth: of the result, and of the network with the best evaluation, whose record is BEST_RECORD.
FINAL, BEST = "model_final", "model_best"
UNEVALUATED = "model_not_evaluated"  # whose evaluation failed; no run resumes from it
BEST_RECORD = "best.json"
RESULTS = "evaluation.json"  # scores of the final network, or of the one that --eval-only was given
RUN_IDS = "tracked_runs.json"  # by service, the run that a resumed training continues
VIEWS, NEIGHBOURS = "views.png", "neighbours_*.png"
METRICS, SETTINGS = "metrics.json", ("config.yaml", "environment.json")
# What a run writes and continues, as patterns of names; settings and log apart. By the last two a folder holds a run.
OF_RUN = (BEST_RECORD, RESULTS, "events.out.tfevents.*", RUN_IDS, VIEWS, NEIGHBOURS, "model_*.pth", METRICS)
_BEYOND = 2**62  # any iteration
_PERIODIC = re.compile(r"model_(\d{7,})\.pth")


def checkpoints_of_run(folder: Path) -> list[Path]:
    """Checkpoints in a folder, those of the latest iteration first."""
    files = filter(Path.is_file, folder.glob("model_*.pth"))
    ranked = [(iteration_of(path), path.stem == FINAL, path) for path in files]
    return [path for iteration, _, path in sorted(ranked, reverse=True) if iteration >= 0]


def write_results(folder: Path, results: dict) -> None:
    """Write the scores of an evaluation, where there are any, to FOLDER/evaluation.json."""
    if not results:
        return
    path = folder / RESULTS
    try:
        write_whole(path, strict_json(results))  # where it exists, the evaluation is done
    except OSError as error:
        raise UserError(f"{path} could not be written ({error}): free some space and resume with --resume") from error
    scores = flatten_results_dict(results)
    of_all_classes = {name: score for name, score in scores.items() if "-" not in name.rpartition("/")[2]}
    numbers = {name: score for name, score in of_all_classes.items() if isinstance(score, float) and not isnan(score)}
    line = ", ".join(f"{name} {score:.2f}" for name, score in numbers.items()) or "no score"
    logging.getLogger(__name__).info(f"{line}: written to {path}")


def results_of_run(folder: Path) -> dict[str, Any]:
    """What write_results has written, an undefined score as None; {} where there are none."""
    path = folder / RESULTS
    return read_json(path) if path.is_file() else {}


class EarlierPart(NamedTuple):
    """What a run in a folder has done."""

    settings: dict[str, Any]  # its config by dotted key, what was drawn or measured for it included
    done: int = 0  # iterations
    images: int = 0  # that it has learned from


def earlier_part(folder: Path) -> EarlierPart:
    """By the newest checkpoint that can be read, where there is one, which is opened once; else the config.yaml."""
    content = next(filter(is_of_run, map(peek, checkpoints_of_run(folder))), {})
    if content:
        trainer = content["trainer"]
        lacking = f"{folder} has a run of Detectron2's own trainer, which has no config: give another OUTPUT_DIR"
        expect(trainer.get("config"), lacking)
        images = sum(part["count"] for part in trainer.get("images", ()))
        return EarlierPart(trainer["config"], content["iteration"] + 1, images)
    try:
        return EarlierPart(dotted_keys(read_yaml(folder / "config.yaml")))
    except (UserError, AttributeError):  # killed while it was being written
        return EarlierPart({})


def iteration_of(path: Path) -> int:
    """The iteration after which a checkpoint was made; -1 for another file."""
    if number := _PERIODIC.fullmatch(path.name):
        return int(number[1])
    if path.stem != FINAL:
        return -1
    iteration = read_iteration(path)
    return _BEYOND if iteration is None else iteration  # reading it whole will say that it is damaged


def read_iteration(path: Path) -> int | None:
    """The iteration after which a run wrote a checkpoint; None where it cannot be read or is something else."""
    content = peek(path)
    return content["iteration"] if is_of_run(content) else None


def peek(path: Path) -> dict:
    """A .pth file's content without its tensors' values being read; {} if it cannot be, or is no dict."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # whatever damaged bytes trip
        return {}
    return content if isinstance(content, dict) else {}


def is_of_run(content: object) -> bool:
    """Whether a checkpoint's content is that of a run, which can resume from it."""
    return isinstance(content, dict) and content.keys() >= {"iteration", "trainer"}


def remove_outdated(folder: Path, iteration: int, *, newest: int, every: int) -> None:
    """Of the periodic checkpoints up to ``iteration``, keep the ``newest`` (0: all) and those of every ``every``-th
    iteration (0: none). Those of a later iteration stay: damaged ones, before which the run resumed."""
    names = (path.name for path in folder.glob("*"))
    for name in outdated(names, iteration, newest=newest, every=every):
        (folder / name).unlink(missing_ok=True)


def outdated(names: Iterable[str], iteration: int, *, newest: int, every: int) -> list[str]:
    """Which of these files ``remove_outdated`` removes."""
    periodic = {int(number[1]): name for name in names if (number := _PERIODIC.fullmatch(name))}
    done = sorted((number for number in periodic if number <= iteration), reverse=True)
    past = done[newest:] if newest else []
    return [periodic[number] for number in past if not every or (number + 1) % every]


def tidy_up(folder: Path) -> None:
    """Remove checkpoints that a killed process was writing, and end the line of metrics that it was."""
    for path in folder.glob(f"*.pth{UNFINISHED}"):
        path.unlink(missing_ok=True)
    metrics = folder / METRICS
    if metrics.is_file() and metrics.read_bytes()[-1:] not in (b"\n", b""):
        with open(metrics, "a") as file:
            file.write("\n")


def holds_run(folder: Path) -> bool:
    """Whether a run has written a checkpoint there, or has ended before its first one."""
    return bool(checkpoints_of_run(folder)) or (folder / METRICS).is_file()


def set_aside_earlier_run(folder: Path) -> Path | None:
    """Move what an earlier run has written into earlier_run_1 or the next that is free; None where there is none. Where
    that is killed, the next call moves the rest."""
    if not holds_run(folder):
        return None
    aside = next(path for path in _set_aside(folder) if not path.exists())
    aside.mkdir()
    for pattern in (*SETTINGS, *OF_RUN):
        for path in folder.glob(pattern):
            path.rename(aside / path.name)
    return aside


def last_set_aside(folder: Path) -> Path | None:
    """Where the latest of the runs is that were set aside."""
    *_, last = [None, *takewhile(Path.exists, _set_aside(folder))]
    return last


def _set_aside(folder: Path) -> Iterator[Path]:
    return (folder / f"earlier_run_{n}" for n in count(1))


class Trained(NamedTuple):
    weights: str = ""  # the checkpoint, as it was named
    config: Mapping[str, object] = {}  # by dotted key, plain values; empty of weights that no run has written
    classes: Sequence[str] = ()  # by the network's number; empty where nothing says them


UNTRAINED = Trained()


def trained_network(cfg: CfgNode, *, resume: bool = False) -> Trained:
    """What MODEL.WEIGHTS, or with ``resume`` the last checkpoint in OUTPUT_DIR, says of its network.

    Raises:
        UnreadableCheckpointError: it cannot be read, or has something else in the places of config and classes.
    """
    weights, content = cfg.MODEL.WEIGHTS, {}
    if resume:
        weights, content = _newest_readable(Path(cfg.OUTPUT_DIR)) or (weights, content)
    if not weights:
        return UNTRAINED
    if not content:
        path = weights_file(weights)
        content = peek(path) or read_checkpoint(path)  # which says what is wrong with it
    trainer = content.get("trainer")
    config = trainer.get("config", {}) if isinstance(trainer, dict) else {}
    classes = content.get("classes", [])
    are_names = isinstance(classes, list) and all(type(name) is str for name in classes)
    if not isinstance(config, dict) or not are_names:
        raise UnreadableCheckpointError(f"{weights} has no config or no names where a run's checkpoint has them")
    return Trained(weights, _of_predictor(config), classes)


def _of_predictor(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of the network that predicts, where MODEL.META_ARCHITECTURE is one that only trains it."""
    name = config.get("MODEL.META_ARCHITECTURE")
    return {**config, "MODEL.META_ARCHITECTURE": predictor_of(name, config.get)} if name else {**config}


def _newest_readable(folder: Path) -> tuple[str, dict] | None:
    for path in checkpoints_of_run(folder):
        if content := peek(path):
            return str(path), content
    return None
