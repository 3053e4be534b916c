"""A section of a dry run from outside the tree, and its line: what a network takes, and what OUTPUT_DIR's disk has."""

import shutil
from pathlib import Path

from torch import nn

from revisit.engine.dry_run import DRY_RUN_LINE_REGISTRY, DRY_RUN_REGISTRY
from revisit.keys import Facts

from detectron2.config import CfgNode

GIB = 2**30


@DRY_RUN_REGISTRY.register()
def disk_space(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """``disk_gib``: weights and buffers without the optimiser's state; what is free now."""
    network = sum(tensor.numel() * tensor.itemsize for tensor in model.state_dict().values())
    output = Path(cfg.OUTPUT_DIR).absolute()
    folder = next(folder for folder in (output, *output.parents) if folder.exists())
    return {"disk_gib": {"network": network / GIB, "free": shutil.disk_usage(folder).free / GIB}}


@DRY_RUN_LINE_REGISTRY.register()
def disk_in_words(cfg: CfgNode, recipe: dict) -> tuple[str, str]:
    """A line of the table that is printed."""
    gib = recipe["disk_gib"]
    return "disk", f"{gib['network']:.2f} GiB a checkpoint's network, {gib['free']:.0f} free"
