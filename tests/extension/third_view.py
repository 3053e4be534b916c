"""A third large view: MODEL.META_ARCHITECTURE ThreeLarge is kNN-MoCo with another large positive, ``third``."""

from dataclasses import dataclass

import torch

from revisit.data.images.reader import Picture
from revisit.data.randomness import counter_rng
from revisit.data.views.boxes import random_resized_crop
from revisit.data.views.mapper import VIEW_MAPPER_REGISTRY, ViewMapper, Views
from revisit.modeling.meta_arch.knn_moco import KNNMoCo
from revisit.modeling.meta_arch.moco import Encoded

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY

STREAM = 1000  # of its random numbers


@dataclass(frozen=True)
class ThreeLargeMapper(ViewMapper):
    """As it was, and a third large view; all other views are as they are without it."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes
        return shapes | {"third": shapes["positive"]}

    def of_picture(self, picture: Picture, epoch: int, index: int, room: dict | None = None) -> Views:
        image = picture.decode()
        views = super().of_picture(picture._replace(data=image), epoch, index, room)  # which is decoded once
        rng = counter_rng(self.seed, STREAM, epoch, index)
        box = random_resized_crop(*image.shape[:2], self.crops.large_scale, rng)
        self.fill(views["third"], image, box, self.positive_look(rng))
        return views


@META_ARCH_REGISTRY.register()
class ThreeLarge(KNNMoCo):
    """Positives are the large one, the third view, both in one pass, and the small ones."""

    def encode_positives(self, batch: dict) -> Encoded:
        large = torch.stack([batch["positive"], batch["third"]], dim=1)
        passes = [large, batch["small"]] if "small" in batch else [large]
        return Encoded(*self.rows_of(passes, self.projection_head))


@VIEW_MAPPER_REGISTRY.register()
def three_large(cfg: CfgNode) -> type[ViewMapper] | None:
    return ThreeLargeMapper if cfg.MODEL.META_ARCHITECTURE == "ThreeLarge" else None
