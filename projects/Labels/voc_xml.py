"""Pascal VOC's XML files for any images: ``voc_xml:FOLDER_OF_IMAGES:FOLDER_OF_XML[:with_difficult]``.

Trees of Pascal VOC with its own classes are ``voc:FOLDER:SPLIT``, which Detectron2's evaluator reads itself.
"""

import logging
from pathlib import Path

import numpy as np

from revisit.boxes.boxes import with_sides
from revisit.data.sources.coco_boxes import COCO_METADATA, load_box_files
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.voc_boxes import read_voc_annotation

logger = logging.getLogger(__name__)


def load_voc_xml(images: Path, annotations: Path, with_difficult: str = "") -> LabelledSet:
    """Every image below ``images``, with the objects of the XML file at its place below ``annotations``.

    The classes are the names that occur, sorted. An image without a file shows nothing. Difficult objects are neither
    learned from nor scored, as crowds of COCO, unless they are asked for by ``with_difficult``.

    Raises:
        UserError: see label_files; a file that is no such XML, or an object without a box.
    """
    lowest: list[float] = []  # px, of each box

    def read(file: Path, image: Path) -> tuple[dict[str, int], list[dict]]:
        size, things = read_voc_annotation(file, image)
        objects = []
        for thing in things:
            lowest.append(min(thing.corners[:2]))
            box = with_sides(np.array(thing.corners)).tolist()
            is_ignored = thing.is_difficult and not with_difficult
            objects.append({"name": thing.label, "bbox": box, "iscrowd": int(is_ignored)})
        return size, objects

    labelled = load_box_files(images, annotations, ".xml", read)
    if from_zero := sum(start < 0 for start in lowest):
        logger.warning(
            f"{annotations}: {from_zero:,} of {len(lowest):,} boxes begin at 0, but Pascal VOC counts pixels from 1: "
            "if these files count from 0, every box is read one pixel too far left and up"
        )
    return labelled


LABEL_LAYOUT_REGISTRY.register(
    LabelLayout("voc_xml", "FOLDER_OF_IMAGES:FOLDER_OF_XML[:with_difficult]", load_voc_xml, COCO_METADATA)
)
