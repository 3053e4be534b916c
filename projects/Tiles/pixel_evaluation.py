"""Scores of networks of every pixel that see windows, on whole images: each pixel counts once, as it is blended."""

from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np

from projects.Tiles.blending import Scores
from projects.Tiles.tested_windows import windows_of_set
from projects.Tiles.tiled_names import tiling_in, whole_of
from projects.Tiles.tiling_of_run import expect_tiles
from projects.Tiles.window_files import REDUCED, look_at
from revisit.data.images.image_bytes import WINDOW
from revisit.data.sources.catalog import get_records
from revisit.data.sources.labels import read_depth, read_labels
from revisit.data.sources.records import Records
from revisit.evaluation.pixel_evaluators import DepthEvaluator, SemSegEvaluator, confusion_matrix, sums_of_errors
from revisit.evaluation.registry import EVALUATOR_REGISTRY

from detectron2.config import CfgNode
from detectron2.utils import comm


class _OfWindows:
    """What both evaluators have: windows wait in files below OUTPUT_DIR until all of their image are there."""

    NETWORKS = ()

    @staticmethod
    def records(name: str) -> Records:
        """All windows of all images in which there are data."""
        return [record for record in windows_of_set(name) if record[REDUCED] == 1]

    def __init__(self, dataset_name: str, cfg: CfgNode):
        tiling = tiling_in(dataset_name)
        expect_tiles(cfg, tiling, dataset_name)
        windows: dict[str, list] = {}
        for record in self.records(dataset_name):
            windows.setdefault(record["file_name"], []).append(record[WINDOW])
        folder = Path(cfg.OUTPUT_DIR) / "inference" / "scores"
        self._scores = {
            file: Scores.of(folder / str(number), of_image, look_at(file)[:2], tiling)
            for number, (file, of_image) in enumerate(windows.items())
        }
        self._images = {record["file_name"]: record for record in get_records(whole_of(dataset_name))}
        super().__init__(dataset_name, cfg)

    def reset(self) -> None:
        self._seen: Counter[str] = Counter()
        super().reset()

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Of windows, in any process; an image that this one sees all windows of is scored at once."""
        for record, output in zip(inputs, outputs, strict=True):
            file = record["file_name"]
            self._scores[file].write(record, output)
            self._seen[file] += 1
            if self._seen[file] == len(self._scores[file].windows):
                self._score(file)

    def _score(self, file: str) -> None:
        del self._seen[file]
        self._count(self._images[file], self._scores[file])
        self._scores[file].remove()

    def _count(self, image: dict, scores: Scores) -> None:
        """Add a whole image to what is scored."""
        raise NotImplementedError

    def evaluate(self) -> dict | None:
        """None but on the main process, which scores images whose windows several have seen."""
        rest = {*chain.from_iterable(comm.gather([*self._seen]))}
        for file in sorted(rest):
            self._score(file)
        return super().evaluate()


@EVALUATOR_REGISTRY.register()
class TiledSemSegEvaluator(_OfWindows, SemSegEvaluator):
    """As SemSegEvaluator, of whole images."""

    TYPES = ("sem_seg_tiles",)

    def _count(self, image: dict, scores: Scores) -> None:
        number = len(self._classes)
        for tile in scores.tiles():
            truth = read_labels(image["sem_seg_file_name"], number, self._offset, tile.window)
            self._confusion += confusion_matrix(tile.classes, truth, number)


@EVALUATOR_REGISTRY.register()
class TiledDepthEvaluator(_OfWindows, DepthEvaluator):
    """As DepthEvaluator, of whole images."""

    TYPES = ("depth_tiles",)

    def _count(self, image: dict, scores: Scores) -> None:
        sums = []
        for tile in scores.tiles():
            truth = read_depth(image["depth_file_name"], tile.window)
            sums.append(sums_of_errors(tile.depth.astype(np.float64), truth))
        self._sums.append(np.sum(sums, axis=0))
