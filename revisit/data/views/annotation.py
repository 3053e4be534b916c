"""What a method adds to the views of an image in addition to their pixels, such as boxes: arrays by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from revisit.data.sources.records import Records
from revisit.data.views.looks import Look
from revisit.keys import network_of

from detectron2.config import CfgNode

Arrays = dict[str, np.ndarray]  # by name


class DrawnImage(NamedTuple):
    """An image, and what has been drawn of its 2 + N views: the anchor, the positive and the small positives."""

    record: Mapping  # of the data set; empty where only pixels are known
    height: int  # px
    width: int
    crops: np.ndarray  # (2 + N, 4) px of the image: x0, y0, x1, y1
    looks: Sequence[Look]
    sizes: np.ndarray  # (2 + N,) px, sides of the views
    generator: Callable[[], np.random.Generator]  # for this image in this epoch; views are drawn from another one


class ViewAnnotator:
    """Adds nothing. A method that adds something returns a subclass of it from ``view_annotator(cfg)``."""

    def prepare(self, records: Records) -> Records:
        """The records of all images of the training, with whatever the annotator reads of a record."""
        return records

    def __call__(self, image: DrawnImage) -> Arrays:
        """Arrays by name, of the same shapes for every image; a batch stacks them to tensors (B, ...).

        Raises:
            UnreadableImageError: the image cannot be used; another one replaces it.
        """
        return {}

    def draw(self, tiles: list[np.ndarray], views: Mapping) -> None:
        """Draw the annotations of ``views`` (mapper.py) into their ``tiles``, in place."""


def annotator_of(cfg: CfgNode) -> ViewAnnotator:
    """The annotator of the method that MODEL.META_ARCHITECTURE names."""
    return network_of(cfg).view_annotator(cfg) or ViewAnnotator()
