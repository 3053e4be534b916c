"""Test images that a finetuning learns from, too: their score says how well it knows them, not others."""

import logging
import os
from collections.abc import Sequence

from projects.Labels.belonging import Frame, frame_of
from projects.Labels.near_copies import alike_images, are_frames
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.sources.catalog import MissingDataError, get_records
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, warn_of_shared
from revisit.data.sources.records import Records, others_than, shared_pairs, such_as
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

NEAR = 2  # by which the numbers of two frames differ at most
REMEDY = "their score says little of new ones; revisit split keeps together what belongs together"

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
        where = f"DATASETS.TRAIN {name}"
        warn_of_shared(records, where, tested, test, "their score says nothing of new images; expected others")
        warn_of_torn(records, where, tested, test, pixel_format(cfg))
        again = [pair for pair in alike if not shared_pairs(*([image] for image in pair))]
        if again:
            logger.warning(
                f"{len(again):,} of {compared:,} images of {test} nearly equal one of {where}: saved "
                f"again, or frames of one video; revisit curate --test lists them{such_as(again)}"
            )


def warn_of_torn(learned: Records, where: str, tested: Records, test: str, pixels: PixelFormat) -> None:
    """Warn of windows of files, and of frames of videos, of which some are learned from and others tested."""
    ours, theirs = map(_in_files, (learned, others_than(learned, tested)))
    files = {os.path.abspath(record["file_name"]) for record in ours}
    torn = sum(os.path.abspath(record["file_name"]) in files for record in theirs)
    if torn:
        logger.warning(f"{torn:,} of {len(tested):,} images of {test} are parts of files of {where}, too: {REMEDY}")
    pairs = _next_to_each_other(ours, theirs)
    if pairs and are_frames(pairs, pixels):
        first, second = (os.path.basename(record["file_name"]) for record in pairs[0])
        logger.warning(
            f"{len(pairs):,} of {len(tested):,} images of {test} are frames next to those of {where}, such as "
            f"{second} and {first}: {REMEDY}"
        )


def _in_files(records: Records) -> list[dict]:
    """Those that are in no shard and not in memory."""
    return [record for record in records if "file_name" in record and "offset" not in record]


def _next_to_each_other(learned: Sequence[dict], tested: Sequence[dict]) -> list[tuple[dict, dict]]:
    """Pairs of an image to learn from and one that is tested, whose names are equal but for a number at the end, which
    differs by NEAR at most; each tested image once. Of folders with videos in them, of others where there are none."""
    for start in (0, -2, -1):
        numbered = {frame: record for record in learned if (frame := _frame(record, start))}
        pairs = []
        for record in tested:
            frame = _frame(record, start)
            steps = range(-NEAR, NEAR + 1) if frame else ()
            near = [frame._replace(number=frame.number + step) for step in steps if step]
            pairs += [(numbered[each], record) for each in near if each in numbered][:1]
        if pairs:
            return pairs
    return []


def _frame(record: dict, start: int) -> Frame | None:
    """By the name with its folders from this one on."""
    folders_and_name = os.path.abspath(record["file_name"]).split(os.sep)[start:]
    return frame_of(os.sep.join(folders_and_name))
