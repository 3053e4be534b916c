"""Images that are learned from more than once: in two data sets of DATASETS.TRAIN, or as copies with other labels."""

import logging
from collections.abc import Hashable

from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, warn_of_shared
from revisit.data.sources.records import COMPARED, LABELS, Records, equal_images, sample

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


@IMAGE_CHECK_REGISTRY.register()
def doubles(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Warn of images that an earlier data set of DATASETS.TRAIN has, too, and of equal files whose labels differ."""
    if not to_learn:
        return
    names = list(cfg.DATASETS.TRAIN)
    for earlier in names[: names.index(name) if name in names else 0]:
        warn_of_shared(
            get_records(earlier),
            f"DATASETS.TRAIN {earlier}",
            records,
            name,
            "they count twice; expected each image in one of them",
        )
    if pairs := labelled_otherwise(records):
        logger.warning(
            f"{len(pairs):,} images of {name} equal another one, byte for byte, and have other labels, such as "
            f"{' and '.join(pairs[0])}: expected one of each, with all its labels"
        )


def labelled_otherwise(records: Records) -> list[tuple[str, str]]:
    """Pairs of images with the same bytes and other labels, of at most COMPARED."""
    labelled = [record for record in sample(records, COMPARED) if {*LABELS} & record.keys() and "file_name" in record]
    pairs = []
    for first, *others in equal_images(labelled):
        pairs += [(first["file_name"], each["file_name"]) for each in others if _labels(each) != _labels(first)]
    return pairs


def _labels(record: dict) -> Hashable:
    """Classes, and boxes in whole px, in any order."""
    boxes = record.get("annotations", ())
    objects = sorted((box["category_id"], *map(round, box["bbox"])) for box in boxes)
    return (record.get("label"), tuple(sorted(record.get("labels", ()))), tuple(objects))
