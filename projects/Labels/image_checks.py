"""Images that cannot be read, before a run and in a dry run."""

import logging
from functools import partial

from projects.Labels.soundness import look_at
from revisit.data.finetuning.detection_mapper import longest_side, too_thin
from revisit.data.images.deep_images import pixel_format
from revisit.data.sources.inspection import IMAGE_CHECK_REGISTRY, MOST_UNREADABLE
from revisit.data.sources.records import Records
from revisit.engine.dry_run import DRY_RUN_DATA_REGISTRY
from revisit.errors import UserError, first_few
from revisit.keys import DETECTORS, architecture_of
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode

MOST_LISTED = 20  # unreadable images

logger = logging.getLogger(__name__)


@IMAGE_CHECK_REGISTRY.register()
def readable(cfg: CfgNode, name: str, records: Records, to_learn: bool) -> None:
    """The rule of docs/training.md for images that cannot be read, before the first step: how many were looked at,
    which are replaced or completed. Raises UserError, after a list of them, for too many, and for any in a set to be
    scored.
    """
    replaced = to_learn and method_of(cfg)
    has_boxes = architecture_of(cfg) in DETECTORS
    problem_of = partial(too_thin, longest=longest_side(cfg, to_learn)) if has_boxes else None
    look = look_at(records, pixel_format(cfg), whole=not to_learn, problem_of=problem_of)
    lost = look.unreadable + (look.truncated if replaced else [])
    seen = f"data set {name!r}: {look.seen:,} of {len(records):,} images looked at, {len(lost):,} cannot be read"
    if len(lost) > (MOST_UNREADABLE * look.seen if to_learn else 0):
        print("unreadable:", *lost[:MOST_LISTED], sep="\n    ", flush=True)
        most = f"at most {MOST_UNREADABLE:.0%}" if to_learn else "none, because the rest would be another test set"
        raise UserError(f"{seen}, such as {lost[0]}: expected {most}; copy them again, or remove them")
    if lost:
        logger.warning(f"{seen}, so others stand in: {first_few(lost)}")
    else:
        logger.info(seen)
    if look.truncated and not replaced:
        logger.warning(
            f"{seen}; {len(look.truncated):,} truncated JPEGs are completed with grey: {first_few(look.truncated)}"
        )


@DRY_RUN_DATA_REGISTRY.register()
def looked_at(cfg: CfgNode, records: Records) -> dict:
    """How many images were looked at, and which cannot be read."""
    look = look_at(records, pixel_format(cfg))
    counts = {"images_checked": look.seen, "unreadable": len(look.unreadable), "truncated": len(look.truncated)}
    return {**counts, "unreadable_first": (look.unreadable + look.truncated)[:MOST_LISTED]}
