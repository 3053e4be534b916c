"""Masks as Label Studio's brush draws them: a task for each image, with run lengths in the form of thi.ng/rle-pack.

The bits are: 32 of the number of words, 5 of a word's bits less 1, four times 4 of a length's bits less 1. Then each
run has a 1, 2 bits which of the four it counts by, its length less 1, and its word; zeros fill the last byte. The
words are R, G, B and A of each pixel, row by row. (A 0 in place of the 1 would begin words that differ.)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from revisit.boxes.label_studio import result_of, task_of
from revisit.data.sources.coco_truth import run_lengths

WORD = 8  # bits of R, G, B and A each
LENGTHS = (3, 4, 8, 16)  # bits of a length, of which a run takes the fewest that hold its own
SET = 255


def task_with_masks(image: Mapping[str, Any], names: Sequence[str], version: str) -> dict[str, Any]:
    """An image with the masks that were made of it, to be corrected.

    Args:
        image: ``file_name``, ``height`` and ``width`` in px, and ``objects`` with ``segmentation`` in COCO's run
            lengths and ``category_id``, which counts ``names`` from 1.
        version: what made them; Label Studio tells predictions apart by it.
    """
    results = []
    for each in image["objects"]:
        runs = brush_runs(coco_mask.decode(each["segmentation"]))
        value = {"format": "rle", "rle": runs, "brushlabels": [names[each["category_id"] - 1]]}
        results.append(result_of(image, "brushlabels", value=value))
    return task_of(image["file_name"]) | {"predictions": [{"model_version": version, "result": results}]}


def brush_runs(mask: np.ndarray) -> list[int]:
    """The bytes of an (H, W) mask of 0 and 1, 0..255 each."""
    head = f"{4 * mask.size:032b}{WORD - 1:05b}" + "".join(f"{bits - 1:04b}" for bits in LENGTHS)
    runs = (_run(4 * length, SET * (number % 2)) for number, length in enumerate(row_runs(mask).tolist()))
    bits = head + "".join(runs)
    count = -(-len(bits) // 8)
    return [*int(bits.ljust(8 * count, "0"), 2).to_bytes(count)]


def row_runs(mask: np.ndarray) -> np.ndarray:
    """(N,) int64 run lengths of an (H, W) mask of 0 and 1, row by row, the first of 0."""
    encoded = coco_mask.encode(np.asfortranarray(mask.T, np.uint8))  # COCO goes column by column
    return run_lengths(encoded["counts"].decode())


def _run(length: int, word: int) -> str:
    """The bits of a run of one word, in as many parts as its length takes."""
    whole, rest = divmod(length, 2 ** LENGTHS[-1])
    return whole * _part(2 ** LENGTHS[-1], word) + (_part(rest, word) if rest else "")


def _part(length: int, word: int) -> str:
    which = next(place for place, bits in enumerate(LENGTHS) if length <= 2**bits)
    return f"1{which:02b}{length - 1:0{LENGTHS[which]}b}{word:0{WORD}b}"
