"""What a run would do, without training: the resolved recipe, its shapes, its memory, a sheet of its views."""

import json
from pathlib import Path

from torch import nn

from revisit.config import PIXELWISE
from revisit.data.catalog import get_records
from revisit.engine.memory_estimate import build_meta_model, memory_per_process
from revisit.engine.optimizer import build_optimizer
from revisit.errors import UserError
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.viz.pretraining_sheets import save_view_sheet

from detectron2.config import CfgNode


def dry_run(cfg: CfgNode, num_images: int, num_processes: int) -> dict:
    """Print the recipe and write it to OUTPUT_DIR/dry_run.json, the views to OUTPUT_DIR/views.png."""
    output = Path(cfg.OUTPUT_DIR)
    output.mkdir(parents=True, exist_ok=True)
    model = build_meta_model(cfg)
    method = method_of(cfg)
    recipe = {**_schedule(cfg, num_images, num_processes), "weight_decays": _weight_decays(cfg, model)}
    if method:
        recipe |= _views(cfg) | method.describe(cfg, num_images // cfg.SOLVER.IMS_PER_BATCH)
        recipe |= memory_per_process(cfg, model, num_processes)
    if cfg.MODEL.META_ARCHITECTURE in PIXELWISE:
        recipe |= _pixelwise(cfg, model)
    recipe["data"] |= _data_on_disk(cfg)
    (output / "dry_run.json").write_text(json.dumps(recipe, indent=2))
    print(json.dumps(recipe, indent=2))
    print(f"wrote {output / 'dry_run.json'}")
    if method and (advice := method.advice(cfg, num_images)):
        print(f"warning: {advice}")
    if method and recipe["data"]["found"]:
        save_view_sheet(cfg, output / "views.png")
        print(f"wrote {output / 'views.png'}: anchor, positive and small crops of some images")
    return recipe


def _schedule(cfg: CfgNode, num_images: int, num_processes: int) -> dict:
    solver = cfg.SOLVER
    per_epoch = num_images // solver.IMS_PER_BATCH
    return {
        "architecture": cfg.MODEL.META_ARCHITECTURE,
        "backbone": f"{cfg.MODEL.BACKBONE.NAME}, ResNet-{cfg.MODEL.RESNETS.DEPTH}",
        "lr": solver.BASE_LR,
        "schedule": solver.LR_SCHEDULER_NAME,
        "lr_steps": list(solver.STEPS) if solver.LR_SCHEDULER_NAME == "WarmupMultiStepLR" else [],
        "lr_warmup_iterations": 0 if solver.LR_SCHEDULER_NAME == "PolynomialLR" else solver.WARMUP_ITERS,
        "optimizer": solver.OPTIMIZER,
        "sgd_momentum": solver.MOMENTUM,
        "batch": solver.IMS_PER_BATCH,
        "batch_per_process": solver.IMS_PER_BATCH // num_processes,
        "accumulation_steps": solver.ACCUMULATION_STEPS,
        "precision": solver.AMP.DTYPE if solver.AMP.ENABLED else "float32",
        "processes": num_processes,
        "device": cfg.MODEL.DEVICE,
        "seed": cfg.SEED,
        "epochs": solver.MAX_ITER / per_epoch,
        "iterations_per_epoch": per_epoch,
        "iterations": solver.MAX_ITER,
        "checkpoint_period": solver.CHECKPOINT_PERIOD,
        "data": {"train": list(cfg.DATASETS.TRAIN), "images": num_images, "test": list(cfg.DATASETS.TEST)},
    }


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
    }


def _pixelwise(cfg: CfgNode, model: nn.Module) -> dict:
    """Network and input of a pixelwise task; dilations are read off the network as it was built."""
    options, crop = cfg.MODEL.SEM_SEG_HEAD, cfg.INPUT.CROP
    depth = {"loss": cfg.MODEL.DEPTH.LOSS} if cfg.MODEL.META_ARCHITECTURE == "DepthEstimator" else {}
    head = model.head if depth else model.sem_seg_head
    return {
        "head": {
            "name": type(head).__name__,
            "channels": options.CONVS_DIM,
            "dilations": _dilations(head),
            "outputs": options.NUM_CLASSES,
            **depth,
        },
        "backbone_dilations": {stage: _dilations(getattr(model.backbone, stage)) for stage in ("res4", "res5")},
        "random_scale": {"factors": list(cfg.INPUT.RANDOM_SCALE), "sampling": cfg.INPUT.RANDOM_SCALE_SAMPLING},
        "crop": list(crop.SIZE) if crop.ENABLED else None,
    }


def _dilations(module: nn.Module) -> list[int]:
    """Of the 3x3 convolutions inside, each once, in order."""
    convs = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    return sorted({conv.dilation[0] for conv in convs})


def _weight_decays(cfg: CfgNode, model: nn.Module) -> dict[str, float]:
    """Weight decay of each kind of parameter, as the optimiser really has it."""
    decay = {p: group["weight_decay"] for group in build_optimizer(cfg, model).param_groups for p in group["params"]}
    kinds: dict[str, float] = {}
    for module in model.modules():
        kind = "norm" if isinstance(module, nn.modules.batchnorm._BatchNorm) else "other"
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in decay:
                kinds["bias" if name == "bias" and kind == "other" else kind] = decay[parameter]
    return kinds


def _data_on_disk(cfg: CfgNode) -> dict:
    try:
        for name in cfg.DATASETS.TRAIN:
            get_records(name)
    except UserError as error:
        return {"found": False, "problem": str(error)}
    return {"found": True}
