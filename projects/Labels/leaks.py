"""Test images that a finetuning learns from, too: their score says how well it knows them, not others."""

import logging

from projects.Labels.near_copies import alike_images
from revisit.data.images.deep_images import pixel_format
from revisit.data.sources.catalog import MissingDataError, get_records
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, warn_of_shared
from revisit.data.sources.records import Records, sample, shared_images
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


@IMAGE_CHECK_REGISTRY.register()
def leaks(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """Warn of images of DATASETS.TEST that are in DATASETS.TRAIN, too: as they are, or saved again."""
    if method_of(cfg) or not to_learn:  # an evaluation alone reads no training set
        return
    for test in cfg.DATASETS.TEST:
        try:
            tested = get_records(test)
        except MissingDataError:  # of a dry run
            continue
        alike, compared = alike_images(records, tested, pixel_format(cfg))
        effect = "their score says nothing of new images; expected others"
        warn_of_shared(records, f"DATASETS.TRAIN {name}", tested, test, effect)
        # Files are read again only where something is alike: of the images that alike_images compares.
        if alike and alike > shared_images(sample(records), sample(tested)):
            which = f"{alike:,} of {compared:,} images of {test} nearly equal one of DATASETS.TRAIN {name}"
            logger.warning(f"{which}: saved again, or frames of one video; revisit curate --test lists them")
