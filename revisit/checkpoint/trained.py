"""What a checkpoint says of its network to whoever uses it later: its config, and the names of its classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.reading import UnreadableCheckpointError, read_checkpoint
from revisit.checkpoint.run_folder import checkpoints_of_run, glance
from revisit.urls import local_copy

from detectron2.config import CfgNode


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
    paths = checkpoints_of_run(Path(cfg.OUTPUT_DIR)) if resume else []
    contents = ((str(path), glance(path)) for path in paths)
    weights, content = next((named for named in contents if named[1]), (cfg.MODEL.WEIGHTS, {}))
    if not weights:
        return UNTRAINED
    if not content:
        path = local_copy(weights, "MODEL.WEIGHTS")
        content = glance(path) or read_checkpoint(path)  # which says what is wrong with it
    trainer, classes = content.get("trainer"), content.get("classes", [])
    config = trainer.get("config", {}) if isinstance(trainer, dict) else {}
    if not isinstance(config, dict) or not isinstance(classes, list) or not all(type(name) is str for name in classes):
        raise UnreadableCheckpointError(f"{weights} has no config or no names where a run's checkpoint has them")
    return Trained(weights, config, classes)
