"""Where the backbone lies in a detector of Detectron2's, and in other networks with heads."""

import re
from collections.abc import Sequence

from revisit.checkpoint.reading import below_prefix, clipped
from revisit.errors import UserError, expect
from revisit.modeling.backbone.description import BackboneDescription, Tensors, description_of, undescribed

DETECTOR_MARKS = ("backbone.bottom_up.", "proposal_generator.", "roi_heads.", "head.", "sem_seg_head.")

PREFIXES = ("backbone.bottom_up.", "backbone.")  # in a detector with FPN; with C4 or DC5
_RES5_OF_C4 = "roi_heads.res5."
# MSRA's files have a bias next to the first normalisation. Detectron2 leaves it out too.
_LEFT = re.compile(r"(stem\.)?fc(1000)?\.|linear\.|stem\.conv1\.bias$|norm\.(weight|bias)$|.*[._]momentum$")


def backbone_of_detector(tensors: Tensors) -> tuple[Tensors, BackboneDescription]:
    """``find_backbone``; UserError where there is none."""
    backbone = find_backbone(tensors)
    if backbone is None:
        raise no_backbone(tensors)
    return backbone


def no_backbone(tensors: Tensors) -> UserError:
    """That a model has no backbone of a known family."""
    first = next(iter(tensors), "none")
    return undescribed(f"the backbone of a model with tensors such as {clipped(first)}")


def find_backbone(tensors: Tensors, prefixes: Sequence[str] = PREFIXES) -> tuple[Tensors, BackboneDescription] | None:
    """The backbone's tensors under its own names, and its family; None where it lies after none of the prefixes."""
    candidates = (_backbone_after(prefix, tensors) for prefix in prefixes)
    return next(filter(None, candidates), None)


def _backbone_after(prefix: str, tensors: Tensors) -> tuple[Tensors, BackboneDescription] | None:
    below = below_prefix(tensors, prefix)
    identified = with_family(below)
    if identified is None:
        return None
    backbone, description = identified
    if description.FOLDED:
        has_scales = any(key.endswith("norm.weight") for key in backbone)
        has_statistics = any(key.endswith("norm.running_mean") for key in backbone)
        refuse_group_norm(has_scales and not has_statistics)
    if prefix:
        below |= {f"res5.{key}": value for key, value in below_prefix(tensors, _RES5_OF_C4).items()}
    return with_family(below)


def refuse_group_norm(is_there: bool) -> None:
    """Raise UserError where it is there."""
    expect(not is_there, "the backbone has group norm, or batch norm without statistics: expected batch norm with them")


def with_family(tensors: Tensors) -> tuple[Tensors, BackboneDescription] | None:
    """The tensors of a backbone among those under its own names, and its family; None of an unknown one."""
    kept = {key: value for key, value in tensors.items() if not _LEFT.match(key) and not key.startswith("res5.norm.")}
    description = description_of(kept)
    return (kept, description) if description else None
