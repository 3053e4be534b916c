"""MOCO.BN_SPLITS, the key before MOCO.BN_GROUP: statistics over 1/BN_SPLITS of what a process runs at a time.

Configs, command lines and checkpoints that have it keep their meaning, and it is said what they mean now.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from revisit.checkpoint.run_folder import state_of_run
from revisit.errors import expect

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)

OLD, NEW = "MOCO.BN_SPLITS", "MOCO.BN_GROUP"


def await_older_keys(cfg: CfgNode) -> int:
    """Before anything is merged: let ``cfg`` take the old key too. Returns the new one's default."""
    default = cfg.MOCO.BN_GROUP
    cfg.MOCO.BN_GROUP = cfg.MOCO.BN_SPLITS = None  # nobody has stated them
    return default


def settle_bn_group(cfg: CfgNode, default: int, opts: Sequence[object], num_processes: int, resume: bool) -> None:
    """After everything is merged: MOCO.BN_GROUP as it is stated, else as its older key says, else of a resumed run.

    Raises:
        UserError: the older key's value was always impossible.
    """
    typed, splits = set(map(str, opts[::2])), cfg.MOCO.pop("BN_SPLITS")
    if splits is not None and (OLD in typed or NEW not in typed):
        part = cfg.SOLVER.IMS_PER_BATCH // max(1, num_processes * cfg.SOLVER.ACCUMULATION_STEPS)
        fits = type(splits) is int and splits > 0 and part % splits == 0
        expect(fits, f"{OLD} {splits} does not divide the {part} images that a process runs at a time; expected {NEW}")
        cfg.MOCO.BN_GROUP = 0 if splits == 1 else part // splits
        logger.warning(f"{OLD} {splits} is an older key: it means {NEW} {cfg.MOCO.BN_GROUP} now, and is taken as that")
    elif cfg.MOCO.BN_GROUP is None:
        cfg.MOCO.BN_GROUP = group = _group_of_run(Path(cfg.OUTPUT_DIR), default) if resume else default
        if group != default:
            logger.warning(f"{NEW} {group}: what the run in {cfg.OUTPUT_DIR} began with, where nothing else is stated")


def with_bn_group(values: Mapping[str, object], num_processes: int, here: int) -> dict[str, object]:
    """A checkpoint's config by dotted key, with the old key as the new one; where they mean the same, with ``here``.

    Args:
        num_processes: of the checkpoint's run.
        here: MOCO.BN_GROUP of the run that takes it up.
    """
    if OLD not in values:
        return dict(values)
    splits = values[OLD]
    group = values["SOLVER.IMS_PER_BATCH"] // num_processes // values["SOLVER.ACCUMULATION_STEPS"] // splits
    return {key: value for key, value in values.items() if key != OLD} | {NEW: 0 if splits == 1 and not here else group}


def _group_of_run(folder: Path, default: int) -> int:
    state = state_of_run(folder)
    return with_bn_group(state.get("config", {}), state.get("world_size", 1), default).get(NEW, default)
