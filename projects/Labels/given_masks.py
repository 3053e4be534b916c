"""Which objects are given in which frames of a video: by masks, by boxes of a data set, or by corners."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from projects.FrozenEvaluations.davis import is_white
from projects.Labels.video_frames import Video
from revisit.boxes.boxes import Boxes
from revisit.boxes.coco_files import CATEGORY, size_of
from revisit.command.options import data_set
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.image_folders import is_visible
from revisit.data.sources.labels import VOID, check_size, read_labels
from revisit.data.sources.subsets import objects_of
from revisit.errors import UserError, expect, first_few
from revisit.network.network import digest_of

from detectron2.data.detection_utils import annotations_to_instances
from detectron2.structures import BoxMode

MOST = VOID - 1  # objects of a video
ONE_CLASS = (CATEGORY["name"],)


class Given(NamedTuple):
    """What a user says of a video's objects."""

    masks: Mapping[int, Path]  # files, by the number of the frame
    boxes: Mapping[int, list[dict]] = {}  # of one frame, as records have annotations
    classes: Sequence[str] = ONE_CLASS

    @property
    def numbers(self) -> list[int]:
        """Of the frames, in order."""
        return sorted(self.masks or self.boxes)

    def digests(self, video: Video) -> dict[int, str]:
        """Of the masks, by the numbers of their frames. Raises UserError as ``ids``."""
        return {number: digest_of({"ids": torch.from_numpy(ids)}) for number, ids in self.ids(video)}

    @property
    def class_of(self) -> dict[int, int]:
        """Places among the classes, by the ids of objects that have another than the first one."""
        return {n: box["category_id"] for boxes in self.boxes.values() for n, box in enumerate(boxes, start=1)}

    def ids(self, video: Video) -> Iterator[tuple[int, np.ndarray]]:
        """The number of each frame, and the (H, W) uint8 ids of its objects, 0 where there is none. Raises UserError
        for a mask of another size, or without an object."""
        for number in self.numbers:
            frame = video.frames[number]
            boxes = self.boxes.get(number)
            yield number, _filled(boxes, frame) if boxes else _read_mask(self.masks[number], frame)


def given_masks(video: Video, places: Sequence[Path], *, alone: bool) -> Given:
    """The masks of a video among ``places``: PLACE/NAME.png of its first frame, and files in PLACE/NAME by the names of
    their frames; of the only video, by such names, also a file itself and those in PLACE. A file that has no frame's
    name, and is alone, is of the first.

    Raises UserError where there is none, where one is of no frame or may be of either of two, and where two are of one.
    """
    of_video, of_frames = _files_for(video, places, alone)
    where = ", ".join(map(str, places))
    expect(
        of_video or of_frames,
        f"no mask of {video.name}: expected {video.name}.png or {video.name}/*.png below --masks {where}"
        f"{', or the PNG itself' * alone}",
    )
    if alone and of_video:
        _expect_clear(of_video[0], video)
    only = len(of_video) + len(of_frames) == 1
    numbered = [(0, file) for file in of_video] + [(_frame_of(file, video, only), file) for file in of_frames]
    return Given(_one_each(numbered, video))


def _files_for(video: Video, places: Sequence[Path], alone: bool) -> tuple[list[Path], list[Path]]:
    """Those that have the video's name, and those for its frames."""
    files = [file for place in places for file in _files_of(place, alone)]
    of_video = [file for file in files if file.stem == video.name]
    of_frames = [file for place in places for file in _pngs_in(place / video.name)]
    if not alone:
        return of_video, of_frames
    rest = [file for file in files if file.stem != video.name]
    others = _of_other_videos(rest, video, places) if of_video or of_frames else []
    return of_video, of_frames + [file for file in rest if file not in others]


def _files_of(place: Path, alone: bool) -> list[Path]:
    if place.is_dir():
        return _pngs_in(place)
    expect(place.is_file(), f"--masks {place}: no such file or folder")
    expect(alone, f"--masks {place} is one file, and there are several videos: expected a folder with NAME.png")
    return [place]


def _pngs_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix.lower() == ".png" and is_visible(file.name))


def _of_other_videos(files: Sequence[Path], video: Video, places: Sequence[Path]) -> list[Path]:
    """Those in a folder, next to the video's own, that have the name of none of its frames; a warning names them."""
    stems = {frame.stem for frame in video.frames}
    others = [file for file in files if file.stem not in stems and file not in places]
    if others:
        names = first_few([file.name for file in others])
        print(f"warning: --masks: left out {names}: no frame of {video.name} is called so", flush=True)
    return others


def _expect_clear(file: Path, video: Video) -> None:
    """Raises UserError where a video's mask has the name of one of its later frames, too."""
    first, *later = [frame.stem for frame in video.frames]
    expect(
        video.name not in later,
        f"{file} may be of the first frame, as {video.name} is the video, or of the frame {video.name}: expected "
        f"{video.name}/{first}.png or {video.name}/{video.name}.png",
    )


def _one_each(numbered: Sequence[tuple[int, Path]], video: Video) -> dict[int, Path]:
    """Files by the numbers of their frames. Raises UserError for two of one."""
    files: dict[int, Path] = {}
    for number, file in numbered:
        first = files.setdefault(number, file)
        frame = video.frames[number].stem
        expect(first == file, f"{first} and {file} are both masks of frame {frame} of {video.name}: expected one")
    return files


def _frame_of(file: Path, video: Video, only: bool) -> int:
    """The number of the frame that a file of labels is of."""
    stems = [frame.stem for frame in video.frames]
    if file.stem in stems:
        return stems.index(file.stem)
    expect(only, f"{file} is of no frame of {video.name}: expected the name of one, such as {stems[0]}{file.suffix}")
    return 0


def _read_mask(file: Path, frame: Path) -> np.ndarray:
    ids = read_labels(file, VOID)
    check_size(file, ids, frame, size_of({"file_name": frame}))
    ids = np.where(ids == VOID, np.uint8(is_white(ids)), ids)
    expect(ids.any(), f"{file} has no object: expected a palette's or grey ids, 1 for the first object, or 0 and 255")
    return ids


def given_boxes(video: Video, words: Sequence[str], *, alone: bool) -> Given:
    """The objects of a video by --boxes: of the first frame X0 Y0 X1 Y1 each, in px, or a data set, whose images are
    frames of its, or the only labelled one of the only video its first.

    Raises UserError for words that are neither, or that have objects of no frame, of several, or of another size.
    """
    corners = _corners(words)
    if corners is not None:
        expect(alone, "--boxes X0 Y0 X1 Y1 is of one video, and there are several: expected a data set, or --masks")
        boxes = [{"bbox": box, "bbox_mode": BoxMode.XYXY_ABS, "category_id": 0} for box in corners]
        return Given({}, {0: boxes})
    expect(len(words) == 1, f"--boxes {' '.join(words)}: expected X0 Y0 X1 Y1 for each object, or one data set")
    name = data_set(words[0])
    records = get_records(name)
    expect_file_names(records, f"--boxes {words[0]}")
    labelled = [record for record in records if objects_of(record)]
    folder = os.path.realpath(video.frames[0].parent)
    of_video = [each for each in labelled if os.path.realpath(os.path.dirname(each["file_name"])) == folder]
    of_video = of_video or labelled * alone
    expect(
        len(of_video) == 1,
        f"--boxes {words[0]} has boxes of {len(of_video)} frames of {video.name}: expected those of one, by the name "
        "of its file",
    )
    (record,) = of_video
    number = _frame_of(Path(record["file_name"]), video, only=alone)
    frame = video.frames[number]
    labelled_at, own = (f"{width} x {height}" for height, width in map(size_of, (record, {"file_name": frame})))
    expect(
        labelled_at == own,
        f"--boxes {words[0]} has boxes in px of {labelled_at}, but {frame} is {own}, upright as EXIF turns it: "
        "expected the same size",
    )
    return Given({}, {number: objects_of(record)}, names_of(name))


def _corners(words: Sequence[str]) -> list[list[float]] | None:
    """Four numbers for each object; None of words that are no numbers."""
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return None
    expect(len(numbers) % 4 == 0, f"--boxes has {len(numbers)} numbers: expected four an object, X0 Y0 X1 Y1")
    return [numbers[start : start + 4] for start in range(0, len(numbers), 4)]


def _filled(boxes: list[dict], frame: Path) -> np.ndarray:
    """(H, W) uint8 ids from 1 of masks, or of what lies in the boxes where one has no mask; the smaller before the
    larger."""
    height, width = size_of({"file_name": frame})
    expect(len(boxes) <= MOST, f"{len(boxes)} objects of {frame}: expected at most {MOST}")
    if all("segmentation" in box for box in boxes):
        masks = Boxes.of_instances(annotations_to_instances(boxes, (height, width), mask_format="bitmask")).masks
    else:
        masks = _rectangles(Boxes.of_annotations(boxes), height, width)
    ids = np.zeros((height, width), np.uint8)
    for number in np.argsort([-mask.sum() for mask in masks], kind="stable"):
        ids[masks[number]] = number + 1
    gone = np.setdiff1d(np.arange(1, len(boxes) + 1), ids)
    if len(gone):
        box = [round(value, 1) for value in boxes[gone[0] - 1]["bbox"]]
        raise UserError(
            f"box {gone[0]}, {box}, has no pixel of {frame} ({width} x {height}) of its own: expected X0 Y0 X1 Y1 in "
            "px, X0 < X1, Y0 < Y1, not covered by smaller boxes"
        )
    return ids


def _rectangles(boxes: Boxes, height: int, width: int) -> np.ndarray:
    """(N, H, W) bool: pixels whose middle lies in a box."""
    y, x = np.arange(height)[:, None] + 0.5, np.arange(width) + 0.5
    x0, y0, x1, y1 = boxes.xyxy.T[..., None, None]
    return (x0 <= x) & (x < x1) & (y0 <= y) & (y < y1)
