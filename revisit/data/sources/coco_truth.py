"""What of a dict in COCO's format is the truth: how it is meant, and what is refused.

``true_coco`` alone says how a dict with the lists ``categories``, ``images`` and ``annotations``
(https://cocodataset.org/#format-data) is meant: what is counted, learned from, drawn and scored comes from there.
"""

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
from pycocotools import mask as coco_mask

from revisit.data.images.reader import size_if_known
from revisit.data.sources.file_names import other_spellings, real_paths
from revisit.data.sources.image_folders import require_files
from revisit.errors import expect, translated
from revisit.files import input_file

MIN_SIDE = 0.01  # px of a box inside its image; narrower ones vanish when an image is made smaller
FAR = 2**20  # px, beyond any image
MOST_PIXELS = 2**32 - 1  # of an image with masks: pycocotools counts in 32 bits
MAX_OUTLINE = 2**20  # px around a mask; pycocotools walks along it step by step, and dies of one without an end
LOCAL_FILE = "/data/local-files/?d="  # how Label Studio serves a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT
IS_CROWD = (None, 0, 1, "0", "1")
THIN = 0.1  # width of an outline over its length
LEAST_AREA = 0.05  # of a box: below it, a stated area is compared with that of the mask
EXACT = 2**24  # px, below which float64 has the sides and areas of boxes in whole numbers as Python does
PARTS = ("categories", "images", "annotations")
# What is not as it stands in the file.
WITHOUT_IMAGE = "left out, of images that the file does not have"
WITHOUT_AREA = "left out, without area inside their images"
OTHER_AREA = "state an area that neither their mask nor their box has: the mask's counts, or else the box's"


def read_coco(file: Path) -> Any:
    """The content of a JSON file. Raises UserError where it is none."""
    with translated(f"reading {file}, expected JSON in COCO's format", content=True):
        return json.loads(input_file(file).read_text(encoding="utf-8-sig"))


def scored_coco(content: Any, images: Path, source: str) -> dict:
    """The truth of a dict in COCO's format, with what pycocotools takes for granted when it scores.

    That is ``iscrowd`` of each annotation, ``num_keypoints`` of one with keypoints, and ids from 1 on, because a hit of
    id 0 counts as none.
    """
    truth, _ = true_coco(content, images, source)
    if "annotations" in truth:
        numbered = enumerate(truth["annotations"], start=1)
        truth["annotations"] = [{**_taken_for_granted(annotation), "id": number} for number, annotation in numbered]
    return truth


def _taken_for_granted(annotation: dict) -> dict:
    """An annotation with what a file may leave out."""
    if "keypoints" in annotation:
        annotation = {"num_keypoints": keypoints_seen([annotation]), **annotation}
    return {"iscrowd": 0, **annotation}


def keypoints_seen(annotations: Iterable[dict]) -> int:
    """How many keypoints of objects are labelled, each x, y and 0 where it is not."""
    return sum(state > 0 for annotation in annotations for state in (annotation.get("keypoints") or ())[2::3])


def true_coco(content: Any, images: Path, source: str) -> tuple[dict, list[str]]:
    """A dict in COCO's format as it is meant, in a new dict; and in words which annotations are no truth. Annotations
    that are meant as they stand are those of ``content``, not to be written to.

    - Names of categories are texts, each of one category.
    - ``file_name`` is that of a file below ``images``, each of one image; ``width`` and ``height`` are px.
    - An annotation lies in an image, with an area of at least MIN_SIDE by MIN_SIDE px; others are left out.
    - ``iscrowd``, where there is one, is 0 or 1; ``area`` is px^2, that of the mask or the box where the file's is not.
    - ``segmentation``, where there is one, can be drawn: outlines of three points and more, or the run lengths of an
      image. An empty one, and a rectangle of four numbers, is none; the box stays.

    Raises:
        UserError: what cannot be meant so; the message names ``source`` and the entry.
    """
    has_lists = isinstance(content, dict) and content.get("images") and content.get("categories")
    form = "expected an object with the lists categories, images and annotations"
    expect(has_lists, f"{source} is not in COCO's format, or shows nothing: {form}")
    read_each = partial(_read_each, content, source)
    categories = read_each("categories", lambda entry: {**entry, "id": entry["id"], "name": _name(entry)})
    folder = os.fspath(images)  # of a Path, joining asks for it each time
    pictures = read_each("images", lambda entry: {**entry, "id": entry["id"], "file_name": _file_name(entry, folder)})
    with translated(source, content=True):
        for key in ("id", "name"):
            _expect_different([category[key] for category in categories], f"categories have the same {key}")
        _expect_ids_of_one_kind("categories", categories)
        _expect_ids_of_one_kind("images", pictures)
        _complete(pictures, folder)
    truth = {**content, "categories": categories, "images": pictures}
    if "annotations" not in content:
        return truth, []
    notes: dict[str, list[str]] = defaultdict(list)
    ids, picture_of = {category["id"] for category in categories}, {picture["id"]: picture for picture in pictures}
    others = np.flatnonzero(~_stand_as_meant(content["annotations"], ids, picture_of)).tolist()
    meant = read_each("annotations", lambda entry: _annotation(entry, ids, picture_of, notes), others)
    truth["annotations"] = list(filter(None, meant))
    with translated(source, content=True):
        own_ids = (annotation.get("id") for annotation in truth["annotations"])
        _expect_different([own for own in own_ids if own is not None], "annotations have the same id")
    lost = notes.get(WITHOUT_IMAGE, [])
    problem = f"{source}: annotations have no image_id that is the id of one of images, such as {lost[:1]}"
    expect(not lost or truth["annotations"], f"{problem}: expected both to be numbers, and the same ones")
    total = len(meant)
    lines = [f"{len(some)} of {total} boxes {what}, such as {some[0]}" for what, some in notes.items()]
    return truth, lines


def _read_each(
    content: dict, source: str, part: str, read: Callable[[dict], Any], places: Iterable[int] | None = None
) -> list:
    """A list with what ``read`` makes of each entry, or of those at ``places`` alone. Raises UserError, with its place,
    of one that is no object or that cannot be read."""
    made = list(content[part] or [])
    for index in range(len(made)) if places is None else places:
        try:
            made[index] = read(_object(made[index]))
        except Exception:  # entering a context for each of a million entries takes seconds
            with translated(f"{source}, {part}[{index}]", content=True):
                raise
    return made


def _object(entry: Any) -> dict:
    if not isinstance(entry, dict):
        raise ValueError(f"{json.dumps(entry)[:80]}, expected an object")
    return entry


def _expect_different(values: list, what: str) -> None:
    """Raise ValueError if a value occurs twice: two of ``what``."""
    if len(set(values)) < len(values):
        [(value, count)] = Counter(values).most_common(1)
        same = f"{count} {what}, {value!r}"
        raise ValueError(f"{same}: expected one of its own for each; rename or remove the others")


def _expect_ids_of_one_kind(part: str, entries: list[dict]) -> None:
    """Raise ValueError where some ids are texts, and others numbers, which have no common order."""
    texts = [isinstance(entry["id"], str) for entry in entries]
    if any(texts) and not all(texts):
        raise ValueError(f"ids of {part} are numbers and texts: expected the one or the other")


def _name(category: dict) -> str:
    name = category["name"]
    text = str(name).strip()
    if type(name) not in (str, int, float) or not text:
        raise ValueError(f"the category of id {category['id']!r} has the name {name!r}, expected a text")
    return text


def _complete(pictures: list[dict], folder: str) -> None:
    """Let images have the size of their file where the entry has none. Raises ValueError or UserError for no files."""
    _expect_different([picture["id"] for picture in pictures], "images have the same id")
    paths = [os.path.join(folder, picture["file_name"]) for picture in pictures]
    require_files([{"file_name": path} for path in paths], f", by their names below {folder},")
    _expect_different(real_paths(paths), "images have the same file")
    for picture, path in zip(pictures, paths, strict=True):
        if not (_is_side(picture.get("height")) and _is_side(picture.get("width"))):
            picture.update(size_if_known(path))


def _is_side(value: Any) -> bool:
    """Whether an image may have so many px along a side."""
    return type(value) is int and value > 0


def _file_name(picture: dict, folder: str) -> str:
    """The name of a file that is there, which others may spell otherwise, and Label Studio as an address."""
    name = picture["file_name"]
    if not isinstance(name, str):
        raise ValueError(f"file_name {name!r}, expected a text")
    file = name
    if not _leads_out(name) and not os.path.exists(os.path.join(folder, name)):
        _, is_address, quoted = name.partition(LOCAL_FILE)
        local = os.fsdecode(unquote_to_bytes(quoted))
        spellings = [local] if is_address else other_spellings(name)
        existing = (spelling for spelling in spellings if os.path.exists(os.path.join(folder, spelling)))
        file = next(existing, f"/{local}" if is_address else name.replace("\\", "/"))
    if _leads_out(file):
        raise ValueError(f"file_name {name!r} leads out of the folder of images, {folder}: expected one below it")
    return file


def _leads_out(name: str) -> bool:
    """Whether a relative name leads to a file outside its folder."""
    return ".." in name and not os.path.isabs(name) and os.path.normpath(name).startswith("..")


def _stand_as_meant(annotations: list | None, ids: set, picture_of: dict) -> np.ndarray:
    """(N,) bool, the boxes without masks of which ``_annotation`` has nothing to say or to change; of a file in which
    one has no such numbers, none."""
    entries = annotations or []
    try:
        boxes, areas = [entry["bbox"] for entry in entries], [entry["area"] for entry in entries]
        pictures = [picture_of[entry["image_id"]] for entry in entries]
        are_known = {entry["category_id"] for entry in entries} <= ids
        are_numbers = set(map(type, chain(areas, *boxes))) <= {int, float}
        if not (are_known and are_numbers and {(type(box), len(box)) for box in boxes} == {(list, 4)}):
            return np.zeros(len(entries), bool)
        xywh = np.fromiter(chain.from_iterable(boxes), float).reshape(-1, 4)
        stated = np.array(areas, float)
    except (KeyError, TypeError, OverflowError):
        return np.zeros(len(entries), bool)
    sides = np.fromiter(chain.from_iterable(map(itemgetter("width", "height"), pictures)), float).reshape(-1, 2)
    low = xywh[:, :2]
    across, down = (np.minimum(low + xywh[:, 2:], sides) - np.maximum(low, 0)).T
    is_area = (LEAST_AREA * (across * down) <= stated) & (stated <= (across + 2) * (down + 2)) & (stated > 0)
    is_exact = (np.abs(xywh) < EXACT).all(axis=1)
    return is_area & is_exact & (np.minimum(across, down) >= MIN_SIDE) & np.array(list(map(_is_plain, entries)))


def _is_plain(entry: dict) -> bool:
    is_crowd = entry.get("iscrowd", 0)
    is_known = type(is_crowd) is int and 0 <= is_crowd <= 1 and not entry.get("ignore")
    return is_known and "segmentation" not in entry and not entry.get("keypoints")


def _annotation(entry: dict, ids: set, picture_of: dict, notes: dict[str, list[str]]) -> dict | None:
    """As it is meant; None, with an example among ``notes``, of what is no truth. Raises ValueError: what is wrong."""
    category, image = entry["category_id"], entry["image_id"]
    if category not in ids:
        raise ValueError(f"category_id {category!r}, expected the id of one of categories")
    if image not in picture_of:
        notes[WITHOUT_IMAGE].append(f"image_id {image!r}")
        return None
    _check_annotation(entry)
    picture = picture_of[image]
    height, width = picture["height"], picture["width"]
    mask = _mask(entry.get("segmentation"), height, width)
    x, y, box_width, box_height = entry["bbox"]
    across = min(x + box_width, width) - max(x, 0)
    down = min(y + box_height, height) - max(y, 0)
    example = f"bbox {entry['bbox']} of {picture['file_name']}"
    is_narrow = min(across, down) < MIN_SIDE
    # A negative side is refused when boxes are inspected.
    if is_narrow and min(box_width, box_height) >= 0:
        notes[WITHOUT_AREA].append(example)
        return None
    annotation = {key: value for key, value in entry.items() if key != "segmentation"}
    if "iscrowd" in entry:
        annotation["iscrowd"] = int(entry["iscrowd"] or 0)
    if mask is not None:
        annotation["segmentation"] = mask
    annotation["area"] = _area(annotation, across, down, height, width)
    if _is_number(entry.get("area")) and entry["area"] != annotation["area"]:
        notes[OTHER_AREA].append(f"{entry['area']:g} of {example}")
    return annotation


def _area(annotation: dict, across: float, down: float, height: int, width: int) -> float:
    """px^2, as stated where a mask can have so many in a box of such sides, or where this mask has about as many."""
    stated = annotation.get("area")
    stated = stated if _is_number(stated) else 0
    of_box = across * down
    if LEAST_AREA * of_box <= stated <= (across + 2) * (down + 2):
        return stated
    mask = annotation.get("segmentation")
    area = of_box if mask is None else mask_area(mask, height, width)
    return stated if area / 2 <= stated <= area * 2 else area


def mask_area(mask: list[list[float]] | dict, height: int, width: int) -> float:
    """px of outlines or run lengths in an image of this size."""
    is_drawn = isinstance(mask, dict) and not isinstance(mask["counts"], list)
    runs = mask if is_drawn else coco_mask.frPyObjects(mask, height, width)
    return float(coco_mask.area(coco_mask.merge(runs) if isinstance(runs, list) else runs))


def _is_number(value: Any) -> bool:
    """Whether it is a number above 0."""
    return type(value) in (int, float) and value > 0


def _check_annotation(entry: dict) -> None:
    box = entry["bbox"]
    if not (_are_numbers(box) and len(box) == 4):
        raise ValueError(f"bbox {box}, expected [x, y, width, height], finite and in px")
    if entry.get("iscrowd") not in IS_CROWD:
        raise ValueError(f"iscrowd {entry['iscrowd']!r}, expected 0 or 1")
    if entry.get("ignore"):
        raise ValueError(f"ignore {entry['ignore']!r}, expected iscrowd in its place")
    points = entry.get("keypoints")
    if points and not (_are_numbers(points) and len(points) % 3 == 0):
        raise ValueError(f"keypoints {str(points)[:80]}, expected x, y in px and 0, 1 or 2 of each")


def _are_numbers(values: Any) -> bool:
    """Whether it is a list of finite numbers."""
    if not isinstance(values, list):
        return False
    types = {type(value) for value in values}
    return types <= {int, float} and all(map(math.isfinite, values))


def _mask(mask: Any, height: int, width: int) -> list[list[float]] | dict | None:
    """The outlines or run lengths of an image; None where there is nothing to draw. Raises ValueError for others."""
    if not mask or (_are_numbers(mask) and len(mask) == 4):
        return None
    check_countable(height, width)
    if isinstance(mask, dict):
        return _runs_of_image(mask, height, width)
    if not (isinstance(mask, list) and all(map(_are_numbers, mask))):
        raise ValueError("segmentation: expected lists of x, y, x, y, ... in px, or run lengths of an image")
    return _outlines(mask, height, width) or None


def check_countable(height: int, width: int) -> None:
    """Raises ValueError for an image of more px than run lengths can count."""
    if height * width > MOST_PIXELS:
        most = f"expected at most {MOST_PIXELS:,} px"
        raise ValueError(f"masks of an image of {width:,} x {height:,} px: {most}; take boxes alone, or cut the image")


def _outlines(mask: list[list[float]], height: int, width: int) -> list[list[float]]:
    """Those that enclose something. Raises ValueError for others that go too far, or are no pairs of numbers."""
    if odd := [len(points) for points in mask if len(points) % 2]:
        raise ValueError(f"segmentation: a part has {odd[0]} numbers, expected x, y of three points or more")
    closed = [points for points in mask if len(points) >= 6]
    farthest = max((abs(value) for points in closed for value in points), default=0)
    if farthest > FAR:
        raise ValueError(f"segmentation: points up to {farthest:g} px away, expected those of its image")
    most = min(MAX_OUTLINE, 4 * height * width)
    length = sum(_length(points, most) for points in closed)
    if length > most:
        raise ValueError(f"segmentation: expected an outline of at most {most:,} px in {width} x {height} px")
    return [points for points in closed if _encloses(points, height, width)]


def _encloses(points: list[float], height: int, width: int) -> bool:
    """Whether an outline is more than a line: a px wide, or THIN, or drawn as a px at least."""
    corners = np.reshape(points, (-1, 2)) - points[:2]
    farthest = corners[np.abs(corners).sum(axis=1).argmax()]
    span = math.hypot(*farthest)
    across = np.abs(corners @ (farthest[1], -farthest[0])).max()  # times the span
    is_wide = across >= min(span, THIN * span**2)
    return bool(across > 0 and (is_wide or mask_area([points], height, width) > 0))


def _length(points: list[float], most: float) -> float:
    """Steps of a px along an outline, those of a straight edge counted along its longer axis; or a bound below most."""
    x, y = points[::2], points[1::2]
    span = max(max(x) - min(x), max(y) - min(y))
    bound = len(x) * (span + 1)
    if bound <= most:
        return bound
    corners = np.reshape(points, (-1, 2))
    moves = np.abs(corners - np.roll(corners, 1, axis=0))
    edges = moves.max(axis=1)
    return float((edges + 1).sum())


def _runs_of_image(mask: dict, height: int, width: int) -> dict | None:
    """Run lengths of an image's size; None where no pixel is set. Raises ValueError for those of another size."""
    size, counts = mask["size"], mask["counts"]
    if size != [height, width]:
        raise ValueError(f"segmentation: run lengths of {size} px, expected its image's {[height, width]}")
    runs = counts if isinstance(counts, list) else run_lengths(counts).tolist()
    pixels = height * width
    are_runs = all(type(run) is int and run >= 0 for run in runs)
    if not are_runs or sum(runs) != pixels:
        raise ValueError(f"segmentation: run lengths, expected those of {pixels:,} px, {height} x {width}")
    is_empty = not any(runs[1::2])
    return None if is_empty else {"size": [height, width], "counts": counts}


def run_lengths(text: str) -> np.ndarray:
    """(N,) int64 px, the run lengths of a mask, background first, of COCO's compressed text.

    A character is 48 + 5 bits of a number, the lowest first, + 32 where more of it follow; the last one's highest bit
    is the sign. From the fourth on a number is the difference to the last run but one.

    Raises:
        ValueError: no such text.
    """
    data = np.frombuffer(text.encode(), np.uint8)
    codes = data.astype(np.int64) - 48
    goes_on = codes & 32 > 0
    if not text or codes.min() < 0 or codes.max() > 63 or goes_on[-1]:
        raise ValueError("segmentation: counts are no run lengths in COCO's form")
    last = np.flatnonzero(~goes_on)
    first = np.concatenate([[0], last[:-1] + 1])
    starts = np.repeat(first, last - first + 1)  # for each code, where its number begins
    digit = np.arange(len(codes)) - starts
    if digit.max() > 6:
        raise ValueError("segmentation: counts hold a number beyond any image")
    parts = (codes & 31) << 5 * digit
    runs = np.add.reduceat(parts, first)
    is_negative = codes[last] & 16 > 0
    runs -= is_negative * (1 << 5 * (digit[last] + 1))
    for start in (1, 2):
        runs[start::2] = np.cumsum(runs[start::2])
    return runs
