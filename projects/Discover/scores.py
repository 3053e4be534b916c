"""How good boxes are that know no classes, against boxes that somebody drew: COCO's AP50 and recall."""

from collections.abc import Mapping, Sequence
from typing import Any

from revisit.boxes.boxes import in_coco
from revisit.boxes.coco_files import CATEGORY
from revisit.data.sources.records import as_scored
from revisit.evaluation.box_evaluators import evaluated


def class_agnostic_scores(images: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """``AP50`` and ``recall50``, at IoU 0.5, in percent, of at most 100 boxes an image, whatever the classes.

    Args:
        images: records with ``annotations``, and ``objects``, what was found, with ``bbox`` (x, y, w, h) px and
            ``score``.
    """
    truth = [[in_coco(as_scored(box)) for box in image["annotations"]] for image in images]
    found = [image["objects"] for image in images]
    evaluation = evaluated(_of_one_class(truth), _of_one_class(found), "bbox")
    recall = evaluation.eval["recall"][0, 0, 0, -1]  # IoU 0.5, the one class, all sizes, 100 boxes
    return {"AP50": 100 * float(evaluation.stats[1]), "recall50": 100 * float(recall)}


def _of_one_class(objects: list[list[dict[str, Any]]]) -> dict[str, list[dict]]:
    """Objects by their images, in COCO's format; its ids begin with 1."""
    annotations = []
    for image, of_image in enumerate(objects):
        for each in of_image:
            _, _, width, height = each["bbox"]
            place = {"id": len(annotations) + 1, "image_id": image, "category_id": CATEGORY["id"]}
            annotations.append({"iscrowd": 0, **each, **place, "area": width * height})
    images = [{"id": number} for number in range(len(objects))]
    return {"images": images, "annotations": annotations, "categories": [CATEGORY]}
