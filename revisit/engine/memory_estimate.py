"""How much memory a pretraining step takes, read off the network itself on the meta device."""

import torch
from torch import nn

from revisit.modeling.meta_arch.pretraining import Pretraining

from detectron2.config import CfgNode
from detectron2.modeling import build_model

GIB = 2**30


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
    weights = sum(p.numel() * (3 if p.requires_grad else 1) for p in model.parameters())  # with gradient and momentum
    sizes = {
        "weights_momentum_gradients_sgd": 4 * weights,
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
    saved: dict[int, int] = {}
    kept: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            saved[id(tensor)] = tensor.numel() * tensor.element_size()
            kept.append(tensor)  # an id is only unique while its tensor lives
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoded = model.encode(views)
    return encoded, sum(saved.values())


def meta_batch(cfg: CfgNode, size: int) -> dict[str, torch.Tensor]:
    """A batch of views with shapes alone."""
    views = cfg.VIEWS

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.uint8, device="meta")

    large, small = views.LARGE_SIZE, views.SMALL_SIZE
    batch = {"anchor": empty(size, 3, large, large), "positive": empty(size, 3, large, large)}
    if views.NUM_SMALL:
        batch["small"] = empty(size, views.NUM_SMALL, 3, small, small)
    return batch
