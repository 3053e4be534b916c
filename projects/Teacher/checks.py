"""What would make a training from photographs without labels worthless, found before it begins."""

import logging

from projects.Teacher.keys import ARCHITECTURE
from projects.Teacher.samples import unlabelled_records
from projects.Teacher.teacher_detector import thresholds_of
from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, num_classes
from revisit.data.sources.records import Records, shared_pairs
from revisit.engine.data_checks import look_at_images
from revisit.errors import expect

from detectron2.config import CfgNode

RESULTS = "docs/results/teacher.md"  # with labels for all

logger = logging.getLogger(__name__)


@IMAGE_CHECK_REGISTRY.register()
def unlabelled(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """The photographs of DATASETS.UNLABELLED, once, when the first of DATASETS.TRAIN is looked at."""
    is_first = to_learn and name == cfg.DATASETS.TRAIN[0]
    if cfg.MODEL.META_ARCHITECTURE == ARCHITECTURE and is_first:
        check_photographs(cfg)


def check_photographs(cfg: CfgNode) -> None:
    """Look at the photographs of DATASETS.UNLABELLED, and warn of those that a data set of DATASETS.TEST has too, by
    their content, and where each of them has labels in DATASETS.TRAIN.

    Raises:
        UserError: there are none, too many cannot be read, or TEACHER.THRESHOLD does not fit the classes.
    """
    thresholds_of(cfg.TEACHER.THRESHOLD, num_classes(cfg) or 0)
    names = cfg.DATASETS.UNLABELLED
    expect(
        len(names) > 0,
        f"DATASETS.UNLABELLED names no photographs for {ARCHITECTURE}: expected such as \"('folder:/data/photos',)\"",
    )
    for source in names:
        if source not in cfg.DATASETS.TRAIN:
            look_at_images(cfg, source, get_records(source), to_learn=True)
    photographs = unlabelled_records(cfg)
    images = (record for name in cfg.DATASETS.TRAIN for record in get_records(name))
    labelled = [record for record in images if record.get("annotations")]
    if len(shared_pairs(labelled, photographs)) == len(photographs):
        logger.warning(
            f"each of the {len(photographs)} photographs of DATASETS.UNLABELLED has labels: a teacher adds nothing "
            f"there, for twice the time ({RESULTS}); add photographs without labels"
        )
    for test in cfg.DATASETS.TEST:
        count = len(shared_pairs(photographs, get_records(test)))
        if count:
            logger.warning(
                f"{count} images of {test} are among DATASETS.UNLABELLED: scores on them say too much; leave them out "
                "of what is learned from"
            )
