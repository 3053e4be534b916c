"""What a run would do, without training: the resolved recipe, what a step costs, a sheet of its views."""

import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.flags import flags_of
from revisit.checkpoint.run_folder import VIEWS
from revisit.compat.private_names import BatchNorm
from revisit.data.finetuning.pixel_mapper import pixel_mapper_of
from revisit.data.images.deep_images import bit_depth
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.loading.loader import core_rate
from revisit.data.sources.catalog import get_records
from revisit.data.sources.soundness import look_at
from revisit.engine.data_checks import MOST_LISTED
from revisit.engine.schedules import schedule_reads
from revisit.engine.solver import build_optimizer
from revisit.engine.step_cost import build_meta_model, step_cost
from revisit.errors import UserError
from revisit.files import write_whole
from revisit.keys import KEYS, PIXELWISE, PRETRAINING, Facts, is_read, value_of
from revisit.modeling.backbone.description import describe
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.viz.pretraining_sheets import save_view_sheet

from detectron2.config import CfgNode

GIB = 2**30
# What GPU-hours, and the images that a GPU takes, are stated for: a GPU's peak in dense bfloat16, and the share of it
# that is assumed. It is low because batch norm and small maps wait for memory, not for arithmetic.
GPU, PEAK_FLOPS, UTILISATION = "A100", 312e12, 0.10


def dry_run(cfg: CfgNode, facts: Facts, log: Sequence[logging.LogRecord] = ()) -> dict:
    """Print the recipe and the ``log`` of its plan; write the first to OUTPUT_DIR/dry_run.json, views to views.png."""
    num_images = facts.images
    num_processes = facts.processes
    output = Path(cfg.OUTPUT_DIR)
    model = build_meta_model(cfg)
    if Path(cfg.MODEL.WEIGHTS).is_file():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that tensors without memory take no values: what is refused is the point
            RevisitCheckpointer(model, cfg).load(cfg.MODEL.WEIGHTS, checkpointables=[])
    method = method_of(cfg)
    description = describe(model)
    network = f", {description.title(flags_of(cfg, description))}" if description else ""
    recipe = {"architecture": cfg.MODEL.META_ARCHITECTURE, "backbone": f"{cfg.MODEL.BACKBONE.NAME}{network}"}
    recipe |= {**_schedule(cfg, num_images, num_processes), "weight_decays": _weight_decays(cfg, model)}
    if method:
        recipe |= _views(cfg) | _method(cfg)
        recipe |= _cost(cfg, num_processes)
    if cfg.SOLVER.MINUTES:  # measured when the run begins
        open_yet = ("epochs", "iterations", "checkpoint_period", "tflop_of_run", "gpu_hours")
        recipe = {"minutes": cfg.SOLVER.MINUTES} | {key: its for key, its in recipe.items() if key not in open_yet}
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        recipe |= _pixelwise(cfg, model)
    recipe["data"] |= {"bit_depth": bit_depth(cfg) or 8, **_data_on_disk(cfg)}
    write_whole(output / "dry_run.json", json.dumps(recipe, indent=2))
    print(json.dumps(recipe, indent=2))
    print(f"wrote {output / 'dry_run.json'}")
    for record in log:
        print(f"{'warning: ' if record.levelno > logging.INFO else ''}{record.getMessage()}")
    data = recipe["data"]
    if method and data["found"]:
        save_view_sheet(cfg, output / VIEWS)
        print(f"wrote {output / VIEWS}: anchor, positive and small crops of some images")
    return recipe


def _schedule(cfg: CfgNode, num_images: int, num_processes: int) -> dict:
    solver = cfg.SOLVER
    warms_up = schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.WARMUP_ITERS")
    per_epoch, computed = num_images // solver.IMS_PER_BATCH, solver.AMP.DTYPE if solver.AMP.ENABLED else "float32"
    return {
        "lr": solver.BASE_LR,
        "schedule": solver.LR_SCHEDULER_NAME,
        "lr_steps": list(solver.STEPS) if schedule_reads(solver.LR_SCHEDULER_NAME, "SOLVER.STEPS") else [],
        "lr_warmup_iterations": solver.WARMUP_ITERS if warms_up else 0,
        "optimizer": solver.OPTIMIZER,
        "sgd_momentum": solver.MOMENTUM,
        "batch": solver.IMS_PER_BATCH,
        "batch_per_process": solver.IMS_PER_BATCH // num_processes,
        "accumulation_steps": solver.ACCUMULATION_STEPS,
        "precision": computed,
        "processes": num_processes,
        "device": cfg.MODEL.DEVICE,
        "seed": cfg.SEED,
        "epochs": solver.MAX_ITER / per_epoch,
        "iterations_per_epoch": per_epoch,
        "iterations": solver.MAX_ITER,
        "checkpoint_period": solver.CHECKPOINT_PERIOD,
        "data": {"train": list(cfg.DATASETS.TRAIN), "images": num_images, "test": list(cfg.DATASETS.TEST)},
    }


def _method(cfg: CfgNode) -> dict:
    """The keys that this method reads and others do not, by declaration; and lambda, k, which are 0 without L_nn."""
    own = [name for name, key in KEYS.items() if key.read_by not in ((), (PRETRAINING,)) and is_read(cfg, name)]
    keys = {name: value_of(cfg, name) for name in own}
    weight = keys.get("NEIGHBORS.WEIGHT", 0.0)
    if not weight:
        keys = {name: value for name, value in keys.items() if not name.startswith("NEIGHBORS.")}
    first = {"iterations_before_learning": method_of(cfg).iterations_before_learning(cfg)}
    return {"lambda": weight, "k": keys.get("NEIGHBORS.NUM_NEIGHBORS", 0), **first, "keys": keys}


def _cost(cfg: CfgNode, num_processes: int) -> dict:
    """Shapes, memory and operations of a step, and what the run takes on GPUs."""
    cost = step_cost(cfg, num_processes)
    gib = {kind: round(size / GIB, 4) for kind, size in cost.memory.items()}
    step = num_processes * (cost.forward_flops + cost.backward_flops)
    hours = step * cfg.SOLVER.MAX_ITER / (UTILISATION * PEAK_FLOPS) / 3600
    assumed = f"{UTILISATION:.0%} of the {PEAK_FLOPS / 1e12:.0f} TFLOP/s of an {GPU}; no wait for data"
    return {
        "shapes": cost.shapes,
        "memory_gib_per_process": {**gib, "total": round(sum(cost.memory.values()) / GIB, 4)},
        "tflop_per_step": {
            "forward": num_processes * cost.forward_flops / 1e12,
            "backward": num_processes * cost.backward_flops / 1e12,
            "total": step / 1e12,
        },
        "tflop_of_run": step * cfg.SOLVER.MAX_ITER / 1e12,
        "gpu_hours": {"total": round(hours, 2), "assumed": assumed},
        **_feeding(cfg, UTILISATION * PEAK_FLOPS * cfg.SOLVER.IMS_PER_BATCH / step, assumed),
    }


def _feeding(cfg: CfgNode, gpu_rate: float, assumed: str) -> dict:
    """How many cores load what one GPU takes, ``gpu_rate`` images a second; nothing where there are no images."""
    try:
        rate, count = core_rate(cfg)
    except (UserError, UnreadableImageError):  # said where the data are checked
        return {}
    cores, rates = round(gpu_rate / rate, 1), {"of_a_core": round(rate, 1), "of_a_gpu": round(gpu_rate, 1)}
    measured = f"a core's rate: this machine's, on {count} of the run's images, without waiting for the disk"
    how = {"measured": measured, "assumed": f"a GPU's rate: {assumed}"}
    return {"loading": {"cores_per_gpu": cores, "images_per_second": rates, **how}}


def _views(cfg: CfgNode) -> dict:
    views = cfg.VIEWS
    small = {"size": views.SMALL_SIZE, "scale": list(views.SMALL_SCALE)} if views.NUM_SMALL else {}
    return {
        "crops": {
            "large": {"count": 2, "size": views.LARGE_SIZE, "scale": list(views.LARGE_SCALE)},
            "small": {"count": views.NUM_SMALL, **small},
            "min_overlap": views.MIN_OVERLAP if views.NUM_SMALL else 0.0,
            "max_iou": views.MAX_IOU,
        },
        "policy": views.POLICY,
        "grey": views.GREY_PROBABILITY,
        "blur": views.BLUR_PROBABILITY,
    }


def _pixelwise(cfg: CfgNode, model: nn.Module) -> dict:
    """Network and input of a pixelwise task; dilations are read off the network as it was built."""
    options = cfg.MODEL.SEM_SEG_HEAD
    depth = {"loss": cfg.MODEL.DEPTH.LOSS} if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator" else {}
    head = model.head if depth else model.sem_seg_head
    return {
        "head": {"name": type(head).__name__, "channels": options.CONVS_DIM, "dilations": _dilations(head)}
        | {"outputs": options.NUM_CLASSES, **depth},
        "backbone_dilations": {stage: _dilations(getattr(model.backbone, stage)) for stage in ("res4", "res5")},
    } | pixel_mapper_of(cfg).recipe(cfg)


def _dilations(module: nn.Module) -> list[int]:
    """Of the 3x3 convolutions inside, each once, in order."""
    return sorted({m.dilation[0] for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)})


def _weight_decays(cfg: CfgNode, model: nn.Module) -> dict[str, float]:
    """Weight decay of each kind of parameter, as the optimiser really has it."""
    decay = {p: group["weight_decay"] for group in build_optimizer(cfg, model).param_groups for p in group["params"]}
    kinds: dict[str, float] = {}
    for module in model.modules():
        kind = "norm" if isinstance(module, BatchNorm | nn.GroupNorm | nn.LayerNorm) else "other"
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in decay:
                kinds["bias" if name == "bias" and kind == "other" else kind] = decay[parameter]
    return kinds


def _data_on_disk(cfg: CfgNode) -> dict:
    try:
        records = [record for name in cfg.DATASETS.TRAIN for record in get_records(name)]
    except UserError as error:
        return {"found": False, "problem": str(error)}
    look = look_at(records, bit_depth(cfg))
    counts = {"images_checked": look.seen, "unreadable": len(look.unreadable), "truncated": len(look.truncated)}
    return {"found": True, **counts, "unreadable_first": (look.unreadable + look.truncated)[:MOST_LISTED]}
