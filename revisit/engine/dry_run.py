"""What a run would do, without training: the resolved recipe, its shapes, its memory, a sheet of its views."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from revisit.checkpoint.flags import flags_of
from revisit.checkpoint.run_folder import VIEWS
from revisit.data.catalog import get_records
from revisit.data.deep_pixels import bit_depth
from revisit.data.inspection import Note
from revisit.data.reader import find_unreadable
from revisit.engine.solver import build_optimizer
from revisit.errors import UserError
from revisit.keys import PIXELWISE
from revisit.modeling.backbone.description import describe
from revisit.modeling.meta_arch.pretraining import Pretraining, method_of
from revisit.viz.pretraining_sheets import save_view_sheet

from detectron2.config import CfgNode
from detectron2.modeling import build_model

GIB = 2**30
_MOST_LISTED = 20  # unreadable images


def dry_run(cfg: CfgNode, num_images: int, num_processes: int, notes: Sequence[Note] = ()) -> dict:
    """Print the recipe and ``notes`` of its data; write the first to OUTPUT_DIR/dry_run.json, views to views.png."""
    output = Path(cfg.OUTPUT_DIR)
    model = build_meta_model(cfg)
    method = method_of(cfg)
    known = describe(model)
    network = f", {known.title(flags_of(cfg, known))}" if known else ""
    recipe = {"architecture": cfg.MODEL.META_ARCHITECTURE, "backbone": f"{cfg.MODEL.BACKBONE.NAME}{network}"}
    recipe |= {**_schedule(cfg, num_images, num_processes), "weight_decays": _weight_decays(cfg, model)}
    if method:
        batch = cfg.SOLVER.IMS_PER_BATCH
        recipe |= _views(cfg) | method.describe(cfg, num_images // batch, batch // num_processes)
        recipe |= memory_per_process(cfg, model, num_processes)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        recipe |= _pixelwise(cfg, model)
    recipe["data"] |= {"bit_depth": bit_depth(cfg) or 8, **_data_on_disk(cfg)}
    (output / "dry_run.json").write_text(json.dumps(recipe, indent=2))
    print(json.dumps(recipe, indent=2))
    print(f"wrote {output / 'dry_run.json'}")
    for level, text in notes:
        print(f"{'warning: ' if level > logging.INFO else ''}{text}")
    if recipe["data"].get("unreadable"):
        found = "{unreadable} of {images_checked} images that were read are unreadable".format(**recipe["data"])
        print(f"warning: {found}:", *recipe["data"]["unreadable_first"], sep="\n    ")
    if method and (advice := method.advice(cfg, num_images)):
        print(f"warning: {advice}")
    if method and recipe["data"]["found"]:
        save_view_sheet(cfg, output / VIEWS)
        print(f"wrote {output / VIEWS}: anchor, positive and small crops of some images")
    return recipe


def _schedule(cfg: CfgNode, num_images: int, num_processes: int) -> dict:
    solver = cfg.SOLVER
    per_epoch = num_images // solver.IMS_PER_BATCH
    return {
        "lr": solver.BASE_LR,
        "schedule": solver.LR_SCHEDULER_NAME,
        "lr_steps": list(solver.STEPS) if solver.LR_SCHEDULER_NAME == "WarmupMultiStepLR" else [],
        "lr_warmup_iterations": 0 if solver.LR_SCHEDULER_NAME == "PolynomialLR" else solver.WARMUP_ITERS,
        "optimizer": solver.OPTIMIZER,
        "sgd_momentum": solver.MOMENTUM,
        "batch": solver.IMS_PER_BATCH,
        "batch_per_process": solver.IMS_PER_BATCH // num_processes,
        "accumulation_steps": solver.ACCUMULATION_STEPS,
        "precision": _precision(cfg),
        "processes": num_processes,
        "device": cfg.MODEL.DEVICE,
        "seed": cfg.SEED,
        "epochs": solver.MAX_ITER / per_epoch,
        "iterations_per_epoch": per_epoch,
        "iterations": solver.MAX_ITER,
        "checkpoint_period": solver.CHECKPOINT_PERIOD,
        "data": {"train": list(cfg.DATASETS.TRAIN), "images": num_images, "test": list(cfg.DATASETS.TEST)},
    }


def _precision(cfg: CfgNode) -> str:
    if cfg.SOLVER.PRECISION == "auto":
        return "auto: measured when the run begins"
    return cfg.SOLVER.AMP.DTYPE if cfg.SOLVER.AMP.ENABLED else "float32"


def _views(cfg: CfgNode) -> dict:
    views = cfg.VIEWS
    return {
        "crops": {
            "large": {"count": 2, "size": views.LARGE_SIZE, "scale": list(views.LARGE_SCALE)},
            "small": {"count": views.NUM_SMALL, "size": views.SMALL_SIZE, "scale": list(views.SMALL_SCALE)},
            "min_overlap": views.MIN_OVERLAP if views.NUM_SMALL else 0.0,
            "max_iou": views.MAX_IOU,
        },
        "policy": views.POLICY,
        "grey": views.GREY_PROBABILITY,
        "blur": views.BLUR_PROBABILITY,
    }


def _pixelwise(cfg: CfgNode, model: nn.Module) -> dict:
    """Network and input of a pixelwise task; dilations are read off the network as it was built."""
    options, crop = cfg.MODEL.SEM_SEG_HEAD, cfg.INPUT.CROP
    depth = {"loss": cfg.MODEL.DEPTH.LOSS} if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator" else {}
    head = model.head if depth else model.sem_seg_head
    return {
        "head": {"name": type(head).__name__, "channels": options.CONVS_DIM, "dilations": _dilations(head)}
        | {"outputs": options.NUM_CLASSES, **depth},
        "backbone_dilations": {stage: _dilations(getattr(model.backbone, stage)) for stage in ("res4", "res5")},
        "random_scale": {"factors": list(cfg.INPUT.RANDOM_SCALE), "sampling": cfg.INPUT.RANDOM_SCALE_SAMPLING},
        "random_rotation": cfg.INPUT.RANDOM_ROTATION,
        "squash": cfg.INPUT.SQUASH and list(cfg.INPUT.SQUASH),
        "crop": list(crop.SIZE) if crop.ENABLED else None,
    }


def _dilations(module: nn.Module) -> list[int]:
    """Of the 3x3 convolutions inside, each once, in order."""
    return sorted({m.dilation[0] for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)})


def _weight_decays(cfg: CfgNode, model: nn.Module) -> dict[str, float]:
    """Weight decay of each kind of parameter, as the optimiser really has it."""
    decay = {p: group["weight_decay"] for group in build_optimizer(cfg, model).param_groups for p in group["params"]}
    kinds: dict[str, float] = {}
    for module in model.modules():
        kind = "norm" if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm | nn.LayerNorm) else "other"
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in decay:
                kinds["bias" if name == "bias" and kind == "other" else kind] = decay[parameter]
    return kinds


def _data_on_disk(cfg: CfgNode) -> dict:
    try:
        records = [record for name in cfg.DATASETS.TRAIN for record in get_records(name)]
    except UserError as error:
        return {"found": False, "problem": str(error)}
    checked, problems = find_unreadable(records, bit_depth(cfg))
    read = {"images_checked": checked, "unreadable": len(problems)}
    return {"found": True, **read, "unreadable_first": problems[:_MOST_LISTED]}


def build_meta_model(cfg: CfgNode) -> nn.Module:
    """The model of a config with shapes and byte counts alone, without arithmetic."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE = "meta"
    with torch.device("meta"):
        return build_model(cfg)


def memory_per_process(cfg: CfgNode, model: Pretraining, num_processes: int) -> dict:
    """Shapes, and GiB of one process in float32, activations measured on a few images' views.

    Accumulation keeps the activations and scores of one part at a time.
    """
    per_process = cfg.SOLVER.IMS_PER_BATCH // num_processes
    at_a_time = per_process // cfg.SOLVER.ACCUMULATION_STEPS
    probe = model.smallest_batch
    encoded, activations = _measure_activations(model.train(), meta_batch(cfg, probe))
    shapes, extra = model.extra_memory(encoded, at_a_time)
    batch = meta_batch(cfg, per_process)
    copies = 4 if "Adam" in cfg.SOLVER.OPTIMIZER else 3  # with gradient and the optimiser's one or two means of it
    weights = sum(p.numel() * (copies if p.requires_grad else 1) for p in model.parameters())
    sizes = {
        "weights_gradients_optimizer": 4 * weights,
        "activations": at_a_time * activations / probe,
        "batch": sum(view.numel() for view in batch.values()),
        **extra,
    }
    gib = {name: round(size / GIB, 3) for name, size in sizes.items()}
    return {
        "shapes": {
            **{name: list(view.shape) for name, view in batch.items()},
            **{name: [at_a_time, *rows.shape[1:]] for name, rows in encoded.items()},
            **shapes,
        },
        "memory_dtype": "float32",
        "memory_gib_per_process": {**gib, "total": round(sum(gib.values()), 3)},
    }


def _measure_activations(model: Pretraining, views: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], int]:
    """What ``model.encode`` makes of the views, and the bytes that it keeps for the backward pass."""
    saved: dict[int, torch.Tensor] = {}  # keeps the tensors: an id is only unique while its tensor lives

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            saved[id(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoded = model.encode(views)
    return encoded, sum(tensor.nbytes for tensor in saved.values())


def meta_batch(cfg: CfgNode, size: int) -> dict[str, torch.Tensor]:
    """A batch of views with shapes alone."""
    large, small, num_small = cfg.VIEWS.LARGE_SIZE, cfg.VIEWS.SMALL_SIZE, cfg.VIEWS.NUM_SMALL
    shapes = {"anchor": (3, large, large), "positive": (3, large, large)}
    if num_small:
        shapes["small"] = (num_small, 3, small, small)
    return {name: torch.empty(size, *shape, dtype=torch.uint8, device="meta") for name, shape in shapes.items()}


def random_views(cfg: CfgNode, size: int) -> dict[str, torch.Tensor]:
    """A batch of noise, always the same, in the sizes and the memory layout of the loader's."""
    generator = torch.Generator().manual_seed(0)
    batch = {}
    for name, view in meta_batch(cfg, size).items():
        shape = view.movedim(-3, -1).shape
        batch[name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).movedim(-1, -3)
    return batch
