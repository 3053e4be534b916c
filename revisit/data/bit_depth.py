"""How many bits the values of a data set's images have: what INPUT.BIT_DEPTH auto means."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from revisit.data.deep_pixels import PNG_MAGIC, is_deep, open_image, read_samples
from revisit.data.reader import JPEG_MAGIC, read_bytes
from revisit.data.sampled_images import ask_each, sample
from revisit.errors import UserError, expect
from revisit.keys import declare, one_of

from detectron2.config import CfgNode

_SHALLOW = (JPEG_MAGIC, b"GIF8", b"RIFF", b"BM")  # starts of files that never have more than 8 bits; WebP is a RIFF
_HEADER = 26  # bytes, up to where PNG tells its bits


BIT_DEPTHS = (None, "auto", 1, *range(8, 17))
# None, because of it yacs lets a key become a word or a number.
declare(
    "INPUT.BIT_DEPTH",
    None,
    "Of images with more than 8 bits a sample: values of 0 to 2**BIT_DEPTH - 1 become grey levels of 0 to 255. auto or "
    "None (by the images), 8 to 16, or 1 (floats of 0 to 1).",
    one_of(*BIT_DEPTHS),
)


class BitDepth(NamedTuple):
    """What the deep images among some have in common."""

    bits: int  # 8 .. 16, or 1: floats of 0 to 1
    reason: str  # in words


class _Range(NamedTuple):
    name: str
    is_float: bool
    low: float
    high: float
    declared: int | None


def find_bit_depth(records: Sequence[dict]) -> BitDepth | None:
    """The bits that hold every value of a sample of the images; None if none has more than 8.

    Integers: the range that the files declare, if their values lie in it, else the bits in use, of 8 .. 16. Floats:
    0 to 1 (one bit) if all values lie there, else 0 to 255. Unreadable images say nothing.

    Raises:
        UserError: values that none of these holds, or integers beside floats that differ.
    """
    chosen = sample(records)
    deep = [record for record, found in zip(chosen, ask_each(_is_deep, chosen), strict=True) if found]
    ranges = [found for found in ask_each(_range_of, deep, "finding INPUT.BIT_DEPTH" if deep else "") if found]
    if not ranges:
        return None
    kinds = [kind for of in (False, True) if (kind := [each for each in ranges if each.is_float == of])]
    bits = {_bits_of(kind) for kind in kinds}
    if len(bits) > 1:
        found = f"{kinds[0][0].name} has integers, and {kinds[1][0].name} has floats of another range"
        raise UserError(f"{found}: expected images of one kind, so save all as integers")
    highest, declared = max(each.high for each in ranges), any(each.declared for each in ranges)
    found = f"{len(deep)} of {len(chosen)} images looked at have more than 8 bits a sample"
    how = "floats" if ranges[0].is_float else "declared by the files" if declared else "bits in use"
    return BitDepth(bits.pop(), f"{found}, their highest value is {highest:g} ({how})")


def _bits_of(ranges: list[_Range]) -> int:
    """Of images of one kind."""
    lowest, highest = min(ranges, key=lambda each: each.low), max(ranges, key=lambda each: each.high)
    expect(lowest.low >= 0, f"{lowest.name} has values down to {lowest.low:g}: expected 0 and more, so shift them")
    found = f"{highest.name} has values up to {highest.high:g}"
    if highest.is_float:
        expect(highest.high <= 255, f"{found}: expected floats of 0 to 1 or of 0 to 255, so save integers of 16 bits")
        return 1 if highest.high <= 1 else 8
    expect(highest.high < 2**16, f"{found}: expected at most 16 bits")
    return max(_integer_bits(each) for each in ranges)


def _integer_bits(found: _Range) -> int:
    in_use = max(8, int(found.high).bit_length())
    # PNG's sBIT may name the bits that there were before the values were stretched to all 16, and TIFF's may be wrong.
    return found.declared if found.declared and in_use <= found.declared <= 16 else in_use


def _is_deep(record: dict) -> bool:
    """By as few bytes as possible."""
    try:
        head = read_bytes(record, _HEADER)
        if head.startswith((PNG_MAGIC, *_SHALLOW)):
            return head.startswith(PNG_MAGIC) and is_deep(head, None)
        if "offset" in record:
            return is_deep(head, open_image(read_bytes(record)))
        try:
            with Image.open(record["file_name"]) as image:
                return is_deep(head, image)
        except UnidentifiedImageError:
            return is_deep(head, None)
    except Exception:  # damaged files raise whatever their bytes trip; who reads them whole will say so
        return False


def _range_of(record: dict) -> _Range | None:
    try:
        data = read_bytes(record)
        samples = read_samples(data, open_image(data))
    except Exception:  # as above
        return None
    values = samples.values
    low, high = float(values.min()), float(values.max())
    name = str(record["file_name"])
    expect(np.isfinite(low + high), f"{name} has values that are not finite: expected numbers from 0 on")
    return _Range(name, values.dtype.kind == "f", low, high, samples.declared)


def bit_depth(cfg: CfgNode) -> int | None:
    """INPUT.BIT_DEPTH as a number; None while it is auto, as it stays where no image has more than 8 bits."""
    value = cfg.INPUT.BIT_DEPTH
    return None if value in (None, "auto") else int(value)
