"""Floating-point operations of a step, counted on the network itself; a multiply-add is two."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from revisit.engine.memory_estimate import meta_batch
from revisit.modeling.meta_arch.moco import MoCo

from detectron2.config import CfgNode


def flops_per_image(cfg: CfgNode, model: MoCo) -> float:
    """Of one image, of the networks alone: forward and backward of g and the heads on the positives, forward of the
    momentum encoder on the anchor."""
    views = meta_batch(cfg, model.smallest_batch)
    model.train()
    with FlopCounterMode(display=False) as counter:
        encoded = model.encode(views)
        sum(rows.sum() for rows in encoded.values() if rows.requires_grad).backward()
        model.encode_anchors(views["anchor"])
    return counter.get_total_flops() / model.smallest_batch


def head_flops_per_image(cfg: CfgNode, model: MoCo) -> float:
    """Of one image's scores: against the queue's keys with their gradient and, for neighbours, against its features;
    of DenseCL's cells also against the key's cells."""
    with torch.no_grad():
        encoded = model.encode(meta_batch(cfg, model.smallest_batch))
    queries = sum(rows.shape[1] for rows in model.scored_rows(encoded))
    mining = model.queue_widths().get("features", 0)
    places, width = encoded["cells"].shape[1:] if "cells" in encoded else (0, 0)
    return 2.0 * (model.queue.length * queries * (2 * model.embedding_dim + mining) + places * places * width)
