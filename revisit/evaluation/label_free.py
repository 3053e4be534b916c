"""What can be said of features without labels: how many directions they fill, how views of an image and how different
images lie to each other, and how far neighbours stay the same while the network learns."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from revisit.data.deep_pixels import bit_depth
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import sample
from revisit.data.views.mapper import ViewMapper
from revisit.evaluation.features import CenterCropDataset, SingleViewDataset, features_of
from revisit.keys import Decision, Facts, declare, integer

from detectron2.config import CfgNode

EPSILON = 1e-7  # RankMe's, of each share
SEED = 0  # of the views, whatever the run's: runs of one recipe are compared on the same views
CHUNK = 1024  # rows


LABEL_FREE = ("rankme", "alignment", "uniformity")  # of LabelFreeScores; none is better for being higher or lower


def images_to_judge(cfg: CfgNode, facts: Facts) -> Decision | None:
    """The images that are learned from, where train is asked for."""
    if cfg.MONITOR.IMAGES != "train" or not cfg.DATASETS.TRAIN:
        return None
    return Decision(cfg.DATASETS.TRAIN[0], "the first of DATASETS.TRAIN")


monitor = partial(declare, may_change=True, read_by="Pretraining")
monitor(
    "MONITOR.IMAGES",
    "",
    "Data set without labels whose features are judged at every evaluation (docs/reading-a-run.md), with the sizes and "
    "neighbours of KNN_EVAL. train is the first of DATASETS.TRAIN; '': none.",
    resolve=images_to_judge,
)
monitor(
    "MONITOR.MAX_IMAGES",
    2048,
    "Of these images at most so many, spread evenly; rankme needs a few times as many as there are features.",
    integer(2, 2**20, "images"),
)


class LabelFreeScores(NamedTuple):
    """Of one evaluation of MONITOR.IMAGES, M images."""

    rankme: float
    alignment: float
    uniformity: float
    neighbors: Tensor  # (M, k) of ``nearest``


def rankme(rows: Tensor) -> float:
    """Effective rank of features (M, Cg): from 1, where all point the same way, to min(M, Cg); of no numbers NaN.

    exp(-sum_n p_n log p_n), where p_n = s_n / sum s + 1e-7 of the singular values s (Garrido et al., RankMe, ICML 2023,
    Equations 1 and 2). In float64. There the rows are embeddings as they are, here they have length 1.
    """
    if not rows.isfinite().all():
        return math.nan
    values = torch.linalg.svdvals(rows.double())
    shares = values / values.sum() + EPSILON
    return (-(shares * shares.log()).sum()).exp().item()


def alignment(one: Tensor, other: Tensor) -> float:
    """Mean squared distance of unit rows (M, Cg) of two views of the same images: from 0, where both views of every
    image agree, to 4 (Wang and Isola, ICML 2020, Section 4.1, with alpha = 2)."""
    return (one.double() - other.double()).square().sum(dim=1).mean().item()


def uniformity(rows: Tensor) -> float:
    """Logarithm of the mean of exp(-2 |x - y|^2) over pairs of different images, of unit rows (M, Cg), M > 1.

    0 where all are the same; near -4 where they are spread evenly over a sphere of many dimensions (Wang and Isola,
    ICML 2020, Section 4.1, with t = 2).
    """
    total = sum((4 * cosines - 4).exp().sum().item() for cosines in _cosines_with_others(rows))
    return math.log(total / (len(rows) * (len(rows) - 1)))


def nearest(rows: Tensor, k: int) -> Tensor:
    """(M, k) int32: the k rows of the largest cosine with each of the unit rows (M, Cg), which is not among its own."""
    return torch.cat([cosines.topk(k, dim=1).indices.int() for cosines in _cosines_with_others(rows)])


def neighbor_stability(before: Tensor, now: Tensor) -> float:
    """Percent of the ``nearest`` (M, k) rows of an evaluation that are those of another one too, in any order."""
    same = sum(torch.isin(*pair).sum().item() for pair in zip(before, now, strict=True))
    return 100 * same / now.numel()


def _cosines_with_others(rows: Tensor) -> Iterator[Tensor]:
    """Chunks (m, M) of the cosines of all pairs in float64, -inf of a row with itself."""
    rows = rows.double()
    for start in range(0, len(rows), CHUNK):
        cosines = rows[start : start + CHUNK] @ rows.T
        places = torch.arange(len(cosines), device=rows.device)
        cosines[places, start + places] = -math.inf
        yield cosines


def watched_records(cfg: CfgNode) -> list[dict]:
    """Of MONITOR.IMAGES at most MONITOR.MAX_IMAGES records, spread evenly: always the same ones."""
    return sample(get_records(cfg.MONITOR.IMAGES), cfg.MONITOR.MAX_IMAGES)


def label_free_scores(cfg: CfgNode, model: nn.Module) -> LabelFreeScores | None:
    """Judge the features of MONITOR.IMAGES, seen as kNN sees images; None but on the main process.

    Alignment is that of the recipe's own views, the anchor and the large positive, drawn once and for all.
    """
    records, depth = watched_records(cfg), bit_depth(cfg)
    crops = features_of(cfg, model, CenterCropDataset(records, cfg.KNN_EVAL.IMAGE_SIZE, depth, replaced=True))
    mapper = ViewMapper.from_config(cfg)
    mapper = replace(mapper, crops=replace(mapper.crops, num_small=0), seed=SEED)
    views = features_of(cfg, model, SingleViewDataset(records, mapper, depth))
    if crops is None or views is None:
        return None
    rows, views = (each.rows.to(cfg.MODEL.DEVICE) for each in (crops, views))
    return LabelFreeScores(
        rankme=rankme(rows),
        alignment=alignment(views[::2], views[1::2]),
        uniformity=uniformity(rows),
        neighbors=nearest(rows, cfg.KNN_EVAL.NUM_NEIGHBORS).cpu(),
    )
