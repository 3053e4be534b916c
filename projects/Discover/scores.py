"""How good boxes are that know no classes, against boxes that somebody drew: COCO's AP50 and recall."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from projects.common.coco_files import CATEGORY, in_coco


def class_agnostic_scores(images: Sequence[tuple[dict, dict[str, Any]]]) -> dict[str, float]:
    """``AP50`` and ``recall50``, at IoU 0.5, in percent, of at most 100 boxes an image, whatever the classes.

    Args:
        images: records with ``annotations``, and what was found: ``objects`` with ``bbox`` (x, y, w, h) px and
            ``score``.
    """
    truth = [in_coco(box) for record, _ in images for box in record["annotations"]]
    boxes = [_plain(box) for _, line in images for box in line["objects"]]
    image_of_truth = [number for number, (record, _) in enumerate(images) for _ in record["annotations"]]
    image_of_box = [number for number, (_, line) in enumerate(images) for _ in line["objects"]]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        evaluation = COCOeval(
            _coco(truth, image_of_truth, len(images)), _coco(boxes, image_of_box, len(images)), "bbox"
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    recall = evaluation.eval["recall"][0, 0, 0, -1]  # IoU 0.5, the one class, all sizes, 100 boxes
    return {"AP50": 100 * float(evaluation.stats[1]), "recall50": 100 * float(recall)}


def _plain(box: dict[str, Any]) -> dict[str, Any]:
    """Without its mask and its class."""
    return {"bbox": box["bbox"], "score": box["score"], "iscrowd": 0}


def _coco(boxes: list[dict[str, Any]], image_of: list[int], count: int) -> COCO:
    """Boxes of one class in ``count`` images, as pycocotools has them; its ids begin with 1."""
    coco = COCO()
    annotations = []
    for index, (box, image) in enumerate(zip(boxes, image_of, strict=True), start=1):
        area = box["bbox"][2] * box["bbox"][3]
        annotations.append({**box, "id": index, "image_id": image, "category_id": CATEGORY["id"], "area": area})
    images = [{"id": number} for number in range(count)]
    coco.dataset = {"images": images, "annotations": annotations, "categories": [CATEGORY]}
    coco.createIndex()
    return coco
