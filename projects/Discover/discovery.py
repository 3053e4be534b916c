"""Find the objects of a data set's images, in parts, so that an interrupted call continues."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from threadpoolctl import threadpool_limits

from projects.Discover.bars import Bars, bars_of
from projects.Discover.cell_sums import CellSums
from projects.Discover.parts import FINER, Part, find_parts, part_of
from projects.Discover.ranking import TINY, best, boxes_of, contrast, scores_of
from projects.Discover.recurrence import Recurrence, descriptor_length, descriptors
from projects.Discover.verdict import agreement
from projects.Discover.whole import Whole, find_whole
from revisit.arrays import read_arrays
from revisit.boxes.boxes import annotation_of, sides_of
from revisit.data.images.image_bytes import WINDOW
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import require_record
from revisit.data.sources.records import sample
from revisit.errors import UserError, expect
from revisit.files import written_whole
from revisit.jobs.parts import Arrays, Work, as_lines, in_parts, of_lines, save_arrays
from revisit.jobs.processes import HERE
from revisit.jobs.record import left_by_earlier_call
from revisit.jobs.runner import PerProcess, Runner

Maps = Sequence[np.ndarray]  # (h, w, C) float32 of the cells that cover an image, the finest first
Features = Callable[[np.ndarray], Maps]  # of (H, W, 3) uint8 RGB

FOUND = "found.jsonl"  # a line for each image, in the order of the data set
REFERENCE = "reference.npz"
PART = 16  # images
REFERENCES = 100  # images with which each one is compared
CANDIDATES = 150  # of an image
COMPARED = 5  # best parts, from which the whole object has to stand out
WHOLE = 0.1  # of a part's score where it does not come first
WHOLE_FIRST = 0.85  # of their contrast, in the median image
JUDGED = 30  # best parts, whose mean recurrence says so
RECURRENT = 0.4  # it is 0.5 for cells, and 0.15 to 0.3 for photographs of many things
RULES = 7  # what decides which objects are found: a folder of other rules is not continued
LARGEST = 0.4  # of the image, a part's box where much recurs: a larger one is of the background between objects
NEARLY_SAME = 0.7  # IoU of two candidates of which one is enough

NO_BARS = Bars()

logger = logging.getLogger(__name__)


class Candidates(NamedTuple):
    """What may be an object in an image."""

    size: tuple[int, int]  # width and height of the parts' mask
    parts: list[Part]  # those that are left of many, best first
    scores: np.ndarray  # (n,) float64, of this image alone
    descriptors: np.ndarray  # (n, D) float64
    whole: list[Part]  # the object that fills much of the image, if any
    stands_out: float  # its contrast in shares of the mean of the COMPARED best parts; 0 where there is none


class References(NamedTuple):
    """What REFERENCES images from all over the data set have, with which each one is compared."""

    descriptors: dict[str, np.ndarray]  # of the candidates of each, by its name
    stands_out: float  # the median


def find_candidates(maps: Maps, is_window: bool = False) -> Candidates:
    """Parts of all maps of an image, ranked by its finest, and the whole object by its coarsest. A window has none: it
    is for what is small."""
    features = maps[0]
    height, width, channels = features.shape
    size = (width * FINER, height * FINER)
    with threadpool_limits(1):  # the threads of short k-means wait for one another by spinning
        parts = find_parts(maps)
    large = None if is_window else find_whole(maps[-1], size)
    usual = len(parts)
    whole = [large.part] if large else []
    parts += whole
    if not parts:
        no_descriptors = np.zeros((0, descriptor_length(channels)))
        return Candidates(size, [], np.zeros(0), no_descriptors, whole, 0.0)
    boxes = boxes_of(parts)
    sums = CellSums(features)
    scores = scores_of(sums, parts)
    stands_out = _stands_out(sums, boxes[:usual], scores[:usual], large)
    kept = best(boxes, scores, CANDIDATES, NEARLY_SAME)
    scores[usual:] *= WHOLE
    described = descriptors(sums, boxes[kept] / FINER)
    best_parts = [parts[index] for index in kept]
    return Candidates(size, best_parts, scores[kept], described, whole, stands_out)


def _stands_out(sums: CellSums, boxes: np.ndarray, scores: np.ndarray, large: Whole | None) -> float:
    """The contrast of the whole object's first split in shares of the mean of the COMPARED best of (n, 4) ``boxes`` of
    parts; 0 where one of both is missing."""
    if not large or not len(boxes):
        return 0.0
    compared = best(boxes, scores, COMPARED)
    *of_parts, of_whole = contrast(sums, np.concatenate([boxes[compared], boxes_of([large.rough])]) / FINER)
    return float(of_whole / max(np.mean(of_parts), TINY))


def find_objects(
    candidates: Candidates,
    height: int,
    width: int,
    count: int,
    recurs: np.ndarray,
    whole_first: bool,
    bars: Bars = NO_BARS,
) -> list[dict[str, Any]]:
    """The objects of an image, best first, as COCO's results have them: ``bbox`` (x, y, w, h) px, ``segmentation`` in
    run lengths, ``score`` above 0: recurrence squared times the root of the own image's score.

    Args:
        height, width: of its picture, px, without its ``bars``.
        count: the most objects.
        recurs: (n,) recurrence of the parts in other images.
        whole_first: the whole object, if any, comes before all parts, with a score just above the best one's. Else,
            where the best parts recur, one whose box has more than LARGEST of the image is no object.
    """
    parts = candidates.parts
    scores = recurs**2 * np.sqrt(np.maximum(candidates.scores, 0))
    boxes = boxes_of(parts)
    judged = best(boxes, scores, JUDGED)
    if whole_first:
        first = np.full(len(candidates.whole), 1.001 * scores.max(initial=0))
        parts, scores = candidates.whole + parts, np.append(first, scores)
    elif recurs[judged].sum() >= RECURRENT * len(judged):
        scores = scores * (sides_of(boxes).prod(axis=1) <= LARGEST * np.prod(candidates.size))
    objects = []
    for index in best(boxes_of(parts), scores, count):
        mask = _in_image(parts[index], candidates.size, height, width)
        if scores[index] > 0 and mask.any():
            objects.append(annotation_of(bars.around(mask)) | {"score": float(scores[index])})
    return objects


def discover(
    records: list[dict],
    pixels: PixelFormat,
    features: Callable[[], Features],
    output: Path,
    count: int,
    runner: Runner = HERE,
) -> list[dict[str, Any]]:
    """Write a line for every image, or window of one, to ``output``/FOUND: name, size, objects, and what the verdict
    needs.

    Returns the records with what their lines say, without those of images that cannot be read, which are warned of.
    Ends with UserError where none can be read, where none has an object, and where the lines that are there are of
    other images; with SystemExit in a process that has made its share of the parts, where another one puts them
    together.
    """
    path = output / FOUND
    if not path.is_file():
        with runner.alone(output):
            references, candidates = reference_of(records, pixels, features, output)
        compared = PerProcess(partial(_compared, output), (references, candidates))
        compute = partial(_part, records, pixels, features, compared, count)
        with in_parts(Work("discovering", len(records), PART, compute), output / "parts", runner) as arrays:
            for problem in of_lines(arrays["left_out"]):
                logger.warning(f"left out: {problem}")
            with written_whole(path) as temporary:
                temporary.write_bytes(arrays["lines"].tobytes())
    with left_by_earlier_call(path):
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        of_name = {_name(line): line for line in lines}
        has_objects = any(len(line["objects"]) for line in lines)
    foreign = sorted(of_name.keys() - set(map(_name, records)))
    expect(not foreign, f"{path} has {foreign[:1]}, which is none of these images: give another --output")
    expect(lines, "none of the images can be read")
    expect(has_objects, f"no object in any of {len(lines)} images, which look the same all over: give other --weights")
    return [record | of_name[_name(record)] for record in records if _name(record) in of_name]


def _name(image: dict) -> str:
    """Of a record or a line, that of its file, and where it is a window of this, its place."""
    return " ".join([image["file_name"], *map(str, image.get(WINDOW, ()))])


def _part(
    records: list[dict],
    pixels: PixelFormat,
    features: Callable[[], Features],
    compared: Callable[[], tuple[References, dict[str, Candidates]]],
    count: int,
    part: range,
) -> Arrays:
    """Lines of some of the images."""
    references, candidates = compared()
    recurrence = Recurrence(references.descriptors)
    lines, left_out = [], []
    of_part = [records[number] for number in part]
    for record, image in _images(of_part, pixels, left_out):
        name, (height, width) = _name(record), image.shape[:2]
        bars = bars_of(image)
        picture = bars.without(image)
        of_image = candidates.pop(name, None) or _candidates(record, picture, features)
        recurs = recurrence(of_image.descriptors, name)
        agrees = agreement(boxes_of(of_image.parts), of_image.scores, recurs)
        whole_first = references.stands_out >= WHOLE_FIRST
        objects = find_objects(of_image, *picture.shape[:2], count, recurs, whole_first, bars)
        place = {key: record[key] for key in ("file_name", WINDOW) if key in record}
        judged = {"agreement": agrees, "stands_out": of_image.stands_out}
        lines.append({**place, "height": height, "width": width, **judged, "objects": objects})
    return {"lines": as_lines(lines), "left_out": as_lines(left_out)}


def reference_of(
    records: list[dict], pixels: PixelFormat, features: Callable[[], Features], output: Path
) -> tuple[References, dict[str, Candidates]]:
    """What is kept in ``output`` of the candidates of REFERENCES images; and these candidates, where they are not from
    there."""
    path = output / REFERENCE
    candidates: dict[str, Candidates] = {}
    if not path.is_file():
        spread = sample(records, REFERENCES)
        compare = partial(_compare, spread, pixels, features, candidates)
        with in_parts(Work("comparing", len(spread), 1, compare), output / "comparing") as arrays:
            names = of_lines(arrays["names"])
            ends = arrays["counts"].cumsum()
            rows = np.split(arrays["rows"], ends[:-1])
            of_images = {f"of_{n}": of_image for n, of_image in enumerate(rows)}
            save_arrays(path, {"names": np.array(names, str), "stands_out": arrays["stands_out"], **of_images})
    return _kept(path), candidates


def _compare(
    records: list[dict],
    pixels: PixelFormat,
    features: Callable[[], Features],
    candidates: dict[str, Candidates],
    part: range,
) -> Arrays:
    """Descriptors of the candidates of some images, which are added to those of this process."""
    of_part = [records[number] for number in part]
    images = {
        _name(record): _candidates(record, bars_of(image).without(image), features)
        for record, image in _images(of_part, pixels, [])
    }
    candidates |= images
    rows = [of_image.descriptors for of_image in images.values()]
    counts = np.array([len(of_image) for of_image in rows], int)
    every_row = np.concatenate(rows or [np.zeros((0, 0))])
    stands_out = np.array([of_image.stands_out for of_image in images.values()], np.float64)
    return {"names": as_lines(list(images)), "counts": counts, "rows": every_row, "stands_out": stands_out}


def _candidates(record: dict, picture: np.ndarray, features: Callable[[], Features]) -> Candidates:
    """Of a picture; none of one of a single colour, whose cells differ by what the network pads it with alone."""
    maps = features()(picture)
    if (picture == picture[0, 0]).all():
        maps = [np.zeros_like(each) for each in maps]
    return find_candidates(maps, WINDOW in record)


def _kept(path: Path) -> References:
    with left_by_earlier_call(path):
        kept = read_arrays(path)
        of_names = {name: kept[f"of_{n}"] for n, name in enumerate(kept["names"].tolist())}
        return References(of_names, float(np.median(kept["stands_out"])) if of_names else 0.0)


def _compared(output: Path) -> tuple[References, dict[str, Candidates]]:
    """What another process has compared."""
    return _kept(output / REFERENCE), {}


def _images(records: Iterable[dict], pixels: PixelFormat, left_out: list[str]) -> Iterator[tuple[dict, np.ndarray]]:
    """Records and pixels, (H, W, 3) uint8 RGB, of those that can be read; adds why others cannot."""
    for record in records:
        try:
            yield record, require_record(record, pixels)
        except UserError as error:
            left_out.append(str(error))


def _in_image(part: Part, size: tuple[int, int], height: int, width: int) -> np.ndarray:
    """(height, width) uint8: a part in a mask of ``size``, width and height, in px of its image. In one that is smaller
    it may fall apart: then its largest region."""
    mask = cv2.resize(_drawn(part, *size), (width, height), interpolation=cv2.INTER_NEAREST)
    falls_apart = width < size[0] or height < size[1]
    return _drawn(part_of(mask), width, height) if mask.any() and falls_apart else mask


def _drawn(part: Part, width: int, height: int) -> np.ndarray:
    x0, y0, x1, y1 = part.box
    canvas = np.zeros((height, width), np.uint8)
    canvas[y0:y1, x0:x1] = part.mask
    return canvas
