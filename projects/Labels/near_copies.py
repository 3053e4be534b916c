"""Images of one data set that another one has too, saved again: in another size, format, quality or brightness."""

from collections.abc import Sequence
from functools import partial

import cv2
import numpy as np

from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import open_record
from revisit.data.sources.records import Records, ask_each, sample
from revisit.data.views.resampling import resize

SIDE = 24  # px
LARGE = 8 * SIDE  # px of the shorter side
COMPARED_PAIRS, LEAST_PAIRS = 24, 5
# On DAVIS and aerial_cars neighbours have 0.63 to 0.99, on photographs of one microscope that are numbered 0.13.
SAME_SCENE, MOST_OTHERS = 0.5, 0.8
ALIKE = 0.98  # correlation of two small pictures; see docs/results/curation.md for what it finds


def alike_images(one: Records, other: Records, pixels: PixelFormat) -> tuple[list[tuple[dict, dict]], int]:
    """The images of ``other`` that nearly equal one of ``one``, each with the most similar of these, and how many were
    compared: at most SAMPLED of each.

    Two do where their pictures of SIDE x SIDE px, less the mean of each channel, have a correlation of ALIKE.
    """
    learned, compared = sample(one), sample(other)
    ours, theirs = (_small_pictures(records, pixels, "looking for copies") for records in (learned, compared))
    alike = theirs @ ours.T
    best = zip(compared, alike.argmax(axis=1), alike.max(axis=1), strict=True)
    return [(record, learned[place]) for record, place, how_alike in best if how_alike > ALIKE], len(compared)


def are_frames(pairs: Sequence[tuple[dict, dict]], pixels: PixelFormat) -> bool:
    """Whether the two images of a pair show one scene, by COMPARED_PAIRS of them: half of these have a correlation of
    SAME_SCENE, and of more than most images of different pairs. Not said of fewer than LEAST_PAIRS."""
    if len(pairs) < LEAST_PAIRS:
        return False
    compared = sample(pairs, COMPARED_PAIRS)
    ours, theirs = (_small_pictures(records, pixels) for records in zip(*compared, strict=True))
    alike = theirs @ ours.T
    others = alike[~np.eye(len(alike), dtype=bool)]
    return bool(np.median(np.diag(alike)) > max(SAME_SCENE, np.quantile(others, MOST_OTHERS)))


def _small_pictures(records: Records, pixels: PixelFormat, title: str = "") -> np.ndarray:
    """(N, SIDE x SIDE x C) float32."""
    return np.stack(ask_each(partial(_small_picture, pixels=pixels), records, title))


def _small_picture(record: dict, pixels: PixelFormat) -> np.ndarray:
    """(SIDE x SIDE x C,) float32 of length 1; zeros of one colour alone, and of an image that cannot be read."""
    image = _decoded(record, pixels)
    small = resize(image, (SIDE, SIDE), cv2.INTER_AREA).astype(np.float32)
    centred = (small - small.mean(axis=(0, 1))).ravel()
    return centred / max(np.linalg.norm(centred), 1e-6)


def _decoded(record: dict, pixels: PixelFormat) -> np.ndarray:
    """(h, w, C) uint8, photographs in BGR; of a large one a quarter of each side, which a JPEG gives in a third of the
    time."""
    nothing = np.zeros((1, 1, pixels.count), np.uint8)
    try:
        picture = open_record(record, pixels)
        if pixels.bits or not pixels.is_of_photographs:
            return picture.decode(complete=True)
        large = min(picture.size) >= LARGE
    except UnreadableImageError:  # another check says so
        return nothing
    if isinstance(picture.data, np.ndarray):
        return picture.data[..., ::-1]
    how = cv2.IMREAD_REDUCED_COLOR_4 if large else cv2.IMREAD_COLOR
    image = cv2.imdecode(np.frombuffer(picture.data, np.uint8), how)
    return nothing if image is None else image
