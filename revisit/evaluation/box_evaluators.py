"""Scores of boxes by Detectron2's evaluators, on annotations of one's own too."""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from revisit.data.coco_boxes import complete_coco

from detectron2.data import MetadataCatalog
from detectron2.data.datasets.coco import convert_to_coco_dict
from detectron2.evaluation import COCOEvaluator


class BoxEvaluator(COCOEvaluator):
    """COCOEvaluator, for files that lack what pycocotools takes for granted, and for classes in any order.

    See ``complete_coco``. A data set without a file in COCO's format is scored against its records. A network that
    finds nothing at all has AP 0 of every class that has truth, of all Detectron2's ``tasks``.
    """

    def __init__(self, dataset_name: str, **options: object):
        with _file_of_truth(dataset_name):
            super().__init__(dataset_name, **options)
        if "annotations" in self._coco_api.dataset:
            complete_coco(self._coco_api.dataset, Path(self._metadata.get("image_root", "")))
            with contextlib.redirect_stdout(io.StringIO()):
                self._coco_api.createIndex()

    def _derive_coco_results(
        self, coco_eval: COCOeval | None, iou_type: str, class_names: list[str] | None = None
    ) -> dict:
        # Detectron2 takes the classes to be in the order of the file's ids, in which pycocotools scores them. A class
        # that the file lacks has no truth, and no score.
        places = self._metadata.get("thing_dataset_id_to_contiguous_id")
        if class_names and places:
            class_names = [class_names[places[id_]] for id_ in sorted(places) if id_ in self._coco_api.cats]
        return super()._derive_coco_results(coco_eval or self._without_predictions(iou_type), iou_type, class_names)

    def _without_predictions(self, iou_type: str) -> COCOeval:
        """The evaluation of no predictions, for which Detectron2 has no score. pycocotools loads no empty list."""
        nothing = COCO()
        nothing.dataset = {**self._coco_api.dataset, "annotations": []}
        with contextlib.redirect_stdout(io.StringIO()):
            nothing.createIndex()
            evaluated = COCOeval(self._coco_api, nothing, iou_type)
            evaluated.evaluate()
            evaluated.accumulate()
            evaluated.summarize()
        return evaluated


@contextlib.contextmanager
def _file_of_truth(name: str) -> Iterator[None]:
    """Let the metadata of a data set name a file in COCO's format: its own, or one for the block.

    Detectron2 would make one too, and take that of an earlier run, whatever the labels are now.
    """
    metadata = MetadataCatalog.get(name)
    if metadata.get("json_file"):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.json"
        file.write_text(json.dumps(convert_to_coco_dict(name)))
        metadata.json_file = str(file)
        try:
            yield
        finally:
            del metadata.json_file
