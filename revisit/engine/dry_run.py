"""What a run would do, without training: the resolved recipe, and what projects add to it."""

import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.flags import flags_of
from revisit.compat.private_names import BatchNorm
from revisit.data.finetuning.pixel_mapper import pixel_mapper_of
from revisit.data.images.deep_images import pixel_format
from revisit.data.sources.catalog import get_records
from revisit.data.sources.rows import joined
from revisit.data.views.mapper import training_mapper
from revisit.engine.run_length import iterations_per_epoch
from revisit.engine.schedules import schedule_reads
from revisit.engine.solver import build_optimizer
from revisit.errors import UserError, without_secrets
from revisit.files import write_whole
from revisit.keys import KEYS, PIXELWISE, PRETRAINING, Facts, is_read, value_of, with_values
from revisit.modeling.backbone.description import describe
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from fvcore.common.registry import Registry

DRY_RUN_REGISTRY = Registry("DRY_RUN")
DRY_RUN_REGISTRY.__doc__ = """
Sections of a dry run, in this order: each is called with the resolved config, the facts that it was resolved by, and
the network without memory for its weights, and returns entries of dry_run.json.
"""

DRY_RUN_DATA_REGISTRY = Registry("DRY_RUN_DATA")
DRY_RUN_DATA_REGISTRY.__doc__ = """
What a dry run says of images on disk: functions of the resolved config and of records, which return entries of "data".
"""

DRY_RUN_LINE_REGISTRY = Registry("DRY_RUN_LINE")
DRY_RUN_LINE_REGISTRY.__doc__ = """
Lines that follow those of every training in the table of a dry run, in this order: functions of the resolved config and
of the entries of all sections. Each returns what the line is about and words, or None where there is nothing to say.
"""

DRY_RUN_PICTURE_REGISTRY = Registry("DRY_RUN_PICTURE")
DRY_RUN_PICTURE_REGISTRY.__doc__ = """
Pictures of the data of a dry run: functions of the resolved config and OUTPUT_DIR, which print what they wrote.
"""


def dry_run(cfg: CfgNode, facts: Facts, log: Sequence[logging.LogRecord] = ()) -> dict:
    """Print a table and the ``log`` of the plan; write all sections to OUTPUT_DIR/dry_run.json, pictures next to it.

    Raises:
        UserError: the network cannot be built, or does not take MODEL.WEIGHTS.
    """
    output = Path(cfg.OUTPUT_DIR)
    model = build_meta_model(cfg)
    check_weights(cfg, model)
    recipe = {}
    for _, section in DRY_RUN_REGISTRY:
        recipe |= section(cfg, facts, model)
    write_whole(output / "dry_run.json", without_secrets(json.dumps(recipe, indent=2)))
    added = [line for _, of_recipe in DRY_RUN_LINE_REGISTRY if (line := of_recipe(cfg, recipe))]
    lines = [*_lines_of_all(cfg, recipe), *added]
    print(without_secrets(tabulate(lines, tablefmt="plain", disable_numparse=True)))
    print(f"wrote {output / 'dry_run.json'}, which has all of it")
    for record in log:
        print(f"{'warning: ' if record.levelno > logging.INFO else ''}{without_secrets(record.getMessage())}")
    if recipe["data"]["found"]:
        for _, draw in DRY_RUN_PICTURE_REGISTRY:
            draw(cfg, output)
    return recipe


def _lines_of_all(cfg: CfgNode, recipe: dict) -> list[tuple[str, str]]:
    """Of any training: network, data, length, step and learning rate."""
    network = f"{recipe['architecture']}, {recipe['backbone']}, from {cfg.MODEL.WEIGHTS or 'random weights'}"
    images = recipe["data"]
    data = f"{', '.join(images['train'])}: {images['images']:,} images"
    if not images["found"]:
        data = f"MISSING, {images['images']:,} images are assumed: {images['problem']}"
    length = "decided as the run begins"
    if "iterations" in recipe:
        length = f"{recipe['iterations']:,} iterations, {recipe['epochs']:.4g} epochs"
    processes = f"{recipe['processes']} process{'es' * (recipe['processes'] > 1)} on {recipe['device']}"
    return [
        ("network", network),
        ("data", data),
        ("length", length),
        ("step", f"{recipe['batch']} images in {recipe['precision']}, {processes}"),
        ("learning rate", f"{recipe['lr']:g}, {recipe['schedule']}, {recipe['optimizer']}"),
    ]


def build_meta_model(cfg: CfgNode) -> nn.Module:
    """The model of a config without memory for its weights."""
    with torch.device("meta"):
        return build_model(with_values(cfg, {"MODEL.DEVICE": "meta"}))


def check_weights(cfg: CfgNode, model: nn.Module) -> None:
    """Raise UserError where the network does not take the file MODEL.WEIGHTS."""
    if not Path(cfg.MODEL.WEIGHTS).is_file():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tensors without memory take no values: what is refused is the point
        RevisitCheckpointer(model, cfg).load(cfg.MODEL.WEIGHTS, checkpointables=[])


@DRY_RUN_REGISTRY.register()
def training(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """Network, learning rates and steps."""
    solver = cfg.SOLVER
    backbone = cfg.MODEL.BACKBONE.NAME
    description = describe(model)
    if description:
        backbone += f", {description.title(flags_of(cfg, description))}"
    warms_up = schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.WARMUP_ITERS")
    has_steps = schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.STEPS")
    return {
        "architecture": cfg.MODEL.META_ARCHITECTURE,
        "backbone": backbone,
        "lr": solver.BASE_LR,
        "schedule": solver.LR_SCHEDULER_NAME,
        "lr_steps": list(solver.STEPS) if has_steps else [],
        "lr_warmup_iterations": solver.WARMUP_ITERS if warms_up else 0,
        "optimizer": solver.OPTIMIZER,
        "sgd_momentum": solver.MOMENTUM,
        "weight_decays": _weight_decays(cfg, model),
        "batch": solver.IMS_PER_BATCH,
        "batch_per_process": solver.IMS_PER_BATCH // facts.processes,
        "accumulation_steps": solver.ACCUMULATION_STEPS,
        "precision": solver.AMP.DTYPE if solver.AMP.ENABLED else "float32",
        "processes": facts.processes,
        "device": cfg.MODEL.DEVICE,
        "seed": cfg.SEED,
    }


@DRY_RUN_REGISTRY.register()
def length(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """Without iterations where these are decided as the run begins."""
    solver = cfg.SOLVER
    per_epoch = iterations_per_epoch(cfg, facts.images)
    if not solver.MAX_ITER:
        return {"iterations_per_epoch": per_epoch}
    return {
        "epochs": solver.MAX_ITER / per_epoch,
        "iterations_per_epoch": per_epoch,
        "iterations": solver.MAX_ITER,
        "checkpoint_period": solver.CHECKPOINT_PERIOD,
    }


@DRY_RUN_REGISTRY.register()
def views(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """Crops and looks of a pretraining."""
    if not method_of(cfg):
        return {}
    options = cfg.VIEWS
    small = {"size": options.SMALL_SIZE, "scale": list(options.SMALL_SCALE)} if options.NUM_SMALL else {}
    num_large = sum(len(shape) == 3 for shape in training_mapper(cfg).shapes.values())
    return {
        "crops": {
            "large": {"count": num_large, "size": options.LARGE_SIZE, "scale": list(options.LARGE_SCALE)},
            "small": {"count": options.NUM_SMALL, **small},
            "min_overlap": options.MIN_OVERLAP if options.NUM_SMALL else 0.0,
            "max_iou": options.MAX_IOU,
        },
        "policy": options.POLICY,
        "grey": options.GREY_PROBABILITY,
        "blur": options.BLUR_PROBABILITY,
    }


@DRY_RUN_REGISTRY.register()
def method(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """The keys that this method reads and others do not, by declaration; and lambda, k, which are 0 without L_nn."""
    if not method_of(cfg):
        return {}
    keys = {}
    for name, key in KEYS.items():
        if key.read_by and PRETRAINING not in key.read_by and is_read(cfg, name):
            keys[name] = value_of(cfg, name)
    weight = keys.get("NEIGHBORS.WEIGHT", 0.0)
    if not weight:
        keys = {name: value for name, value in keys.items() if not name.startswith("NEIGHBORS.")}
    return {
        "lambda": weight,
        "k": keys.get("NEIGHBORS.NUM_NEIGHBORS", 0),
        "iterations_before_learning": method_of(cfg).iterations_before_learning(cfg),
        "keys": keys,
    }


@DRY_RUN_REGISTRY.register()
def pixelwise(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    """Network and input of a pixelwise task; dilations are read off the network as it was built."""
    if cfg.MODEL.META_ARCHITECTURE not in PIXELWISE:
        return {}
    options = cfg.MODEL.SEM_SEG_HEAD
    depth = {"loss": cfg.MODEL.DEPTH.LOSS} if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator" else {}
    head = model.head if depth else model.sem_seg_head
    stages = [stage for stage in ("res4", "res5") if hasattr(model.backbone, stage)]
    return {
        "head": {
            "name": type(head).__name__,
            "channels": options.CONVS_DIM,
            "dilations": _dilations(head),
            "outputs": options.NUM_CLASSES,
            **depth,
        },
        "backbone_dilations": {stage: _dilations(getattr(model.backbone, stage)) for stage in stages},
        **pixel_mapper_of(cfg).recipe(cfg),
    }


@DRY_RUN_REGISTRY.register()
def data(cfg: CfgNode, facts: Facts, model: nn.Module) -> dict:
    pixels = pixel_format(cfg)
    return {
        "data": {
            "train": list(cfg.DATASETS.TRAIN),
            "images": facts.images,
            "test": list(cfg.DATASETS.TEST),
            "bit_depth": pixels.bits or 8,
            "channels": list(pixels.channels),
            "ranges": [list(pair) for pair in pixels.ranges],
            **_data_on_disk(cfg),
        }
    }


def _dilations(module: nn.Module) -> list[int]:
    """Of the 3x3 convolutions inside, each once, in order."""
    return sorted({m.dilation[0] for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)})


def _weight_decays(cfg: CfgNode, model: nn.Module) -> dict[str, float]:
    """Weight decay of each kind of parameter, as the optimiser really has it."""
    decay = {p: group["weight_decay"] for group in build_optimizer(cfg, model).param_groups for p in group["params"]}
    kinds = {}
    for module in model.modules():
        kind = "norm" if isinstance(module, BatchNorm | nn.GroupNorm | nn.LayerNorm) else "other"
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in decay:
                kinds["bias" if name == "bias" and kind == "other" else kind] = decay[parameter]
    return kinds


def _data_on_disk(cfg: CfgNode) -> dict:
    try:
        records = joined([get_records(name) for name in cfg.DATASETS.TRAIN])
    except UserError as error:
        return {"found": False, "problem": str(error)}
    entries = {"found": True}
    for _, look in DRY_RUN_DATA_REGISTRY:
        entries |= look(cfg, records)
    return entries
