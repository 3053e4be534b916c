"""How good boxes are that know no classes, against boxes that somebody drew: COCO's AP50 and recall."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from revisit.boxes.boxes import in_coco
from revisit.boxes.coco_files import CATEGORY


def class_agnostic_scores(images: Sequence[tuple[dict, dict[str, Any]]]) -> dict[str, float]:
    """``AP50`` and ``recall50``, at IoU 0.5, in percent, of at most 100 boxes an image, whatever the classes.

    Args:
        images: records with ``annotations``, and what was found: ``objects`` with ``bbox`` (x, y, w, h) px and
            ``score``.
    """
    truth = [[in_coco(box) for box in record["annotations"]] for record, _ in images]
    boxes = [[_plain(box) for box in line["objects"]] for _, line in images]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        evaluation = COCOeval(_coco(truth), _coco(boxes), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    recall = evaluation.eval["recall"][0, 0, 0, -1]  # IoU 0.5, the one class, all sizes, 100 boxes
    return {"AP50": 100 * float(evaluation.stats[1]), "recall50": 100 * float(recall)}


def _plain(box: dict[str, Any]) -> dict[str, Any]:
    """Without its mask and its class."""
    return {"bbox": box["bbox"], "score": box["score"], "iscrowd": 0}


def _coco(boxes: list[list[dict[str, Any]]]) -> COCO:
    """Boxes of one class, by their images, as pycocotools has them; its ids begin with 1."""
    annotations = []
    for image, of_image in enumerate(boxes):
        for box in of_image:
            _, _, width, height = box["bbox"]
            place = {"id": len(annotations) + 1, "image_id": image, "category_id": CATEGORY["id"]}
            annotations.append({**box, **place, "area": width * height})
    images = [{"id": number} for number in range(len(boxes))]
    coco = COCO()
    coco.dataset = {"images": images, "annotations": annotations, "categories": [CATEGORY]}
    coco.createIndex()
    return coco
