"""Scores of a detector that sees windows, on whole images: what is found is merged, and counted against all objects."""

from collections import defaultdict
from itertools import chain

from projects.Predict.predictions import heads_of
from projects.Tiles.tested_windows import Line, line_of, objects_of_lines, windows_of_set
from projects.Tiles.tiled_names import tiling_in, whole_of
from projects.Tiles.tiling_of_run import expect_tiles
from revisit.boxes.coco_files import size_of
from revisit.data.sources.catalog import get_records, register
from revisit.errors import expect
from revisit.evaluation.box_evaluators import BoxEvaluator
from revisit.evaluation.registry import EVALUATOR_REGISTRY
from revisit.keys import with_values

from detectron2.config import CfgNode
from detectron2.utils import comm

MOST = 1_000_000  # objects of an image that count


@EVALUATOR_REGISTRY.register()
class TiledBoxEvaluator(BoxEvaluator):
    """As BoxEvaluator, of all objects that are found in a whole image, however many."""

    TYPES = ("coco_tiles",)
    NETWORKS = ()
    records = staticmethod(windows_of_set)

    def __init__(self, dataset_name: str, cfg: CfgNode):
        expect(not cfg.MODEL.KEYPOINT_ON, f"{dataset_name}: keypoints of windows are not merged: expected boxes, masks")
        expect_tiles(cfg, tiling_in(dataset_name), dataset_name)
        whole = whole_of(dataset_name)
        register(whole).order = register(dataset_name).order
        images = get_records(whole)
        self._sizes = {image["image_id"]: size_of(image) for image in images}
        self._nms = heads_of(cfg).NMS_THRESH_TEST
        named = {name: whole if name == dataset_name else name for name in cfg.DATASETS.TEST}
        values = {"DATASETS.TEST": tuple(named.values()), "TEST.DETECTIONS_PER_IMAGE": MOST}
        super().__init__(whole, with_values(cfg, values))

    def reset(self) -> None:
        self._lines: list[tuple[object, Line]] = []
        super().reset()

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Of windows, in any process."""
        for record, output in zip(inputs, outputs, strict=True):
            image = record["image_id"]
            self._lines.append((image, line_of(record, output["instances"], *self._sizes[image])))

    def evaluate(self) -> dict:
        """In the main process, which merges; {} in others."""
        lines_of = defaultdict(list)
        for image, line in chain.from_iterable(comm.gather(self._lines)):
            lines_of[image].append(line)
        for image, lines in lines_of.items():
            found = objects_of_lines(lines, *self._sizes[image], self._nms)
            objects = [one | {"image_id": image} for one in found]
            self._predictions.append({"image_id": image, "instances": objects})
        return super().evaluate()
