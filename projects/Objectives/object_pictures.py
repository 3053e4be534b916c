"""Pictures of objects: their boxes in the views, and the objects that a network finds alike."""

import colorsys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from projects.Pictures.pretraining_sheets import NEIGHBOR, picture_path, pixels_of, save_gallery
from projects.Pictures.tiles import BLACK, TILE, SheetRow, framed, outline
from revisit.data.images.deep_images import pixel_format
from revisit.data.loading.loader import ViewDataset
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import sample
from revisit.data.to_device import to_device
from revisit.data.views.mapper import ViewMapper
from revisit.evaluation.features import Features
from revisit.evaluation.nearest import nearest
from revisit.evaluation.registry import PRETRAINING_EVALUATION_REGISTRY, PretrainingEvaluation
from revisit.modeling.meta_arch.pretraining import method_of, unit_rows

from detectron2.config import CfgNode
from detectron2.evaluation import inference_context
from detectron2.utils import comm

GREY = (130, 130, 130)  # RGB
NUM_QUERIES = 10
NUM_NEAREST = 8


def draw_objects(tiles: list[np.ndarray], views: Mapping, num_large: int) -> None:
    """Draw each object that its positive shows into the tiles of an image's views, in place: in the positive and in the
    anchor, in one colour. The first ``num_large`` objects are the large positive's."""
    annotations = views["annotations"]
    keys = annotations["anchor_objects"]
    queries = annotations["positive_objects"]
    all_views = [views["anchor"], views["positive"], *views.get("small", ())]
    num_small = len(tiles) - 2
    of_small = len(keys) - num_large
    is_shown = np.isfinite(queries).all(axis=1)
    for n in np.flatnonzero(is_shown).tolist():
        hue = n / len(keys)
        color = [round(255 * value) for value in colorsys.hsv_to_rgb(hue, 1, 1)]
        view = 1 if n < num_large else 2 + (n - num_large) * num_small // of_small
        for index, box in ((0, keys[n]), (view, queries[n])):
            outline(tiles[index], box * TILE / len(all_views[index]), color)


@PRETRAINING_EVALUATION_REGISTRY.register()
class ObjectGallery(PretrainingEvaluation):
    """Draws ``object_gallery`` at each evaluation of a method with ``object_features``: neighbours_objects_....png."""

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        return hasattr(method_of(cfg), "object_features") and bool(cfg.DATASETS.TRAIN)

    def evaluate(self, model: nn.Module, features_of: Callable[[str], Features | None]) -> dict[str, float]:
        if comm.is_main_process():
            with inference_context(model):  # whose statistics of BN stay as they are
                object_gallery(self.cfg, model, picture_path(self.cfg, "neighbours_objects"))
        return {}


@torch.no_grad()
def object_gallery(cfg: CfgNode, model: nn.Module, path: Path, num_images: int = 64) -> None:
    """Write a picture: objects in anchors of the first of DATASETS.TRAIN, each next to its nearest objects of other
    images. A file that cannot be written is logged."""
    name = cfg.DATASETS.TRAIN[0]
    anchors, boxes = _anchors_of(cfg, name, num_images)
    views = to_device(anchors, model.device)
    places = to_device(boxes, model.device)
    features, _ = model.object_features(model.backbone, model.roi_heads, views, places)
    rows = unit_rows(features)  # (n, O, C)
    pictures = pixel_format(cfg).picture(pixels_of(anchors))
    crops = _cut_out(pictures, boxes)
    sheet = []
    for query in sample(range(len(crops)), NUM_QUERIES):
        own = framed(crops[query], BLACK, NEIGHBOR)
        others = [framed(crops[n], GREY, NEIGHBOR) for n in _nearest_in_other_images(rows, query)]
        sheet.append(SheetRow([own, *others]))
    save_gallery(path, sheet, f"{name}: objects, and their nearest objects of other images")


def _anchors_of(cfg: CfgNode, name: str, num_images: int) -> tuple[Tensor, Tensor]:
    """Anchors of the first epoch (n, C, H, W) uint8, and the boxes of their objects (n, O, 4) px."""
    records = get_records(name)
    keys = [(0, index) for index in sample(range(len(records)), num_images)]
    batch = ViewDataset(records, ViewMapper.from_config(cfg), pixel_format(cfg)).__getitems__(keys)
    return batch["anchor"], batch["anchor_objects"]


def _cut_out(pictures: np.ndarray, boxes: Tensor) -> list[np.ndarray]:
    """The pixels of every box of (n, H, W, 3) pictures."""
    crops = []
    for picture, corners in zip(pictures, boxes.int().tolist(), strict=True):
        for x0, y0, x1, y1 in corners:
            crop = picture[y0 : y1 + 1, x0 : x1 + 1]
            crops.append(crop.copy())
    return crops


def _nearest_in_other_images(rows: Tensor, query: int) -> list[int]:
    """Places among all objects of the unit rows (n, O, C) of highest cosine with that of an object."""
    all_objects = rows.flatten(0, 1)
    images = torch.arange(len(all_objects)) // rows.shape[1]
    found = nearest(all_objects[[query]], all_objects, NUM_NEAREST, without=(images[[query]], images))
    return found.places[0].tolist()
