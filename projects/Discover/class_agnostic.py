"""Boxes of any classes as boxes of one, to train and to score what knows none: ``class_agnostic:NAME``."""

from projects.Tiles.tiled_sets import is_scored_whole
from revisit.boxes.coco_files import CATEGORY
from revisit.data.sources.catalog import get_records, metadata_of_part
from revisit.data.sources.coco_boxes import COCO_METADATA
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.errors import expect

OBJECT = CATEGORY["name"]


def load_class_agnostic(name: str) -> LabelledSet:
    """The records of a data set with boxes, all of which have the class ``object``; COCO's evaluator scores them.

    Raises UserError for a data set without boxes.
    """
    records = get_records(name)
    has_boxes = all("annotations" in record for record in records)
    expect(has_boxes, f"data set 'class_agnostic:{name}': {name} has no boxes: expected a data set with boxes")
    return LabelledSet([_of_one_class(record) for record in records], {"thing_classes": [OBJECT]})


def metadata_of_boxes(name: str) -> dict:
    """COCO's evaluator scores boxes of images; those of windows stay what is scored on whole images."""
    kind = metadata_of_part(name)["evaluator_type"]
    return {"evaluator_type": kind} if is_scored_whole(name) else COCO_METADATA


def _of_one_class(record: dict) -> dict:
    boxes = [{**box, "category_id": 0} for box in record["annotations"]]
    return {**record, "annotations": boxes}


LABEL_LAYOUT_REGISTRY.register(
    LabelLayout("class_agnostic", "NAME", load_class_agnostic, metadata_of_boxes, texts=("NAME",))
)
