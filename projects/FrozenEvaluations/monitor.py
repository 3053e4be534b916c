"""MONITOR: the features of a data set without labels, judged at every evaluation of a pretraining."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from projects.FrozenEvaluations.label_free import alignment, neighbor_stability, rankme, uniformity
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import open_record
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import Records, changes, fingerprint, sample
from revisit.data.views.mapper import ViewMapper, Views
from revisit.errors import expect
from revisit.evaluation.features import CenterCropDataset, Features, features_of, readable_record
from revisit.evaluation.nearest import nearest_others
from revisit.evaluation.registry import PRETRAINING_EVALUATION_REGISTRY, PretrainingEvaluation, Score
from revisit.keys import Decision, Facts, declare, integer

from detectron2.config import CfgNode
from detectron2.engine import HookBase

SEED = 0  # of the views, whatever the run's: runs of one recipe are compared on the same views

logger = logging.getLogger(__name__)


def images_to_judge(cfg: CfgNode, facts: Facts) -> Decision | None:
    """The images that are learned from, where train is asked for."""
    if cfg.MONITOR.IMAGES != "train" or not cfg.DATASETS.TRAIN:
        return None
    return Decision(cfg.DATASETS.TRAIN[0], "the first of DATASETS.TRAIN")


monitor = partial(declare, may_change=True, read_by="Pretraining")
monitor(
    "MONITOR.IMAGES",
    "",
    "Data set without labels whose features are judged at every evaluation (docs/training.md), with the sizes and "
    "neighbours of KNN_EVAL. train is the first of DATASETS.TRAIN; '': none.",
    resolve=images_to_judge,
)
monitor(
    "MONITOR.MAX_IMAGES",
    2048,
    "Of these images at most so many, spread evenly; rankme needs a few times as many as there are features.",
    integer(2, 2**20, "images"),
)


def monitored_records(cfg: CfgNode) -> Records:
    """Of MONITOR.IMAGES at most MONITOR.MAX_IMAGES records, spread evenly: always the same ones."""
    return sample(get_records(cfg.MONITOR.IMAGES), cfg.MONITOR.MAX_IMAGES)


@dataclass(frozen=True)
class SingleViewDataset(Dataset):
    """Of each image in turn its anchor and its large positive in the first epoch, or those of the next readable one."""

    records: list[dict]
    mapper: ViewMapper
    pixels: PixelFormat

    def __len__(self) -> int:
        return 2 * len(self.records)

    def __getitem__(self, number: int) -> dict:
        index = number // 2
        name = ("anchor", "positive")[number % 2]

        def views_of(record: dict) -> Views:
            return self.mapper.of_picture(open_record(record, self.pixels), 0, index)

        _, views = readable_record(self.records, index, views_of)
        return {"image": torch.from_numpy(views[name]).permute(2, 0, 1), "label": -1}


class LabelFreeScores(NamedTuple):
    """Of one evaluation of MONITOR.IMAGES, M images."""

    rankme: float
    alignment: float
    uniformity: float
    neighbors: Tensor  # (M, k) int32


def label_free_scores(cfg: CfgNode, model: nn.Module) -> LabelFreeScores | None:
    """Judge the features of MONITOR.IMAGES, seen as kNN sees images; None but on the main process.

    Alignment is that of the recipe's own views, the anchor and the large positive, drawn once and for all.
    """
    records = monitored_records(cfg)
    pixels = pixel_format(cfg)
    crops = features_of(cfg, model, CenterCropDataset(records, cfg.KNN_EVAL.IMAGE_SIZE, pixels, replaced=True))
    mapper = ViewMapper.from_config(cfg)
    mapper = replace(mapper, crops=replace(mapper.crops, num_small=0), seed=SEED)
    views = features_of(cfg, model, SingleViewDataset(records, mapper, pixels))
    if crops is None or views is None:
        return None
    rows = crops.rows.to(cfg.MODEL.DEVICE)
    views = views.rows.to(cfg.MODEL.DEVICE)
    return LabelFreeScores(
        rankme=rankme(rows),
        alignment=alignment(views[::2], views[1::2]),
        uniformity=uniformity(rows),
        neighbors=nearest_others(rows, cfg.KNN_EVAL.NUM_NEIGHBORS).places.int().cpu(),
    )


@PRETRAINING_EVALUATION_REGISTRY.register()
class LabelFreeMonitor(PretrainingEvaluation):
    """``rankme``, ``alignment`` and ``uniformity``, none of which is better for being higher or lower."""

    SCORES = tuple(Score(name, better="", unit="") for name in ("rankme", "alignment", "uniformity"))
    REPLACES = True

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.last: LabelFreeScores | None = None  # of the last evaluation, on the main process

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        return cfg.MONITOR.IMAGES != ""

    @classmethod
    def data_sets(cls, cfg: CfgNode) -> list[str]:
        return [cfg.MONITOR.IMAGES]

    @classmethod
    def options(cls, cfg: CfgNode) -> dict[str, object]:
        return {**cfg.MONITOR, "size": cfg.KNN_EVAL.IMAGE_SIZE, "neighbors": cfg.KNN_EVAL.NUM_NEIGHBORS}

    @classmethod
    def check(cls, cfg: CfgNode, records: Mapping[str, Records]) -> None:
        name = cfg.MONITOR.IMAGES
        neighbors = cfg.KNN_EVAL.NUM_NEIGHBORS
        if name in records:
            count = min(len(records[name]), cfg.MONITOR.MAX_IMAGES)
            expect(
                count > neighbors,
                f"MONITOR.IMAGES {name} gives {count} images (MONITOR.MAX_IMAGES {cfg.MONITOR.MAX_IMAGES}): expected "
                f"more than KNN_EVAL.NUM_NEIGHBORS {neighbors}: lower that, or measure nothing by MONITOR.IMAGES ''",
            )

    def evaluate(self, model: nn.Module, features_of: Callable[[str], Features | None]) -> dict[str, float]:
        self.last = scores = label_free_scores(self.cfg, model)
        if scores is None:
            return {}
        logger.info(
            f"{len(scores.neighbors)} images of {self.cfg.MONITOR.IMAGES}: RankMe {scores.rankme:.1f} of "
            f"{model.feature_dim}, alignment {scores.alignment:.3f}, uniformity {scores.uniformity:.3f}"
        )
        return {score.name: getattr(scores, score.name) for score in self.SCORES}

    def hooks(self) -> list[HookBase]:
        return [LabelFreeHistory(self, fingerprint(monitored_records(self.cfg), labels=False))]


class LabelFreeHistory(HookBase):
    """Logs ``neighbor_stability`` from the second evaluation on, and once, when the curves have flattened, advice: when
    of the last FLAT sizes of RankMe, alignment and uniformity the largest exceeds the smallest by at most TOLERANCE.

    Args:
        images: ``fingerprint`` of MONITOR.IMAGES.
    """

    FLAT = 4  # evaluations
    TOLERANCE = 0.05

    def __init__(self, monitor: LabelFreeMonitor, images: list[dict]):
        options = monitor.cfg.KNN_EVAL
        self._monitor = monitor
        self._images = images
        self._options = {"size": options.IMAGE_SIZE, "neighbors": options.NUM_NEIGHBORS}
        self._last: list[list[float]] = []  # at most FLAT evaluations: RankMe, alignment, uniformity
        self._neighbors: Tensor | None = None  # of the last one
        self._advised = False

    def state_dict(self) -> dict:
        return {
            "images": self._images,
            "options": self._options,
            "last": self._last,
            "neighbors": self._neighbors,
            "advised": self._advised,
        }

    def load_state_dict(self, state: dict) -> None:
        if changes(state["images"], self._images, times=False) or state["options"] != self._options:
            logger.info("MONITOR.IMAGES are others than before: their evaluations are compared from here on")
            return
        self._last = state["last"]
        self._neighbors = state["neighbors"]
        self._advised = state["advised"]

    def after_step(self) -> None:
        scores = self._monitor.last
        if not self.trainer.is_evaluated or scores is None:
            return
        if self._neighbors is not None:
            stability = neighbor_stability(self._neighbors, scores.neighbors)
            self.trainer.storage.put_scalar("neighbor_stability", stability, smoothing_hint=False)
            logger.info(f"{stability:.1f} % of the nearest neighbours are those of the evaluation before")
        self._neighbors = scores.neighbors
        self._last = [*self._last, [scores.rankme, scores.alignment, scores.uniformity]][-self.FLAT :]
        if self._is_flat() and not self._advised:
            self._advised = True
            logger.info(
                f"the curves without labels have flattened: the last {self.FLAT} lie within {self.TOLERANCE:.0%}. "
                "Finetune this network before you train on (docs/training.md: Without labels)"
            )

    def _is_flat(self) -> bool:
        sizes = np.abs(self._last)  # whose extremes are NaN where a value is
        within = sizes.max(axis=0) <= (1 + self.TOLERANCE) * sizes.min(axis=0)
        return len(sizes) == self.FLAT and bool(within.all())
