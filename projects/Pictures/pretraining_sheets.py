"""Sheets of a pretraining: the views that it learns from, and the neighbours that its network finds."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from projects.Pictures.tiles import BLACK, TILE, Color, SheetRow, fit, framed, outline, save_sheet
from revisit.checkpoint.run_folder import VIEWS
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import UnreadableImageError, open_record
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import sample
from revisit.data.sources.rows import joined
from revisit.data.views.mapper import ViewMapper, Views, training_mapper
from revisit.engine.dry_run import DRY_RUN_PICTURE_REGISTRY
from revisit.engine.train_step import BATCH_PICTURE_REGISTRY
from revisit.errors import UserError
from revisit.evaluation.features import CenterCropDataset, Features
from revisit.evaluation.nearest import nearest
from revisit.evaluation.registry import PRETRAINING_EVALUATION_REGISTRY, PretrainingEvaluation
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode
from detectron2.utils.events import get_event_storage

logger = logging.getLogger(__name__)

BATCH_ROWS = 32
ANCHOR, POSITIVE, SMALL = (230, 60, 60), (60, 170, 60), (50, 110, 230)  # RGB
NEIGHBOR = 96  # px
GREEN = (40, 160, 60)
RED = (210, 60, 50)
LEGEND = {0: ("same label as the query", GREEN), 1: ("another label", RED)}


@DRY_RUN_PICTURE_REGISTRY.register()
def views_of_dry_run(cfg: CfgNode, output: Path) -> None:
    """OUTPUT_DIR/views.png, of a pretraining."""
    if method_of(cfg):
        save_view_sheet(cfg, output / VIEWS)
        print(f"wrote {output / VIEWS}: anchor, positive and small crops of some images")


def save_view_sheet(cfg: CfgNode, path: Path, num_images: int = 8) -> None:
    """Write the sheet of the first epoch's views of images spread over DATASETS.TRAIN, leaving unreadable ones out.

    Raises:
        UserError: none of the chosen images can be read.
    """
    pixels = pixel_format(cfg)
    mapper = training_mapper(cfg)
    records = joined([get_records(name) for name in cfg.DATASETS.TRAIN])  # as the run counts them
    chosen = sample(range(len(records)), num_images)
    rows = []
    errors = []
    for index in chosen:
        try:
            picture = open_record(records[index], pixels)
            views = finished(mapper, mapper.of_picture(picture, 0, index))
            tiles = view_tiles(views, pixels)
            mapper.annotator.draw(tiles, views)
            image = pixels.picture(picture.decode())
            rows.append(SheetRow([draw_boxes(image, views), *tiles]))
        except UnreadableImageError as error:
            errors.append(error)
    if not rows:
        sets = ", ".join(cfg.DATASETS.TRAIN)
        raise UserError(f"none of {len(chosen)} images of {sets} can be read; the first: {errors[0]}")
    names = [name for name, shape in mapper.shapes.items() for _ in range(math.prod(shape[:-3]))]
    colors = [BLACK, *map(color_of, names)]
    save_sheet(path, rows, ["image", *names], header_colors=colors, subtitle=pixels.caption(""))


def finished(mapper: ViewMapper, views: Views) -> dict:
    """The views of an image after what the mapper leaves to the device, which the CPU does here."""
    deferred = mapper.deferred([views])
    if deferred is None:
        return views
    batch = {name: torch.from_numpy(views[name][None]).movedim(-1, -3) for name in mapper.shapes}
    return views | {name: pixels_of(pixels)[0] for name, pixels in deferred(batch, "cpu").items()}


@BATCH_PICTURE_REGISTRY.register()
def save_batch_sheets(batch: dict | list[dict], stem: Path, pixels: PixelFormat) -> list[Path]:
    """Write a batch as STEM_1.png and so on, BATCH_ROWS images each.

    Of a ViewBatch a row shows the views of an image; of Detectron2's list of dicts, its (C, H, W) ``image`` alone.
    """
    if isinstance(batch, list):
        rows = [SheetRow([fit(pixels.picture(pixels_of(record["image"])), TILE)]) for record in batch]
    else:
        views = {name: pixels_of(entry) for name, entry in batch.items() if are_pixels(entry, pixels)}
        images = range(len(views["anchor"]))
        rows = [SheetRow(view_tiles({name: views[name][n] for name in views}, pixels)) for n in images]
    paths = []
    for page, first in enumerate(range(0, len(rows), BATCH_ROWS), start=1):
        paths.append(stem.with_name(f"{stem.name}_{page}.png"))
        save_sheet(paths[-1], rows[first : first + BATCH_ROWS])
    return paths


def view_tiles(views: Mapping, pixels: PixelFormat) -> list[np.ndarray]:
    """The views of an image, arrays by name, each in a frame of its colour; other entries are left out."""
    tiles = []
    for name, entry in views.items():
        if isinstance(entry, np.ndarray):
            pictures = map(pixels.picture, entry.reshape(-1, *entry.shape[-3:]))
            tiles += [framed(picture, color_of(name)) for picture in pictures]
    return tiles


def color_of(name: str) -> Color:
    """Of the frame of a view; one that a plug-in adds is framed as a positive."""
    return {"anchor": ANCHOR, "small": SMALL}.get(name, POSITIVE)


def draw_boxes(image: np.ndarray, views: Views) -> np.ndarray:
    """The (H, W, 3) uint8 image as a tile, with the boxes of its views in their colours."""
    tile = fit(image, TILE).copy()
    boxes = views["boxes"]
    last = np.array([tile.shape[1], tile.shape[0]] * 2) - 1
    for box, color in [(boxes.anchor, ANCHOR), (boxes.positive, POSITIVE), *((box, SMALL) for box in boxes.small)]:
        outline(tile, np.minimum(box * TILE / max(image.shape[:2]), last), color, 2)
    return tile


def are_pixels(entry: object, pixels: PixelFormat) -> bool:
    """Whether an entry of a ViewBatch is views."""
    return isinstance(entry, torch.Tensor) and entry.dtype == torch.uint8 and entry.shape[-3:-2] == (pixels.count,)


def pixels_of(images: torch.Tensor) -> np.ndarray:
    """(..., C, H, W) uint8 -> (..., H, W, C)."""
    return np.ascontiguousarray(images.movedim(-3, -1).cpu().numpy())


@PRETRAINING_EVALUATION_REGISTRY.register()
class NeighborGallery(PretrainingEvaluation):
    """OUTPUT_DIR/neighbours_ITERATION.png: images of the first of DATASETS.TEST, each with its nearest of the bank.

    A neighbour has a green frame where its label is the query's, else a red one.
    """

    @classmethod
    def is_on(cls, cfg: CfgNode) -> bool:
        return bool(cfg.KNN_EVAL.BANK and cfg.DATASETS.TEST)

    def evaluate(self, model: nn.Module, features_of: Callable[[str], Features | None]) -> dict[str, float]:
        bank = features_of(self.cfg.KNN_EVAL.BANK)
        test = features_of(self.cfg.DATASETS.TEST[0])
        if bank:
            neighbor_gallery(self.cfg, bank, test, picture_path(self.cfg, "neighbours"))
        return {}


def neighbor_gallery(cfg: CfgNode, bank: Features, test: Features, path: Path, num_queries: int = 10) -> None:
    """Write a picture: images of the first of DATASETS.TEST, each next to its nearest images of KNN_EVAL.BANK by the
    features of both: in green where the label is the query's, else in red. One that cannot be written is logged."""
    names = (cfg.DATASETS.TEST[0], cfg.KNN_EVAL.BANK)
    pixels = pixel_format(cfg)
    images, others = (CenterCropDataset(get_records(name), cfg.KNN_EVAL.IMAGE_SIZE, pixels) for name in names)
    rows = []
    queries = sample(range(len(images)), num_queries)
    for query, places in zip(queries, nearest(test.rows[queries], bank.rows, 8).places.tolist(), strict=True):
        colors = [GREEN if bank.labels[n] == test.labels[query] else RED for n in places]
        neighbors = [_tile(others[n], color, pixels) for n, color in zip(places, colors, strict=True)]
        rows.append(SheetRow([_tile(images[query], BLACK, pixels), *neighbors], legend=LEGEND))
    save_gallery(path, rows, f"{names[0]}: nearest images of {names[1]}")


def picture_path(cfg: CfgNode, name: str) -> Path:
    """OUTPUT_DIR/NAME_ITERATION.png, of an evaluation."""
    return Path(cfg.OUTPUT_DIR) / f"{name}_{get_event_storage().iter:07d}.png"


def save_gallery(path: Path, rows: list[SheetRow], title: str) -> None:
    """Write a picture of queries, each the first tile of its row, and what is nearest to them. A file that cannot be
    written is logged."""
    headers = ["query", *(f"nearest {n}" for n in range(1, len(rows[0].tiles)))]
    try:
        save_sheet(path, rows, headers, title=title)
    except OSError as error:
        logger.error(f"{path} cannot be written ({error.strerror}): this gallery will be missing")


def _tile(record: dict, color: Color, pixels: PixelFormat) -> np.ndarray:
    return framed(pixels.picture(pixels_of(record["image"])), color, NEIGHBOR)
