"""Registers the layout ``class_agnostic``, and a warning of found boxes that are hardly objects."""

import logging
from pathlib import Path

from projects.Discover import class_agnostic  # noqa: F401
from projects.Discover.doubt import doubt_of
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY
from revisit.data.sources.records import Records

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

logger = logging.getLogger(__name__)


@IMAGE_CHECK_REGISTRY.register()
def found_boxes(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Warn of boxes of ``discover`` that its verdict doubts."""
    doubt = doubt_of(Path(MetadataCatalog.get(name).get("json_file", ""))) if to_learn else ""
    if doubt:
        logger.warning(f"the found boxes of {name} are {doubt}: look at found.png before a training on them")
