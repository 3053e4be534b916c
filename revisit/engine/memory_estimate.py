"""What a pretraining step costs, read off the network itself on the meta device: memory and arithmetic."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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


def memory_per_process(cfg: CfgNode, model: nn.Module, num_processes: int) -> dict:
    """Shapes, and GiB of one process in float32, activations measured on a few images' views.

    Accumulation keeps the activations and scores of one part at a time.
    """
    per_process = cfg.SOLVER.IMS_PER_BATCH // num_processes
    at_a_time = per_process // cfg.SOLVER.ACCUMULATION_STEPS
    probe = 2 * cfg.MOCO.BN_SPLITS  # BN refuses statistics over one value
    views = meta_batch(cfg, probe)
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            saved[id(tensor)] = tensor.numel() * tensor.element_size()
            kept.append(tensor)  # an id is only unique while its tensor lives
        return tensor

    kept: list[torch.Tensor] = []
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        positives, positives_g, *cells = model.encode_positives(views)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    queue = {name: list(getattr(model.queue, name).shape) for name in model.queue.names}
    batch = meta_batch(cfg, per_process)
    scores = 0
    for queries in (positives, *cells[1:]):  # DenseCL's cells have a queue of their own
        size = at_a_time * queries.shape[1] * model.queue.length
        scores += 4 * (min(size, model.max_scores) or size)
    gib = {
        "weights_momentum_gradients_sgd": 4 * 4 * trained / GIB,
        "queue": sum(getattr(model.queue, name).nbytes for name in queue) / GIB,
        "activations": at_a_time * sum(saved.values()) / probe / GIB,
        "scores": 3 * scores / GIB,  # s, its exponentials and its gradient
        "batch": sum(view.numel() for view in batch.values()) / GIB,
    }
    if cells:  # of both views
        gib["cells"] = 2 * at_a_time * sum(rows.nbytes for rows in cells) / probe / GIB
    gib = {name: round(value, 3) for name, value in gib.items()}
    return {
        "shapes": {
            **{name: list(view.shape) for name, view in batch.items()},
            "positives": [at_a_time, *positives.shape[1:]],
            "positives_g": [at_a_time, *positives_g.shape[1:]],
            "anchors": [at_a_time, model.embedding_dim],
            **{name: [at_a_time, *rows.shape[1:]] for name, rows in zip(("cells", "dense"), cells, strict=False)},
            **{f"queue.{name}": shape for name, shape in queue.items()},
        },
        "memory_dtype": "float32",
        "memory_gib_per_process": {**gib, "total": round(sum(gib.values()), 3)},
    }


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


def flops_per_image(cfg: CfgNode, model: nn.Module) -> float:
    """Floating-point operations (a multiply-add is two) of one image in a step, of the networks alone.

    Forward and backward of g and the heads on the positives, forward of the momentum encoder on the anchor.
    """
    probe = 2 * cfg.MOCO.BN_SPLITS
    views = meta_batch(cfg, probe)
    model.train()
    with FlopCounterMode(display=False) as counter:
        encoded = model.encode_positives(views)
        sum(rows.sum() for rows in encoded if rows.requires_grad).backward()
        model.encode_anchors(views["anchor"])
    return counter.get_total_flops() / probe


def head_flops_per_image(cfg: CfgNode, model: nn.Module) -> float:
    """Floating-point operations of one image's scores: against Q_h with their gradient and, for neighbours, Q_g; of
    DenseCL's cells against Q_d with their gradient and against the key's cells."""
    rows, queries = cfg.MOCO.QUEUE_SIZE, 1 + cfg.VIEWS.NUM_SMALL
    mining = model.queue_widths().get("features", 0)
    matching = 0
    with torch.no_grad():
        _, _, *cells = model.encode_positives(meta_batch(cfg, 2 * cfg.MOCO.BN_SPLITS))
    if cells:
        places, width = cells[0].shape[1:]
        queries += places
        matching = places * places * width
    return 2.0 * (rows * queries * (2 * model.embedding_dim + mining) + matching)
