"""Scores of boxes by Detectron2's evaluators, on annotations of one's own too."""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pycocotools.cocoeval import COCOeval

from revisit.data.box_datasets import drawable
from revisit.data.reader import read_size
from revisit.errors import UserError, first_line

from detectron2.data import MetadataCatalog
from detectron2.data.datasets.coco import convert_to_coco_dict
from detectron2.evaluation import COCOEvaluator
from detectron2.evaluation.pascal_voc_evaluation import parse_rec


class BoxEvaluator(COCOEvaluator):
    """COCOEvaluator, for files that lack what pycocotools takes for granted, and for classes in any order.

    That is ``area`` and ``iscrowd`` of an annotation, an image's size, polygons of three points, and ids from
    1 on: of id 0 a hit counts as none. A data set without a file in COCO's format is scored against its records.
    """

    def __init__(self, dataset_name: str, **options: object):
        with _file_of_truth(dataset_name):
            super().__init__(dataset_name, **options)
        truth = self._coco_api.dataset
        for image in truth["images"]:
            if image.get("width") is None:
                image.update(read_size(Path(self._metadata.image_root) / image["file_name"]))
        annotations = truth.get("annotations", [])
        for annotation in annotations:
            if type(annotation.get("area")) not in (int, float):
                annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
            annotation.setdefault("iscrowd", 0)
            polygons, image = annotation.get("segmentation"), self._coco_api.imgs.get(annotation["image_id"])
            if image and isinstance(polygons, list) and len(drawable(polygons)) < len(polygons):
                size = [image["height"], image["width"]]
                annotation["segmentation"] = drawable(polygons) or {"size": size, "counts": [size[0] * size[1]]}
        if any(annotation["id"] <= 0 for annotation in annotations):
            for number, annotation in enumerate(annotations, start=1):
                annotation["id"] = number
            with contextlib.redirect_stdout(io.StringIO()):
                self._coco_api.createIndex()

    def _derive_coco_results(
        self, coco_eval: COCOeval | None, iou_type: str, class_names: list[str] | None = None
    ) -> dict:
        # Detectron2 takes the classes to be in the order of the file's ids, in which pycocotools scores them.
        places = self._metadata.get("thing_dataset_id_to_contiguous_id")
        if class_names and places:
            class_names = [class_names[places[id_]] for id_ in sorted(places)]
        return super()._derive_coco_results(coco_eval, iou_type, class_names)


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


def check_voc_truth(name: str, folder: Path, split: str) -> None:
    """Read what Detectron2's evaluator of Pascal VOC will read, as it does.

    Raises:
        UserError: an object without ``pose``, ``truncated`` or ``difficult``, or with fractions of a pixel.
    """
    for line in (folder / "ImageSets" / "Main" / f"{split}.txt").read_text().splitlines():
        file = folder / "Annotations" / f"{line.strip()}.xml"
        try:
            parse_rec(str(file))
        except (AttributeError, OSError, TypeError, ValueError) as error:
            raise UserError(
                f"data set {name!r} cannot be scored against, because of {file} ({first_line(error)}): expected of "
                "every object name, pose, truncated, difficult (0 or 1), and a bndbox in whole pixels"
            ) from error
