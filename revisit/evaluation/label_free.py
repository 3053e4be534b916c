"""What can be said of features without labels: how many directions they fill, how views of an image and how different
images lie to each other, and how far neighbours stay the same while the network learns."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from revisit.data.catalog import get_records
from revisit.data.deep_pixels import bit_depth
from revisit.data.mapper import ViewMapper
from revisit.data.records import sample
from revisit.evaluation.features import CenterCropDataset, Features, SingleViewDataset, features_of
from revisit.keys import declare, whole

from detectron2.config import CfgNode

EPSILON = 1e-7  # RankMe's, of each share
SEED = 0  # of the views, whatever the run's: runs of one recipe are compared on the same views
CHUNK = 1024  # rows


LABEL_FREE = ("rankme", "alignment", "uniformity")  # of LabelFreeScores; none is better for being higher or lower


declare(
    "MONITOR.IMAGES",
    "",
    "Data set without labels, such as folder:/data/photos, whose features are judged at every evaluation: "
    "rankme, alignment, uniformity, neighbor_stability (docs/reading-a-run.md), with the sizes and neighbours of "
    "KNN_EVAL. train is the first of DATASETS.TRAIN; '' switches the monitor off.",
    may_change=True,
    read_by="Pretraining",
)
declare(
    "MONITOR.MAX_IMAGES",
    2048,
    "Of these images at most so many, spread evenly; rankme needs a few times as many as there are features.",
    whole(2, 2**20, "images"),
    may_change=True,
    read_by="Pretraining",
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


def watched_rows(cfg: CfgNode, model: nn.Module, extract: Callable[[str], Features | None]) -> Tensor | None:
    """(M, Cg) unit rows of ``watched_records``, seen as kNN sees images; None but on the main process.

    Args:
        extract: ``extractor`` of the model, which is asked where kNN needs the features of MONITOR.IMAGES too.
    """
    name, most = cfg.MONITOR.IMAGES, cfg.MONITOR.MAX_IMAGES
    if name in (cfg.KNN_EVAL.BANK, *cfg.DATASETS.TEST):
        features = extract(name)
        return features and features.rows[sample(range(len(features.rows)), most)]
    crops = CenterCropDataset(watched_records(cfg), cfg.KNN_EVAL.IMAGE_SIZE, bit_depth(cfg), replaced=True)
    features = features_of(cfg, model, crops)
    return features and features.rows


def label_free_scores(
    cfg: CfgNode, model: nn.Module, extract: Callable[[str], Features | None]
) -> LabelFreeScores | None:
    """Judge the features of MONITOR.IMAGES; None but on the main process.

    Alignment is that of the recipe's own views, the anchor and the large positive, drawn once and for all; ``extract``
    is that of ``watched_rows``.
    """
    rows = watched_rows(cfg, model, extract)
    mapper = ViewMapper.from_config(cfg)
    mapper = replace(mapper, crops=replace(mapper.crops, num_small=0), seed=SEED, looks_on_device=False)
    views = features_of(cfg, model, SingleViewDataset(watched_records(cfg), mapper, bit_depth(cfg)))
    if rows is None or views is None:
        return None
    rows, views = (each.to(cfg.MODEL.DEVICE) for each in (rows, views.rows))
    return LabelFreeScores(
        rankme=rankme(rows),
        alignment=alignment(views[::2], views[1::2]),
        uniformity=uniformity(rows),
        neighbors=nearest(rows, cfg.KNN_EVAL.NUM_NEIGHBORS).cpu(),
    )
