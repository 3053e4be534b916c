"""Predict for image files by windows: an interrupted call continues within an image, memory goes by the window."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Pictures.prediction_sheet import class_colors
from projects.Pictures.tiles import fit, outline
from projects.Predict.file_predictions import PICTURE, FilePredictor, Source, read_picture, write_image
from projects.Predict.predictions import heads_of
from projects.Tiles.tested_windows import Line, line_of, objects_of_lines, windows_to_test
from projects.Tiles.tiling_of_run import expect_tiles
from projects.Tiles.window_files import look_at
from projects.Tiles.windows import Tiling
from projects.Tiles.zoom_levels import Levels, Place
from projects.Tiles.zoom_page import write_page
from revisit.boxes.boxes import corners_of
from revisit.data.images.image_bytes import WINDOW, Size
from revisit.data.sources.records import Records, sample
from revisit.errors import UserError
from revisit.jobs.parts import Arrays, Work, as_lines

from detectron2.config import CfgNode

PART = 4  # windows
LARGE = 4000  # px of a side, above which a page shows all of an image
WHOLE = "whole"  # in place of a tiling: none
LOOKED_AT = 64  # images, and windows of these
GRID = (128, 128, 128)  # RGB


def tiling_to_predict(cfg: CfgNode, text: str) -> Tiling | None:
    """As --tiles says, which has to fit what the network has learned from; of "" that; None of whole images."""
    stated = text or cfg.INPUT.TILES
    if stated in (None, WHOLE):
        return None
    tiling = Tiling.of(str(stated))
    expect_tiles(cfg, tiling, f"--tiles {tiling}")
    return tiling


def some_windows(images: Records, tiling: Tiling) -> list[dict]:
    """Of images that are too large to be looked at whole, a few windows instead. Raises as ``windows_to_test``."""
    some = sample(images, LOOKED_AT)
    records = [record for image in some for record in windows_to_test(image, tiling)]
    return sample(records, LOOKED_AT)


class Row(NamedTuple):
    """What is predicted for at once."""

    source: int  # its place
    record: dict | None  # of a window; None: the source as it is, a video, or the problem says why not
    problem: str = ""
    is_whole: bool = False  # whether the window is all of the image
    block: Place | None = None  # of the levels of an image that is not predicted for, but drawn


class TiledPredictor(FilePredictor):
    """As FilePredictor, of images by windows of a tiling; what is found in these is merged. Of LARGE images there are
    pages that zoom, unless ``zooms`` is False."""

    def __init__(self, cfg: CfgNode, output: Path, tiling: Tiling, *, zooms: bool = True):
        super().__init__(cfg, output)
        self._tiling, self._zooms = tiling, zooms
        self.settings = {"tiles": str(tiling), "pages that zoom": str(zooms)}

    @property
    def seen_whole(self) -> list[str]:
        return []

    def work_of(self, sources: list[Source]) -> Work:
        rows = [row for place, source in enumerate(sources) for row in self._rows_of(place, source)]
        return Work("predicting", len(rows), PART, partial(self._windows, sources, rows))

    def _rows_of(self, place: int, source: Source) -> list[Row]:
        if source.is_video:
            return [Row(place, None)]
        try:
            records = windows_to_test({"file_name": str(source.path)}, self._tiling)
        except UserError as error:
            return [Row(place, None, str(error))]
        if not records:
            return [Row(place, None, f"{source.path} has data in less than half of its pixels")]
        last = len(records) - 1
        rows = [Row(place, record, is_whole=number == last) for number, record in enumerate(records)]
        return rows + self._rows_of_levels(place, source)

    def _rows_of_levels(self, place: int, source: Source) -> list[Row]:
        scan = look_at(str(source.path))
        if not self._zooms or max(scan.height, scan.width) <= LARGE:
            return []
        levels = self._levels_of(place, source, scan.height, scan.width)
        file = {"file_name": str(source.path)}
        return [Row(place, file | {WINDOW: levels.window(block)}, block=block) for block in levels.blocks]

    def _levels_of(self, place: int, source: Source, height: int, width: int) -> Levels:
        kept = self.output / "parts" / f"{place}_levels"
        return Levels(self.output / f"{source.name}_levels", kept, height, width)

    def _windows(self, sources: list[Source], rows: list[Row], part: range) -> Arrays:
        self.remove_earlier()
        return {"lines": as_lines([self._line_of_row(sources, rows[number]) for number in part])}

    def _line_of_row(self, sources: list[Source], row: Row) -> dict:
        source = sources[row.source]
        if row.problem:
            return {"source": row.source, "problem": row.problem}
        if row.record is None:
            return {"source": row.source, "whole": self.line_of(source)}
        scan, predictor = look_at(str(source.path)), self.predictor()
        try:
            pixels = predictor.read(row.record)
        except UserError as error:
            return {"source": row.source, "problem": str(error)}
        if row.block:
            levels = self._levels_of(row.source, source, scan.height, scan.width)
            levels.write_block(row.block, predictor.pixels.picture(pixels))
            return {"source": row.source}
        if row.is_whole:
            write_image(self._picture_of(source), predictor.pixels.picture(pixels))
        return {
            "source": row.source,
            "size": [scan.height, scan.width],
            **self._line_of_window(source, row.record, pixels),
        }

    def _line_of_window(self, source: Source, record: dict, pixels: np.ndarray) -> Line:
        objects, scan = self.predictor()(record, pixels)["instances"].to("cpu"), look_at(str(source.path))
        return line_of(record, objects, scan.height, scan.width)

    def _picture_of(self, source: Source) -> Path:
        """Of the whole image, reduced, without objects."""
        return self.output / "parts" / f"{source.name}.png"

    def lines_of_sources(self, sources: list[Source], lines: Iterable[dict]) -> Iterator[dict]:
        for place, of_source in groupby(lines, key=lambda line: line["source"]):
            yield self._merged(place, sources[place], list(of_source))

    def _merged(self, place: int, source: Source, lines: list[dict]) -> dict:
        """The line of a source of those of its windows."""
        if "whole" in lines[0]:
            return lines[0]["whole"]
        problems = [line["problem"] for line in lines if "problem" in line]
        if problems:
            return {"files": [], "problems": problems[:1], "images": []}
        height, width = lines[0]["size"]
        of_windows = [line for line in lines if WINDOW in line]
        image = {"file_name": str(source.path), "height": height, "width": width}
        image["objects"] = self._finished(source, image, of_windows)
        page = self.output / f"{source.name}.html"
        page.unlink(missing_ok=True)  # of an earlier call
        if len(of_windows) < len(lines):
            levels = self._levels_of(place, source, height, width)
            levels.write_rest()
            windows = [line[WINDOW] for line in of_windows]
            self.pages.append(write_page(page, levels, image, windows, self.predictor()))
        return {"files": [str(source.path)], "problems": [], "images": [image]}

    def _finished(self, source: Source, image: dict, lines: list[dict]) -> list[dict]:
        """The objects of a whole image, which is drawn with them."""
        height, width = image["height"], image["width"]
        objects = list(objects_of_lines(lines, height, width, heads_of(self.cfg).NMS_THRESH_TEST))
        self._draw(source, image | {"objects": objects}, [line[WINDOW] for line in lines])
        return objects

    def shown(self, source: Source, size: Size) -> np.ndarray:
        """(h, w, 3) RGB of the whole image, of (H, W) px, in a size to look at."""
        return fit(read_picture(self._picture_of(source)), int(np.clip(max(size), *PICTURE)))

    def _draw(self, source: Source, image: dict, windows: Sequence[Sequence[int]]) -> None:
        """The whole image with its windows and objects."""
        picture = self.shown(source, (image["height"], image["width"]))
        times = picture.shape[1] / image["width"]
        for window in windows:
            outline(picture, np.array(window) * times, GRID)
        colors = class_colors(self.class_names).tolist()
        for one, box in zip(image["objects"], corners_of(image["objects"]) * times, strict=True):
            outline(picture, box, colors[one["category_id"]])
        write_image(self.output / f"{source.name}.png", picture)
