"""Videos as frames in files: folders of frames as they are, and video files, whose frames are written as JPEGs."""

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2

from projects.FrozenEvaluations.davis import in_order
from projects.Predict.file_predictions import Source, find_sources, write_image
from projects.Predict.videos import VideoFile, problem_of_name
from revisit.boxes.coco_files import size_of
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.reader import ends_well, read_image
from revisit.data.sources.image_folders import is_visible
from revisit.data.sources.records import ask_each, fingerprint
from revisit.errors import UserError, expect
from revisit.files import make_folder
from revisit.jobs.record import Record
from revisit.progress import progress

FRAMES = "frames"  # below an output: a folder for each video file
QUALITY = (cv2.IMWRITE_JPEG_QUALITY, 95)


class Video(NamedTuple):
    """A video and its frames, as files."""

    name: str  # of a file or a folder, unique
    frames: list[Path]  # in order; none of a video file that is not read yet
    file: Path | None = None  # a video file


def find_videos(places: Sequence[str], output: Path) -> list[Video]:
    """Each folder with images, in or below ``places``, and each video file. Numbers in names of frames are in order
    without leading zeros, too. Raises UserError for what is neither, and for an output among them."""
    folders: dict[Path, list[Source]] = defaultdict(list)
    for source in find_sources(places, output, _name_in_folder):
        path = Path(os.path.abspath(source.path))
        folders[path if source.is_video else path.parent].append(source)
    places_of = [folder.parent / folder.stem if found[0].is_video else folder for folder, found in folders.items()]
    top = Path(os.path.commonpath([place.parent for place in places_of]))
    videos = []
    for place, found in zip(places_of, folders.values(), strict=True):
        name = "_".join(place.relative_to(top).parts)
        frames = sorted((source.path for source in found if not source.is_video), key=in_order)
        videos.append(Video(name, frames, found[0].path if found[0].is_video else None))
    names = [video.name for video in videos]
    twice = sorted({name for name in names if names.count(name) > 1})
    expect(not twice, f"--frames: two videos are called {', '.join(twice)}: expected another name for one of them")
    return videos


def _name_in_folder(file: Path) -> str:
    """What tells frames apart: one that links to another, as where nothing has moved, is a frame, too."""
    return os.path.join(os.path.realpath(file.parent), file.name)


def with_frames(video: Video, output: Path) -> Video:
    """The video whose frames are files of one size that can be read: those of a video file are written, once, and
    numbered from 0, as annotation tools count. Raises UserError where one is damaged or of another size."""
    frames = _written(video, output / FRAMES / video.name) if video.file else video.frames
    stems = {frame.stem for frame in frames}
    expect(len(stems) == len(frames), f"{frames[0].parent} has two frames of one name: expected one suffix for all")
    records = records_of([video._replace(frames=frames)])
    sizes = ask_each(size_of, records)
    for frame, size in zip(frames, sizes, strict=True):
        own, first = (f"{width} x {height}" for height, width in (size, sizes[0]))
        expect(size == sizes[0], f"{frame} is {own} pixels, and {frames[0].name} {first}: expected frames of one size")
    for record, is_whole in zip(records, ask_each(ends_well, records), strict=True):
        if not is_whole:
            try:
                read_image(record["file_name"])
            except UnreadableImageError as error:
                raise UserError(f"unreadable frame {error}: expected a complete file, so copy it again") from error
    return video._replace(frames=frames)


def _written(video: Video, folder: Path) -> list[Path]:
    """The frames of a video file, which ``folder`` has, all or none. Raises UserError where they are of another."""
    make_folder(folder.parent, "--output")
    read_from = {"video file": fingerprint([{"file_name": str(video.file)}])}
    Record(folder.parent, read_from, f"{video.name}.json").claim()
    if not folder.is_dir():
        problem = problem_of_name(video.file, folder)
        expect(not problem, f"{video.file}: {problem}")
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        film, count = VideoFile(video.file), 0
        for count, frame in enumerate(progress(f"reading {video.name}", "frame", film), start=1):
            write_image(unfinished / f"{count - 1:06d}.jpg", frame, *QUALITY, lasting=False)
        problems = film.problems_after(count)
        expect(count > 0, " ".join(problems))
        print(*(f"warning: {problem}" for problem in problems), sep="\n", end="\n" * len(problems), flush=True)
        os.replace(unfinished, folder)
    return sorted((path for path in folder.iterdir() if is_visible(path.name)), key=in_order)


def records_of(videos: Sequence[Video]) -> list[dict[str, str]]:
    """Of all their frames."""
    return [{"file_name": str(frame)} for video in videos for frame in video.frames]
