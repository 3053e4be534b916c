"""Predict for image files, folders and videos that are no data set."""

import os
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from projects.Pictures.tiles import fit
from projects.Predict.prediction_files import ALL, Predicted, write_images, write_objects
from projects.Predict.prediction_sheet import class_colors, color_depth, draw_objects, paint_classes
from projects.Predict.predictions import Predictor, detections_of
from revisit.data.images.opening import SUFFIXES
from revisit.data.sources.image_folders import is_visible, load_folder
from revisit.errors import UserError, expect, printable
from revisit.evaluation.pixel_evaluators import predicted_classes
from revisit.files import written_whole
from revisit.keys import DETECTORS

from detectron2.config import CfgNode
from detectron2.evaluation.coco_evaluation import instances_to_coco_json

VIDEOS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v"})
PICTURE = (420, 1024)  # px, the least and the most of a picture's longer side
_MILLIMETRES = 1000  # per metre: depth is written as whole millimetres


class Source(NamedTuple):
    """An image file, or a video."""

    path: Path
    name: str  # of what is written of it, without suffix: unique among the sources
    is_video: bool


def find_sources(paths: list[Path], output: Path) -> list[Source]:
    """List the images, in order, then the videos, of folders those below them, each file once.

    Raises UserError for what is none of these, and for an ``output`` among them: pictures would replace inputs.
    """
    for path in paths:
        _check_output(output, path)
    files: dict[str, tuple[Path, Path]] = {}  # each, with the part of its path that names what is written
    for path in paths:
        for file in _files_of(path):
            short = file.relative_to(_folder_of(path))
            files.setdefault(os.path.realpath(file), (file, short))  # a loop of links is a file that cannot be read
    sources: dict[str, Source] = {}
    for file, short in files.values():
        name = "_".join(short.with_suffix("").parts)
        while name in sources:
            name += "_"
        is_video = file.suffix.lower() in VIDEOS
        sources[name] = Source(file, name, is_video)
    return sorted(sources.values(), key=lambda source: source.is_video)


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
        videos = _videos_below(path)
        return [*_images_below(path, needed=not videos), *videos]
    kinds = SUFFIXES | VIDEOS
    fits = path.is_file() and path.suffix.lower() in kinds
    hint = "; KEY VALUE pairs come last" if str(path).isupper() else ""
    expect(fits, f"{path} is no image, video or folder: expected a file in {', '.join(kinds)}{hint}")
    return [path]


def _images_below(folder: Path, needed: bool) -> list[Path]:
    """Raises UserError where there is none that is ``needed``."""
    try:
        return [Path(record["file_name"]) for record in load_folder(folder)]
    except UserError:
        if needed:
            raise
        return []


def _videos_below(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.suffix.lower() in VIDEOS)
    return sorted(path for path in files if all(map(is_visible, path.relative_to(folder).parts)))


class FilePredictor:
    """Predicts for files, draws what it finds, and collects it for JSON files."""

    def __init__(self, cfg: CfgNode, output: Path):
        self._predictor, self._output = Predictor(cfg), output
        self.is_detector = cfg.MODEL.META_ARCHITECTURE in DETECTORS
        self._weights = cfg.MODEL.WEIGHTS
        self.images: list[dict] = []
        self.objects: list[dict] = []
        self.files: list[str] = []  # of the first images; the others are frames of videos
        self.unreadable: list[str] = []
        self.data_set = ""  # the name of what was found in image files

    def run(self, sources: list[Source]) -> None:
        """Write a picture for each image, a video for each video, then the JSON files, once those of an earlier call
        are removed."""
        for name in ALL:
            (self._output / name).unlink(missing_ok=True)
        for source in tqdm(sources, unit="file", desc="predicting"):
            if source.is_video:
                self._run_video(source)
                continue
            try:
                pixels = self._predictor.read({"file_name": str(source.path)})
                picture = self._picture(pixels, str(source.path), source.name)
            except UserError as error:
                self.unreadable.append(str(error))
                continue
            self.files.append(str(source.path))
            _write_image(self._output / f"{source.name}.png", picture)
        self._write_json()

    def _run_video(self, source: Source) -> None:
        if any(printable(str(path)) != str(path) for path in (source.path, self._output)):
            self.unreadable.append(f"{source.path}: OpenCV opens no video whose name is not UTF-8, so rename it")
            return
        video, film, count = cv2.VideoCapture(str(source.path.absolute())), None, 0
        rate, expected = video.get(cv2.CAP_PROP_FPS) or 25.0, int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        while (read := video.read())[0]:
            count += 1
            frame = np.ascontiguousarray(read[1][..., ::-1])
            picture = self._picture(frame, f"{source.path}#{count}", f"{source.name}_{count:06d}")
            height, width = (side // 2 * 2 for side in picture.shape[:2])  # codecs want even sides
            if film is None:
                path = self._output / f"{source.name}.mp4"
                film = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), rate, (width, height))
                expect(film.isOpened(), f"cannot write {path}: this OpenCV has no encoder for MPEG-4")
            film.write(np.ascontiguousarray(picture[:height, :width, ::-1]))
        if film is not None:
            film.release()
        if count < expected or not count:
            self.unreadable.append(f"{source.path}: {count} of {expected} frames can be read")

    def _picture(self, pixels: np.ndarray, file_name: str, name: str) -> np.ndarray:
        """Record what is predicted for an (H, W, 3) uint8 RGB image; returns it drawn, in a size to look at."""
        height, width = pixels.shape[:2]
        image_id, size = len(self.images) + 1, int(np.clip(max(height, width), *PICTURE))
        predicted = self._predictor({"file_name": file_name}, pixels)
        self.images.append({"id": image_id, "file_name": file_name, "height": height, "width": width})
        if self.is_detector:
            objects = predicted["instances"].to("cpu")
            self.objects += instances_to_coco_json(objects, image_id)
            return draw_objects(pixels, detections_of(objects), self._predictor.class_names, size)
        if "sem_seg" in predicted:
            labels = predicted_classes(predicted["sem_seg"], (height, width))
            _write_image(self._output / "classes" / f"{name}.png", labels)
            return fit(paint_classes(pixels, labels, class_colors(self._predictor.class_names)), size)
        depth = predicted["depth"].float().cpu().numpy()
        _write_image(self._output / "depth" / f"{name}.png", np.clip(depth * _MILLIMETRES, 0, 65535).astype(np.uint16))
        return fit(color_depth(depth, (float(depth.min()), float(depth.max()) + 1e-3)), size)

    def _write_json(self) -> None:
        """Write images.json after all that is read by it."""
        objects = [{**box, "category_id": box["category_id"] + 1} for box in self.objects]
        predicted = Predicted(self.images, objects, self._predictor.class_names)
        if self.is_detector:
            self.data_set = write_objects(self._output, predicted, len(self.files), self._weights)
        write_images(self._output, predicted)


def _write_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = image[..., ::-1] if image.ndim == 3 else image
    encoded = cv2.imencode(".png", np.ascontiguousarray(pixels))[1]  # imwrite would end at a name that is not UTF-8
    with written_whole(path) as temporary:
        temporary.write_bytes(encoded)
