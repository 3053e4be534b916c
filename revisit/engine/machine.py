"""Keys that follow from the machine and its processes: the device, the form of SyncBN, the seed."""

import os
import re
from glob import glob

import numpy as np
import torch

from revisit.errors import UserError
from revisit.keys import Decision, Facts, Rule, integer, of_detectron2, value_of

from detectron2.config import CfgNode
from detectron2.utils import comm


def device(cfg: CfgNode, facts: Facts) -> Decision | None:
    """The CPU where torch finds no GPU. Raises UserError where the machine has one that torch cannot use."""
    if not value_of(cfg, facts.key).startswith("cuda") or torch.cuda.is_available():
        return None
    devices = sorted(glob("/dev/nvidia[0-9]*"))
    if facts.for_here and devices and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        raise UserError(
            f"this machine has {devices[0]}, but torch {torch.__version__} cannot use it: expected a driver for CUDA "
            f"{torch.version.cuda}, or MODEL.DEVICE cpu"
        )
    return Decision("cpu", "torch finds no GPU")


def sync_norm(cfg: CfgNode, facts: Facts) -> Decision | None:
    """SyncBN is BN on one process, and on the CPU, where torch's does not run, Detectron2's own form."""
    if facts.processes is None or value_of(cfg, facts.key) != "SyncBN":
        return None
    if facts.processes == 1:
        return Decision("BN", "SyncBN of one process")
    return Decision("naiveSyncBN", "SyncBN of the CPU") if cfg.MODEL.DEVICE == "cpu" else None


def seed(cfg: CfgNode, facts: Facts) -> Decision | None:
    """A random number, once for a run and the same on all machines."""
    stated = value_of(cfg, facts.key)
    if facts.launched:
        return Decision(comm.all_gather(stated)[0], "as the first machine has drawn it")
    if stated >= 0:
        return None
    if facts.seed >= 0:
        return Decision(facts.seed, "so that results are repeatable")
    return Decision(int(np.random.SeedSequence().entropy % 2**31), "drawn", kept=True)


_DEVICE = Rule(
    "cpu, cuda, cuda:N or mps", lambda v: isinstance(v, str) and re.fullmatch(r"cpu|mps|cuda(:\d+)?", v) is not None
)
of_detectron2("MODEL.DEVICE", rule=_DEVICE, resolve=device)
of_detectron2("MODEL.*.NORM", resolve=sync_norm, after="MODEL.DEVICE")
of_detectron2("SEED", rule=integer(-1, 2**31 - 1), resolve=seed)
