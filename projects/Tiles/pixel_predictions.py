"""Predict classes or depths of every pixel by windows, blended into the whole image as soon as all of them are done."""

import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from projects.Pictures.prediction_sheet import class_colors, color_depth, paint_classes
from projects.Pixels.tiff import GDAL_METADATA, NODATA
from projects.Pixels.write_tiff import check_tifffile
from projects.Predict.file_predictions import (
    MILLIMETRES,
    NO_CLASS,
    NO_DEPTH,
    PICTURE,
    FilePredictor,
    Source,
    in_millimetres,
    with_void,
    write_image,
)
from projects.Tiles.blending import Scores
from projects.Tiles.converting import write_map
from projects.Tiles.geo import tags_with_place
from projects.Tiles.tested_windows import Line
from projects.Tiles.tiled_predictions import Row, TiledPredictor
from projects.Tiles.window_files import REDUCED, look_at
from projects.Tiles.windows import Tiling
from revisit.data.images.image_bytes import WINDOW, Window
from revisit.data.images.reader import without_data
from revisit.data.sources.labels import part_of
from revisit.files import one_at_a_time, written_whole
from revisit.jobs.parts import Arrays
from revisit.keys import DETECTORS, architecture_of

from detectron2.config import CfgNode

MOST_OF_PNG = 4000  # px of the longer side; of larger images, and of those with coordinates, the map is a tiled TIFF


def predictor_of(cfg: CfgNode, output: Path, tiling: Tiling | None, *, zooms: bool = True) -> FilePredictor:
    """By windows of a tiling, or of whole images. Detectors get pages that zoom into LARGE images, if ``zooms``."""
    if tiling is None:
        return FilePredictor(cfg, output)
    if architecture_of(cfg) in DETECTORS:
        return TiledPredictor(cfg, output, tiling, zooms=zooms)
    return TiledPixelPredictor(cfg, output, tiling, zooms=False)


class TiledPixelPredictor(TiledPredictor):
    """As FilePredictor, of images by windows of a tiling, with what each window says in files until it is blended."""

    def _windows(self, sources: list[Source], rows: list[Row], part: range) -> Arrays:
        arrays = super()._windows(sources, rows, part)
        for place in sorted({rows[number].source for number in part}):
            self._blend(sources[place], [row.record for row in rows if row.source == place and row.record])
        return arrays

    def _line_of_window(self, source: Source, record: dict, pixels: np.ndarray) -> Line:
        if not _is_reduced(record):
            self._scores(source, [record]).write(record, self.predictor()(record, pixels))
        return {WINDOW: list(record[WINDOW])}

    def _scores(self, source: Source, records: list[dict]) -> Scores:
        windows = [record[WINDOW] for record in records if not _is_reduced(record)]
        return Scores.of(self._file_of(source, ".scores"), windows, look_at(str(source.path))[:2], self._tiling)

    def _file_of(self, source: Source, suffix: str) -> Path:
        return self.output / "parts" / f"{source.name}{suffix}"

    def _blend(self, source: Source, records: list[dict]) -> None:
        """Write the map of an image, once, where all of its windows are there, whoever has looked at them."""
        if not records or not self._picture_of(source).exists():
            return
        scores, target = self._scores(source, records), self._file_of(source, ".map")
        if scores.are_complete:
            with one_at_a_time(self._file_of(source, ".lock")):
                if not target.exists():
                    self._write(source, scores, target)
                scores.remove()

    def _write(self, source: Source, scores: Scores, target: Path) -> None:
        """The map, and its picture."""
        step = -(-max(scores.size) // PICTURE[1])
        overview = np.zeros([-(-length // step) for length in scores.size], self._dtype)
        tiles = self._tiles(source, scores, overview, step)
        suffix = self._suffix(source)
        with written_whole(target, lasting=False) as temporary:
            if suffix == ".tif":
                tags = [*_tags_of_place(source), (NODATA, "s", 0, str(self._void), True)]
                write_map(temporary, (tile for _, tile in tiles), scores.size, self._dtype, tags)
            else:
                whole = np.zeros(scores.size, self._dtype)
                for window, values in tiles:
                    part_of(whole, window)[...] = values
                temporary.write_bytes(cv2.imencode(suffix, whole)[1])
        write_image(self.output / f"{source.name}.png", self._drawn(self.shown(source, scores.size), overview))

    def _tiles(
        self, source: Source, scores: Scores, overview: np.ndarray, step: int
    ) -> Iterator[tuple[Window, np.ndarray]]:
        """What is written of each tile, of which every ``step``-th px goes to the overview."""
        pixels, file_name = self.predictor().pixels, str(source.path)
        may_lack = look_at(file_name).has_marks or not pixels.is_of_photographs
        for tile in scores.tiles():
            left, top, right, bottom = tile.window
            missing = without_data({"file_name": file_name, WINDOW: tile.window}, pixels) if may_lack else None
            shown = in_millimetres(tile.depth) if self._is_of_depth else tile.classes
            values = with_void(shown, missing, self._void)
            seen = slice(-(-top // step), -(-bottom // step)), slice(-(-left // step), -(-right // step))
            overview[seen] = values[-top % step :: step, -left % step :: step]
            yield tile.window, values

    @property
    def _is_of_depth(self) -> bool:
        return self.cfg.MODEL.META_ARCHITECTURE == "DepthEstimator"

    @property
    def _void(self) -> int:
        """What a pixel has that no window shows, or that has no data."""
        return NO_DEPTH if self._is_of_depth else NO_CLASS

    @property
    def _dtype(self) -> type:
        return np.uint16 if self._is_of_depth else np.uint8

    def _suffix(self, source: Source) -> str:
        if max(look_at(str(source.path))[:2]) <= MOST_OF_PNG and not _tags_of_place(source):
            return ".png"
        check_tifffile()
        return ".tif"

    def _drawn(self, picture: np.ndarray, overview: np.ndarray) -> np.ndarray:
        size = picture.shape[1::-1]
        if self._is_of_depth:
            depth = overview / MILLIMETRES
            return cv2.resize(color_depth(depth, (float(depth.min()), float(depth.max()) + 1e-3)), size)
        colors = class_colors(self.class_names)
        return paint_classes(picture, cv2.resize(overview, size, interpolation=cv2.INTER_NEAREST), colors)

    def _finished(self, source: Source, image: dict, lines: list[dict]) -> list[dict]:
        """No objects; the map is in its place."""
        target = self._file_of(source, ".map")
        folder = self.output / ("depth" if self._is_of_depth else "classes")
        folder.mkdir(exist_ok=True)
        if target.exists():  # a call that was killed here has moved it
            os.replace(target, folder / f"{source.name}{self._suffix(source)}")
        return []


def _is_reduced(record: dict) -> bool:
    """Whether it is the whole image, for its picture alone."""
    return record.get(REDUCED, 1) > 1


def _tags_of_place(source: Source) -> list[tuple]:
    return [tag for tag in tags_with_place(str(source.path)) if tag[0] not in (GDAL_METADATA, NODATA)]
