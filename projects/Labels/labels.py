"""What is labelled: the boxes of a data set, or its images where they have one class each."""

import os
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from revisit.boxes.boxes import Boxes
from revisit.boxes.coco_files import size_of
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.records import Records, keeping_all
from revisit.errors import UserError, expect

from detectron2.data import MetadataCatalog

KINDS_OF_DATA = "coco:IMAGES:FILE, yolo:IMAGES:LABELS, voc_xml:IMAGES:LABELS or class_folders:PATH"


class Labels(NamedTuple):
    """N labels of a data set, in its order; crowds are left out."""

    records: Records
    class_names: list[str]
    images: np.ndarray  # (N,) int, the number of the label's record
    places: np.ndarray  # (N,) int, which annotation of the record it is; 0 where images have a class each
    boxes: np.ndarray  # (N, 4) float32, x0, y0, x1, y1 px; zeros where images have a class each
    classes: np.ndarray  # (N,) int
    of: str  # what is labelled: box or image
    left_out: Sequence[str] = ()  # in words, what the data set's reader took for no label

    @property
    def files(self) -> np.ndarray:
        """(N,) str, of the images, as a table of embeddings names them."""
        names = np.array([os.path.abspath(record["file_name"]) for record in self.records])
        return names[self.images]

    @property
    def sizes(self) -> np.ndarray:
        """(N, 2) int, height and width of the images, px."""
        return np.array([size_of(record) for record in self.records])[self.images]

    def of_files(self, files: np.ndarray) -> "Labels":
        """The labels in these files alone, of all records."""
        kept = np.isin(self.files, files)
        images, places, boxes, classes = (values[kept] for values in self[2:6])
        return self._replace(images=images, places=places, boxes=boxes, classes=classes)


@keeping_all()
def read_labels_of(name: str) -> Labels:
    """The labels of a data set by its name; boxes may all be of one class.

    Raises:
        UserError: images that are no files of their own, a data set without boxes or classes of images, without any
            label, with labels in one image, or classes of images that are all the same.
    """
    records, class_names = list(get_records(name)), names_of(name)
    expect_file_names(records, f"--data {name}")
    if all("annotations" in record for record in records):
        labels = _of_boxes(records, class_names)
    else:
        expect(
            all(record.get("label", -1) >= 0 for record in records),
            f"--data {name} has neither boxes nor classes of images: expected {KINDS_OF_DATA}",
        )
        labels = _of_images(records, class_names)
    expect(len(labels.classes) > 0, f"--data {name} has no boxes in {len(records)} images: expected at least two")
    _check_boxes(labels, name)
    expect(
        len(np.unique(labels.images)) > 1,
        f"--data {name} has labels in one image: a label is compared with those of other images",
    )
    expect(
        labels.of == "box" or np.ptp(labels.classes),
        f"--data {name} has one class: expected two or more, of which a label can be the wrong one",
    )
    return labels._replace(left_out=MetadataCatalog.get(name).get("left_out", ()))


def _check_boxes(labels: Labels, name: str) -> None:
    """Raises UserError for boxes that have no area inside their image."""
    if labels.of == "image":
        return
    starts, ends = np.maximum(labels.boxes[:, :2], 0), np.minimum(labels.boxes[:, 2:], labels.sizes[:, ::-1])
    outside = np.flatnonzero((ends <= starts).any(axis=1))
    if len(outside):
        first = outside[0]
        raise UserError(
            f"--data {name}: {len(outside)} boxes lie outside their images, such as {labels.boxes[first].tolist()} in "
            f"{labels.files[first]}: expected x0 < x1 and y0 < y1, px of the image"
        )


def _of_boxes(records: Records, class_names: list[str]) -> Labels:
    annotations = list(chain.from_iterable(record["annotations"] for record in records))
    counts = np.array([len(record["annotations"]) for record in records], int)
    images = np.repeat(np.arange(len(records)), counts)
    places = np.arange(len(annotations)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.flatnonzero([not annotation.get("iscrowd") for annotation in annotations])
    boxes = Boxes.of_annotations([annotations[number] for number in kept], np.float32)
    return Labels(records, class_names, images[kept], places[kept], boxes.xyxy, boxes.classes, "box")


def _of_images(records: Records, class_names: list[str]) -> Labels:
    count = len(records)
    classes = np.array([record["label"] for record in records], int)
    nothing = np.zeros((count, 4), np.float32)
    return Labels(records, class_names, np.arange(count), np.zeros(count, int), nothing, classes, "image")
