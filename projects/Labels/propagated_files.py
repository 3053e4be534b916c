"""What has become of the given labels of videos, as files: of masks, which are there already, those of other tools."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from projects.FrozenEvaluations.davis import paint_objects
from projects.Labels.brush_labels import task_with_masks
from projects.Labels.cvat_xml import cvat_lines
from projects.Labels.given_masks import Given
from projects.Labels.video_frames import Video
from projects.Pictures.tiles import gallery, save_sheet
from revisit.boxes.boxes import annotation_of
from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.boxes.label_studio import interface_of
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import picture_of
from revisit.data.sources.labels import VOID, read_ids
from revisit.data.sources.records import sample
from revisit.errors import without_secrets
from revisit.files import make_folder, record_written, write_whole, written_whole

MASKS = "masks"  # below an output
SHOWN, COLUMNS = 12, 4  # frames of a sheet
MOST_LISTED = 10  # objects of a video


def mask_file(output: Path, video: Video, frame: Path) -> Path:
    """Where the (H, W) ids of a frame's objects are written."""
    return output / MASKS / video.name / f"{frame.stem}.png"


def write_files(
    output: Path, videos: Sequence[Video], given: Sequence[Given], version: str, pixels: PixelFormat
) -> Iterator[str]:
    """Write the masks of all frames as a COCO data set, as tasks for Label Studio with their interface, as CVAT's XML
    and a sheet for each video; yields lines that say what there is. Of a frame no more than run lengths is held."""
    classes, version = given[0].classes, without_secrets(version)
    of_videos = [
        [_image(output, video, frame, its, VOID * place) for frame in video.frames]
        for place, (video, its) in enumerate(zip(videos, given, strict=True))
    ]
    images = [image for of_video in of_videos for image in of_video]
    folder = folder_of(images)
    write_data_set(output / "data_set.json", images, classes, folder=folder)
    tasks = (json.dumps(task_with_masks(image, classes, version)) for image in images)
    _write_lines(output / "label_studio.json", chain("[", _with_commas(tasks), "]"))
    write_whole(output / "label_studio.xml", interface_of(classes, "BrushLabels"))
    for video, of_video in zip(videos, of_videos, strict=True):
        for name in ("cvat", "sheets"):
            make_folder(output / name, "--output")
        _write_lines(output / "cvat" / f"{video.name}.xml", cvat_lines(video.name, of_video, classes))
        _save_sheet(output, video, pixels)
        yield f"{video.name}: {_counts(of_video)}"
    tracks = [output / "cvat" / f"{video.name}.xml" for video in videos]
    masks = [mask_file(output, video, frame) for video in videos for frame in video.frames]
    record_written(output, [output / "label_studio.json", output / "label_studio.xml", *tracks, *masks])
    yield f"{len(images)} frames of {len(videos)} video{'s' * (len(videos) > 1)}: {output}"
    yield f"a detector learns them as coco:{folder}:{output / 'data_set.json'}"


def _counts(images: Sequence[Mapping[str, Any]]) -> str:
    """In how many frames each object is, in words."""
    frames_of = Counter(each["track_id"] for image in images for each in image["objects"])
    listed = [f"object {number % VOID} in {count}" for number, count in sorted(frames_of.items())[:MOST_LISTED]]
    more = f" and {len(frames_of) - MOST_LISTED} more objects" if len(frames_of) > MOST_LISTED else ""
    return f"{', '.join(listed)}{more} of {len(images)} frames"


def _image(output: Path, video: Video, frame: Path, given: Given, tracks: int) -> dict[str, Any]:
    """A frame with its objects, whose tracks are numbered after so many of other videos."""
    ids = read_ids(mask_file(output, video, frame))
    height, width = ids.shape
    objects = []
    for number in np.setdiff1d(ids, 0).tolist():
        identity = {"category_id": given.class_of.get(number, 0) + 1, "track_id": tracks + number}
        objects.append(identity | annotation_of(ids == number))
    return {"file_name": str(frame), "height": height, "width": width, "objects": objects}


def _with_commas(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{',' * bool(number)}{line}"


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with written_whole(path) as temporary, open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{line}\n" for line in lines)


def _save_sheet(output: Path, video: Video, pixels: PixelFormat) -> None:
    """Frames from all over a video, with their objects painted."""
    frames = sample(video.frames, SHOWN)
    tiles = []
    for frame in frames:
        ids = read_ids(mask_file(output, video, frame))
        tiles.append(paint_objects(picture_of({"file_name": str(frame)}, pixels), ids))
    rows = gallery(tiles, [os.path.basename(frame) for frame in frames], min(COLUMNS, len(tiles)))
    save_sheet(output / "sheets" / f"{video.name}.png", rows, title=video.name, subtitle=pixels.caption(""))
