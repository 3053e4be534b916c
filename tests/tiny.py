"""Small recipes that many tests share; importable from the child processes of the 2-process tests too."""

import numpy as np
import torch
from torch.nn.functional import normalize

import revisit.modeling  # noqa: F401  (registers the networks)
from revisit.config import add_revisit_config

from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import build_model
from detectron2.utils.events import EventStorage

BACKBONE = ("MODEL.RESNETS.DEPTH", 18, "MODEL.RESNETS.RES2_OUT_CHANNELS", 8, "MODEL.RESNETS.STEM_OUT_CHANNELS", 8)
FEATURE_DIM = 64  # of that backbone


def tiny_config(*options: object) -> CfgNode:
    """The kNN-MoCo recipe around a backbone of 0.2 M parameters, 32-px and 16-px crops, on the CPU."""
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_file("configs/Base-Pretrain.yaml")
    cfg.merge_from_list([
        *BACKBONE,
        "MODEL.DEVICE", "cpu", "SOLVER.PRECISION", "", "SEED", 7, "DATALOADER.NUM_WORKERS", 0,
        "VIEWS.LARGE_SIZE", 32, "VIEWS.SMALL_SIZE", 16,
        "MOCO.QUEUE_SIZE", 50, "MOCO.EMBEDDING_DIM", 16, "MOCO.BN_GROUP", 0,
        "NEIGHBORS.WEIGHT", 0.4, "NEIGHBORS.NUM_NEIGHBORS", 5, "NEIGHBORS.WARMUP_EPOCHS", 0,
        "SOLVER.IMS_PER_BATCH", 8, "SOLVER.MAX_ITER", 10, "SOLVER.BASE_LR", 0.05,
        *options,
    ])  # fmt: skip
    return cfg


def tiny_model(*options: object) -> torch.nn.Module:
    """The model of ``tiny_config``, the same for the same options."""
    torch.manual_seed(0)
    return build_model(tiny_config(*options))


def random_views(batch: int, *, large: int = 32, small: int = 16, num_small: int = 4, seed: int = 0) -> dict:
    """A batch of noise in the form of a ViewBatch."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    views = {"anchor": noise(batch, 3, large, large), "positive": noise(batch, 3, large, large)}
    if num_small:
        views["small"] = noise(batch, num_small, 3, small, small)
    return views


def freeze_batch_norm(model: torch.nn.Module) -> torch.nn.Module:
    """Put every BN layer into evaluation mode, so that an image's features do not depend on its batch."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def loss_inputs(
    num_positives: int = 5, *, batch: int = 6, queue_size: int = 37, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """Embeddings and features in random directions, by the name of the losses' argument."""
    generator = torch.Generator().manual_seed(0)

    def unit(*shape: int) -> torch.Tensor:
        return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1).to(dtype)

    return {
        "positives": unit(batch, num_positives, 16),
        "anchors": unit(batch, 16),
        "queue": unit(queue_size, 16),
        "positives_g": unit(batch, num_positives, 24),
        "queue_g": unit(queue_size, 24),
    }


def step(model: torch.nn.Module, views: dict, iteration: int = 0) -> tuple[dict[str, torch.Tensor], EventStorage]:
    """The losses of one forward in training, and what it has logged."""
    with EventStorage(iteration) as storage:
        return model(views), storage


def direct_losses(p, a, queue, p_g=None, queue_g=None, k=0, tau=0.2) -> tuple[float, float]:
    """L_inst and L_nn of the numpy arrays of ``loss_inputs``, as the formulas are written, one positive at a time."""
    inst, nearest = [], []
    for i, j in np.ndindex(p.shape[:2]):
        s = np.array([p[i, j] @ row / tau for row in queue])
        positive = p[i, j] @ a[i] / tau
        inst.append(-np.log(np.exp(positive) / (np.exp(positive) + np.exp(s).sum())))
        if k:
            chosen = np.argsort([-p_g[i, j] @ row for row in queue_g])[:k]
            nearest.append(-np.mean([np.log(np.exp(s[n]) / np.exp(s).sum()) for n in chosen]))
    return float(np.mean(inst)), float(np.mean(nearest or 0))


LEVELS = ["res2", "res3", "res4", "res5"]
OBJECTS = (  # ObjectMoCo around a pyramid over that backbone: 3 objects of the large positive and 1 of each of 2 small
    *("MODEL.META_ARCHITECTURE", "ObjectMoCo", "MODEL.BACKBONE.NAME", "build_revisit_fpn_backbone"),
    *("MODEL.RESNETS.OUT_FEATURES", LEVELS, "MODEL.FPN.IN_FEATURES", LEVELS, "MODEL.FPN.OUT_CHANNELS", 8),
    *("MODEL.FPN.NORM", "BN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads"),
    *("MODEL.ROI_HEADS.IN_FEATURES", ["p2", "p3", "p4", "p5"], "MODEL.ROI_BOX_HEAD.NAME", "FastRCNNConvFCHead"),
    *("MODEL.ROI_BOX_HEAD.NUM_FC", 2, "MODEL.ROI_BOX_HEAD.FC_DIM", 24, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 2),
    *("MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO", 2, "VIEWS.LARGE_SIZE", 64, "VIEWS.SMALL_SIZE", 32),
    *("VIEWS.NUM_SMALL", 2, "OBJECTS.NUM_BOXES", 3, "OBJECTS.CANONICAL_SIZE", 24),
)
C4 = (  # the same without a pyramid: res5 of a C4 detector, its batch norm included, is the box head
    *(*OBJECTS, "MODEL.BACKBONE.NAME", "build_revisit_resnet_backbone", "MODEL.ROI_HEADS.NAME", "Res5NormROIHeads"),
    *("MODEL.RESNETS.OUT_FEATURES", ["res4"], "MODEL.ROI_HEADS.IN_FEATURES", ["res4"]),
    *("MODEL.RESNETS.DEPTH", 50, "MODEL.RESNETS.WIDTH_PER_GROUP", 4),
)


def random_objects(batch: int, num_boxes: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    """Boxes of random places in views of 64 px, and in two small ones of 32; a few are left out."""
    rng = np.random.default_rng(seed)
    sizes = np.array([64] * num_boxes + [32] * 2)[:, None]
    corners = np.sort(rng.random((batch, 2, num_boxes + 2, 2, 2)), axis=3)  # lower and upper, x and y
    boxes = corners.reshape(batch, 2, num_boxes + 2, 4)
    boxes[:, 0] *= 64
    boxes[:, 1] *= sizes
    boxes[:, 1][rng.random((batch, num_boxes + 2)) < 0.2] = np.nan
    anchor, positive = torch.from_numpy(boxes.astype(np.float32)).unbind(1)
    return {"anchor_objects": anchor, "positive_objects": positive}
