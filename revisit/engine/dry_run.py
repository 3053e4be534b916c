"""What a run would do, without training: the resolved recipe, its shapes, its memory, a sheet of its views."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from revisit.config import DENSE, PRETRAINING
from revisit.data.catalog import get_records
from revisit.data.view_sheet import save_view_sheet
from revisit.engine.optimizer import build_optimizer
from revisit.engine.schedule import epochs_to_iterations, neighbor_loss_start
from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.modeling import build_model

GIB = 2**30


def dry_run(cfg: CfgNode, num_images: int, num_processes: int) -> dict:
    """Print the recipe and write it to OUTPUT_DIR/dry_run.json, the views to OUTPUT_DIR/views.png."""
    output = Path(cfg.OUTPUT_DIR)
    output.mkdir(parents=True, exist_ok=True)
    meta_cfg = cfg.clone()
    meta_cfg.defrost()
    meta_cfg.MODEL.DEVICE = "meta"  # shapes and byte counts without arithmetic
    with torch.device("meta"):
        model = build_model(meta_cfg)
    pretraining = cfg.MODEL.META_ARCHITECTURE in PRETRAINING
    recipe = {**_schedule(cfg, num_images, num_processes), "weight_decays": _weight_decays(cfg, model)}
    if pretraining:
        recipe |= {**_method(cfg, num_images), **_memory(cfg, model, num_processes)}
    if cfg.MODEL.META_ARCHITECTURE in DENSE:
        recipe |= _dense(cfg, model)
    recipe["data"] |= _data_on_disk(cfg)
    (output / "dry_run.json").write_text(json.dumps(recipe, indent=2))
    print(json.dumps(recipe, indent=2))
    print(f"wrote {output / 'dry_run.json'}")
    if pretraining and recipe["data"]["found"]:
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


def _method(cfg: CfgNode, num_images: int) -> dict:
    views, moco, knn = cfg.VIEWS, cfg.MOCO, cfg.KNN_MOCO
    method = {
        "crops": {
            "large": {"count": 2, "size": views.LARGE_SIZE, "scale": list(views.LARGE_SCALE)},
            "small": {"count": views.NUM_SMALL, "size": views.SMALL_SIZE, "scale": list(views.SMALL_SCALE)},
            "min_overlap": views.MIN_OVERLAP if views.NUM_SMALL else 0.0,
            "max_iou": views.MAX_IOU,
        },
        "policy": views.POLICY,
        "momentum": moco.MOMENTUM,
        "temperature": moco.TEMPERATURE,
        "queue_size": moco.QUEUE_SIZE,
        "lambda": 0.0,
        "k": 0,
        "warmup_epochs": 0,
        "warmup_iterations": 0,
    }
    if cfg.MODEL.META_ARCHITECTURE == "KNNMoCo":
        wait = neighbor_loss_start(cfg)
        method |= {
            "lambda": knn.WEIGHT,
            "k": knn.NUM_NEIGHBORS,
            "mining": knn.MINING,
            "enqueue_first": knn.ENQUEUE_FIRST,
            "warmup_epochs": wait,
            "warmup_iterations": epochs_to_iterations(wait, num_images, cfg.SOLVER.IMS_PER_BATCH),
        }
    return method


def _dense(cfg: CfgNode, model: nn.Module) -> dict:
    """Network and input of a dense task; dilations are read off the network as it was built."""
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


def _memory(cfg: CfgNode, model: nn.Module, num_processes: int) -> dict:
    """Bytes of one process in float32, activations measured on a few images' views.

    Accumulation keeps the activations and scores of one part at a time.
    """
    per_process = cfg.SOLVER.IMS_PER_BATCH // num_processes
    at_a_time = per_process // cfg.SOLVER.ACCUMULATION_STEPS
    probe = 2 * cfg.MOCO.BN_SPLITS  # BN refuses statistics over one value
    views = _meta_batch(cfg, probe)
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            saved[id(tensor)] = tensor.numel() * tensor.element_size()
            kept.append(tensor)  # an id is only unique while its tensor lives
        return tensor

    kept: list[torch.Tensor] = []
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        positives, positives_g = model.encode_positives(views)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    queue = {name: list(getattr(model.queue, name).shape) for name in model.queue.names}
    batch = _meta_batch(cfg, per_process)
    scores = at_a_time * positives.shape[1] * model.queue.length * 4
    gib = {
        "weights_momentum_gradients_sgd": 4 * 4 * trained / GIB,
        "queue": sum(4 * rows * width for rows, width in queue.values()) / GIB,
        "activations": at_a_time * sum(saved.values()) / probe / GIB,
        "scores": 3 * scores / GIB,  # s, its exponentials and its gradient
        "batch": sum(view.numel() for view in batch.values()) / GIB,
    }
    gib = {name: round(value, 3) for name, value in gib.items()}
    return {
        "shapes": {
            **{name: list(view.shape) for name, view in batch.items()},
            "positives": [at_a_time, *positives.shape[1:]],
            "positives_g": [at_a_time, *positives_g.shape[1:]],
            "anchors": [at_a_time, model.embedding_dim],
            **{f"queue.{name}": shape for name, shape in queue.items()},
        },
        "memory_dtype": "float32",
        "memory_gib_per_process": {**gib, "total": round(sum(gib.values()), 3)},
    }


def _meta_batch(cfg: CfgNode, size: int) -> dict[str, torch.Tensor]:
    """A batch of views with shapes alone."""
    views = cfg.VIEWS

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.uint8, device="meta")

    large, small = views.LARGE_SIZE, views.SMALL_SIZE
    batch = {"anchor": empty(size, 3, large, large), "positive": empty(size, 3, large, large)}
    if views.NUM_SMALL:
        batch["small"] = empty(size, views.NUM_SMALL, 3, small, small)
    return batch


def _data_on_disk(cfg: CfgNode) -> dict:
    try:
        for name in cfg.DATASETS.TRAIN:
            get_records(name)
    except UserError as error:
        return {"found": False, "problem": str(error)}
    return {"found": True}
