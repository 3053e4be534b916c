"""Predict for image files, folders and videos that are no data set."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from projects.Pictures.prediction_sheet import class_colors, color_depth, draw_objects, paint_classes
from projects.Pictures.tiles import fit
from projects.Predict.prediction_files import (
    ALL,
    DATA_SET,
    INTERFACE,
    OF_MAPS,
    TASKS,
    write_images,
    write_objects,
)
from projects.Predict.predictions import Predictor
from projects.Predict.videos import VIDEOS, VideoFile, problem_of_name
from revisit.boxes.boxes import Boxes
from revisit.command.options import data_set
from revisit.data.images.deep_images import deep_images
from revisit.data.images.opening import SUFFIXES
from revisit.data.images.reader import without_data
from revisit.data.sources.catalog import get_records
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.image_folders import load_folder, suffix_of
from revisit.data.sources.label_files import files_with_suffix
from revisit.data.sources.labels import VOID
from revisit.data.sources.records import fingerprint
from revisit.engine.same_experiment import plain_config
from revisit.errors import UserError, expect, without_secrets
from revisit.evaluation.pixel_evaluators import predicted_classes
from revisit.files import expect_all_uncorrected, expect_uncorrected, record_written, written_whole
from revisit.jobs.parts import Arrays, Work, as_lines, in_parts, of_lines, own_folder
from revisit.jobs.processes import HERE
from revisit.jobs.record import Record
from revisit.jobs.runner import PerProcess, Runner
from revisit.keys import DETECTORS, is_read
from revisit.plugins import load_plugins

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from detectron2.evaluation.coco_evaluation import instances_to_coco_json

PICTURE = (420, 1024)  # px, the least and the most of a picture's longer side
PART = 16  # files
LONGEST = 180  # bytes of a name, which gets suffixes: disks hold 255
_FRAME = re.compile("(.*)_[0-9]{6,}", re.DOTALL)  # how maps of a video's frames are named
NO_CLASS, NO_DEPTH = VOID, 0  # of a pixel that no data say anything of
MILLIMETRES = 1000  # per metre: depth is written as whole millimetres


class Source(NamedTuple):
    """An image file, or a video."""

    path: Path
    name: str  # of what is written of it, without suffix: unique among the sources
    is_video: bool


def find_sources(
    places: Sequence[str | Path], output: Path, identity: Callable[[Path], str] = os.path.realpath
) -> list[Source]:
    """List the images, in order, then the videos, of folders and data sets those below them, each ``identity`` once: by
    default each file, under whichever names.

    Raises UserError for what is none of these, and for an ``output`` among them: pictures would replace inputs.
    """
    paths = [path for place in places for path in _paths_of(str(place))]
    for path in paths:
        _check_output(output, path)
    files: dict[str, tuple[Path, Path]] = {}  # each, with the part of its path that names what is written
    for path in paths:
        for file in _files_of(path):
            short = file.relative_to(_folder_of(path))
            files.setdefault(identity(file), (file, short))  # a loop of links is a file that cannot be read
    videos = {_name_of(short).rstrip("_") for file, short in files.values() if _is_video(file)}
    sources: dict[str, Source] = {}
    for file, short in files.values():
        name, is_video = _name_of(short), _is_video(file)
        while name in sources or (not is_video and _is_of_frame(name, videos)):
            name += "_"
        sources[name] = Source(file, name, is_video)
    return sorted(sources.values(), key=lambda source: source.is_video)


def _name_of(short: Path) -> str:
    """Of what is written of a file, unless another one has it: of a long one its end."""
    name = "_".join(short.parts)
    name = name[: len(name) - len(suffix_of(name))]
    while len(os.fsencode(name)) > LONGEST:
        name = name[1:].lstrip(".")  # no hidden one
    return name


def _is_video(file: Path) -> bool:
    return file.suffix.lower() in VIDEOS


def _is_of_frame(name: str, videos: Collection[str]) -> bool:
    """Whether a frame of one of the videos, whose names may yet get a _ at their end, has a map of this name."""
    match = _FRAME.fullmatch(name)
    return match is not None and match[1].rstrip("_") in videos


def _paths_of(place: str) -> list[Path]:
    """An image, a video or a folder itself; the files of a data set, as ``data_set`` takes it."""
    name = data_set(place)
    kind, _, rest = name.partition(":")
    if kind == "folder":
        return [Path(rest)]
    load_plugins()  # which register names
    is_known = rest or name in DatasetCatalog.list()
    if name == place and (os.path.exists(place) or not is_known):
        return [Path(place)]
    records = get_records(name)
    expect_file_names(records, f"--data {place}")
    return [Path(record["file_name"]) for record in records]


def _check_output(output: Path, path: Path) -> None:
    """Raises UserError for an output that is the folder of an input, or lies anywhere below an input folder."""
    folder, written = _folder_of(path).resolve(), output.resolve()
    below = path.is_dir() and folder in written.parents
    inside = written == folder or below
    expect(not inside, f"--output {output} lies among the inputs, in {folder}: expected another folder")


def _folder_of(path: Path) -> Path:
    """An input folder itself; of a file, where it lies."""
    return path if path.is_dir() else path.parent


def _files_of(path: Path) -> list[Path]:
    """What is below a folder, or the one file. Raises UserError for one that is neither image nor video."""
    if path.is_dir():
        videos = files_with_suffix(path, *VIDEOS)
        try:
            images = load_folder(path)
        except UserError:
            if not videos:
                raise
            images = []
        return [*(Path(record["file_name"]) for record in images), *videos]
    kinds, suffix = SUFFIXES | VIDEOS, path.suffix.lower()
    fits = path.is_file() and (suffix in kinds or any(deep_images().images_among({suffix: [str(path)]}, alone=True)))
    hint = "; KEY VALUE pairs come last" if str(path).isupper() else ""
    expect(path.exists(), f"{path} not found: expected an image, a video or a folder{hint}")
    expect(fits, f"{path} is no image, video or folder: expected a file in {', '.join(sorted(kinds))}")
    return [path]


class FilePredictor:
    """Predicts for files, draws what it finds, and collects it for JSON files."""

    def __init__(self, cfg: CfgNode, output: Path):
        self.predictor = PerProcess(partial(Predictor, cfg), Predictor(cfg))
        self.cfg, self.output = cfg, output
        self.is_detector = cfg.MODEL.META_ARCHITECTURE in DETECTORS
        self.images: list[dict] = []  # with their objects, as COCO's format has both
        self.files: list[str] = []  # of the first images; the others are frames of videos
        self.unreadable: list[str] = []
        self.shorter: list[str] = []  # videos that were read, with fewer frames than their files say
        self.pages: list[str] = []  # that zoom into images, in words
        self.data_set = ""  # the name of what was found in image files
        self.settings: dict[str, str] = {}  # on which an interrupted call has to agree, too

    @property
    def class_names(self) -> list[str]:
        return self.predictor().class_names

    @property
    def seen_whole(self) -> list[str]:
        """Image files that the network can look at as they are."""
        return self.files

    def run(self, sources: list[Source], runner: Runner = HERE) -> None:
        """Write a picture for each image, a video for each video, then the JSON files; those of an earlier call are
        removed before. An interrupted call continues, with the same settings.

        Raises SystemExit in a process that has made its share, where another one writes the JSON files, and UserError
        for a folder of another command, or one with corrections.
        """
        other = f"--output {self.output} is the folder of another command, which settings.json is of"
        expect(not (self.output / "settings.json").is_file(), f"{other}: expected one of its own")
        expect_uncorrected(self.output / DATA_SET)
        parts = self.output / "parts"
        if not parts.exists():  # an interrupted call replaces what an earlier one has recorded
            expect_all_uncorrected(self.output)
        own_folder(parts)
        files = [{"file_name": str(source.path)} for source in sources]
        weights = [{"file_name": self.cfg.MODEL.WEIGHTS}]
        with runner.alone(self.output):
            of_files = {"files": fingerprint(files), "weights": fingerprint(weights)}
            settings = {key: value for key, value in plain_config(self.cfg).items() if is_read(self.cfg, key)}
            record = Record(parts, of_files | settings | self.settings)
            record.claim("give those again to continue, or delete this folder")
        with in_parts(self.work_of(sources), parts, runner) as arrays:
            for line in self.lines_of_sources(sources, of_lines(arrays["lines"])):
                self._collect(line)
            self._write_json()
            record_written(self.output, correctable(self.output, sources))

    def work_of(self, sources: list[Source]) -> Work:
        """What can be done in parts, each of which has lines."""
        return Work("predicting", len(sources), PART, partial(self._part, sources))

    def lines_of_sources(self, sources: list[Source], lines: Iterable[dict]) -> Iterable[dict]:
        """A line for each source, of those of all parts."""
        return lines

    def remove_earlier(self) -> None:
        """What an earlier call has written, before anything new is."""
        for name in (*ALL, *OF_MAPS):
            (self.output / name).unlink(missing_ok=True)

    def _part(self, sources: list[Source], part: range) -> Arrays:
        self.remove_earlier()
        return {"lines": as_lines([self.line_of(sources[number]) for number in part])}

    def _collect(self, line: dict) -> None:
        """What was predicted for the next source, in their order."""
        messages = self.shorter if line["images"] else self.unreadable
        messages += line["problems"]
        self.files += line["files"]
        for image in line["images"]:
            number = len(self.images) + 1
            numbered = [box | {"image_id": number, "category_id": box["category_id"] + 1} for box in image["objects"]]
            self.images.append({"id": number, **image, "objects": numbered})

    def line_of(self, source: Source) -> dict:
        """Write its pictures; its images, with their objects, and what cannot be read."""
        images: list[dict] = []
        if source.is_video:
            return {"files": [], "problems": self._run_video(source, images), "images": images}
        try:
            record = {"file_name": str(source.path)}
            pixels = self.predictor().read(record)
            missing = None if self.is_detector else without_data(record, self.predictor().pixels)
            picture = self._picture(pixels, str(source.path), source.name, images, missing)
        except UserError as error:
            return {"files": [], "problems": [str(error)], "images": []}
        write_image(self.output / f"{source.name}.png", picture)
        return {"files": [str(source.path)], "problems": [], "images": images}

    def _run_video(self, source: Source, images: list[dict]) -> list[str]:
        """Add its frames to the images; returns what cannot be read."""
        pixels = self.predictor().pixels
        if not pixels.is_of_photographs:
            seen = str(pixels) or "values of INPUT.RANGE"
            return [f"{source.path}: frames are photographs, and the network sees {seen}"]
        if problem := problem_of_name(source.path, self.output):
            return [f"{source.path}: {problem}"]
        video, film, count = VideoFile(source.path), None, 0
        for count, frame in enumerate(video, start=1):
            picture = self._picture(frame, f"{source.path}#{count}", f"{source.name}_{count:06d}", images)
            height, width = (side // 2 * 2 for side in picture.shape[:2])  # codecs want even sides
            if film is None:
                path = self.output / f"{source.name}.mp4"
                film = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), video.rate, (width, height))
                expect(film.isOpened(), f"cannot write {path}: this OpenCV has no encoder for MPEG-4")
            film.write(np.ascontiguousarray(picture[:height, :width, ::-1]))
        if film is not None:
            film.release()
        return video.problems_after(count)

    def _picture(
        self, pixels: np.ndarray, file_name: str, name: str, images: list[dict], missing: np.ndarray | None = None
    ) -> np.ndarray:
        """Add what is predicted for an (H, W, C) uint8 image; returns it drawn, in a size to look at.

        Args:
            missing: (H, W) bool, where a map has NO_CLASS or NO_DEPTH.
        """
        predictor, (height, width) = self.predictor(), pixels.shape[:2]
        size = int(np.clip(max(height, width), *PICTURE))
        predicted = predictor({"file_name": file_name}, pixels)
        image = {"file_name": file_name, "height": height, "width": width, "objects": []}
        images.append(image)
        shown = predictor.pixels.picture(pixels)
        if self.is_detector:
            objects = predicted["instances"].to("cpu")
            image["objects"] = instances_to_coco_json(objects, 0)
            return draw_objects(shown, Boxes.of_instances(objects), predictor.class_names, size)
        if "sem_seg" in predicted:
            labels = with_void(predicted_classes(predicted["sem_seg"], (height, width)), missing, NO_CLASS)
            write_image(self.output / "classes" / f"{name}.png", labels)
            return fit(paint_classes(shown, labels, class_colors(predictor.class_names)), size)
        depth = with_void(predicted["depth"].float().cpu().numpy(), missing, NO_DEPTH)
        write_image(self.output / "depth" / f"{name}.png", in_millimetres(depth))
        return fit(color_depth(depth, (float(depth.min()), float(depth.max()) + 1e-3)), size)

    def _write_json(self) -> None:
        """Write images.json after all that is read by it."""
        predicted = self.output, self.images, self.class_names
        if self.is_detector:
            self.data_set = write_objects(*predicted, len(self.files), without_secrets(self.cfg.MODEL.WEIGHTS))
        write_images(*predicted)


def correctable(output: Path, sources: Sequence[Source]) -> list[Path]:
    """What is there of these sources that somebody may correct by hand: tasks with their interface, and maps."""
    own = {source.name for source in sources}
    frames = {source.name for source in sources if source.is_video}
    maps = [path for kind in ("classes", "depth") for path in sorted((output / kind).glob("*"))]
    is_of_frame = {path: _FRAME.fullmatch(path.stem) for path in maps}
    own_maps = [path for path, match in is_of_frame.items() if path.stem in own or (match and match[1] in frames)]
    return [*filter(Path.is_file, (output / name for name in (TASKS, INTERFACE))), *own_maps]


def other_pictures(output: Path, sources: Sequence[Source]) -> list[str]:
    """Names of pictures and videos in the folder that are of none of the sources, such as those of an earlier call."""
    own = {source.name for source in sources}
    return sorted(path.name for path in output.iterdir() if path.suffix in (".png", ".mp4") and path.stem not in own)


def with_void(values: np.ndarray, missing: np.ndarray | None, void: int) -> np.ndarray:
    """A map that is ``void`` where there is no data; None: nowhere."""
    return values if missing is None else np.where(missing, values.dtype.type(void), values)


def in_millimetres(depth: np.ndarray) -> np.ndarray:
    """uint16 of metres, as depth is written."""
    return np.clip(depth * MILLIMETRES, 0, 65535).astype(np.uint16)


def write_image(path: Path, image: np.ndarray, *options: int, lasting: bool = True) -> None:
    """Write an (H, W) image, or an (H, W, 3) one in RGB, whole or not at all, in the format that its suffix names.

    Args:
        options: of OpenCV's writer.
        lasting: see ``written_whole``.
    """
    path.parent.mkdir(exist_ok=True)
    pixels = np.ascontiguousarray(image[..., ::-1] if image.ndim == 3 else image)
    encoded = cv2.imencode(path.suffix, pixels, options)[1]  # imwrite would end at a name that is not UTF-8
    with written_whole(path, lasting=lasting) as temporary:
        temporary.write_bytes(encoded)


def read_picture(path: Path) -> np.ndarray:
    """The (H, W, 3) uint8 RGB that ``write_image`` has written."""
    encoded = np.frombuffer(path.read_bytes(), np.uint8)  # imread would end at such a name, too
    return np.ascontiguousarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR)[..., ::-1])
