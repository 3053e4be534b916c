"""INPUT.BIT_DEPTH auto, resolved before any process starts: as the weights were trained, else as the images ask."""

from collections.abc import Sequence

from revisit.checkpoint.flags import BIT_DEPTH, read_flags
from revisit.checkpoint.reading import read_checkpoint
from revisit.data.deep_pixels import bit_depth, find_bit_depth
from revisit.errors import expect
from revisit.urls import local_copy

from detectron2.config import CfgNode


def resolve_bit_depth(cfg: CfgNode, records: Sequence[dict]) -> None:
    """Turn auto into a number where ``records`` have deep images, and print why; a number stays what it is.

    Raises:
        UserError: images that no depth fits, or another one than the weights were trained with.
    """
    if bit_depth(cfg) is not None or (asked := find_bit_depth(records)) is None:
        return
    (bits, reason), trained = asked, _depth_of_weights(cfg.MODEL.WEIGHTS)
    if trained:
        fits = bits == trained if 1 in (bits, trained) else bits <= trained
        expect(fits, f"{reason}: they ask for {BIT_DEPTH} {bits}, but {cfg.MODEL.WEIGHTS} was trained with {trained}")
        bits, reason = trained, f"as {cfg.MODEL.WEIGHTS} was trained; {reason}"
    was_frozen = cfg.is_frozen()
    cfg.defrost()
    cfg.INPUT.BIT_DEPTH = bits
    if was_frozen:
        cfg.freeze()
    print(f"{BIT_DEPTH} {bits}, so that values of 0 to {2**bits - 1} become 0 to 255: {reason}", flush=True)


def _depth_of_weights(weights: str) -> int | None:
    """By the flags beside or in the file; None where they say nothing."""
    if not weights:
        return None
    flags = read_flags(weights)[0]
    if flags is None:
        flags = read_checkpoint(local_copy(weights, "MODEL.WEIGHTS")).get("flags")
    return flags.get(BIT_DEPTH) if isinstance(flags, dict) else None
