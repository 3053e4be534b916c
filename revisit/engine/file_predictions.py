"""What a finetuned model finds in image files, folders and videos that are no data set."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pycocotools.mask
from tqdm import tqdm

from revisit.data.image_folders import find_images
from revisit.data.reader import SUFFIXES, UnreadableImageError, read_record
from revisit.engine.predictions import detections_of, load_finetuned, predictor_of
from revisit.errors import UserError, expect
from revisit.evaluation.pixel_evaluators import predicted_classes
from revisit.files import written_whole
from revisit.keys import DETECTORS
from revisit.viz.prediction_sheet import Detections, class_colors, color_depth, draw_objects, paint_classes
from revisit.viz.tiles import fit

from detectron2.config import CfgNode

VIDEOS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v"})
PICTURE = (420, 1024)  # px, the least and the most of a picture's longer side
_MILLIMETRES = 1000  # per metre: depth is written as whole millimetres


class Source(NamedTuple):
    """An image file, or a video."""

    path: Path
    name: str  # of what is written of it, without suffix: unique among the sources
    is_video: bool


def find_sources(paths: list[Path], output: Path) -> list[Source]:
    """Images and videos, and the images below folders, in order.

    Raises:
        UserError: something that is none of these, a folder without images, or an ``output`` folder among them, where
            pictures would replace or become inputs.
    """
    for path in paths:
        folder = (path if path.is_dir() else path.parent).resolve()
        inside = output.resolve() == folder or (path.is_dir() and folder in output.resolve().parents)
        expect(not inside, f"--output {output} lies among the inputs, in {folder}: expected another folder")
    found: list[tuple[Path, Path]] = []  # a file, and the part of its path that names what is written
    for path in paths:
        if path.is_dir():
            found += [(Path(file), Path(file).relative_to(path)) for file in find_images(path)[0]]
        else:
            kinds = ", ".join(sorted(SUFFIXES | VIDEOS))
            expect(path.is_file(), f"{path} not found: expected image files, folders of them, or videos")
            expect(path.suffix.lower() in SUFFIXES | VIDEOS, f"{path} is neither image nor video: expected {kinds}")
            found.append((path, Path(path.name)))
    sources, taken = [], set()
    for file, short in found:
        name = "_".join(short.with_suffix("").parts)
        while name in taken:
            name += "_"
        taken.add(name)
        sources.append(Source(file, name, file.suffix.lower() in VIDEOS))
    return sources


class FilePredictor:
    """Predicts for files, draws what it finds, and collects it for JSON files."""

    def __init__(self, cfg: CfgNode, output: Path):
        expect(bool(cfg.MODEL.WEIGHTS), "no weights to predict with: end the command by --opts MODEL.WEIGHTS FILE")
        model, self._names = load_finetuned(cfg)
        self._predict = predictor_of(model, cfg)
        self._kind, self._bit_depth, self._output = cfg.MODEL.META_ARCHITECTURE, cfg.INPUT.BIT_DEPTH, output
        self._images: list[dict] = []
        self._objects: list[dict] = []
        self.unreadable: list[str] = []

    def run(self, sources: list[Source]) -> None:
        """Write a picture for each image, a video for each video, then the JSON files."""
        for source in tqdm(sources, unit="file", desc="predicting"):
            if source.is_video:
                self._run_video(source)
                continue
            try:
                image = read_record({"file_name": str(source.path)}, self._bit_depth)
            except UnreadableImageError as error:
                self.unreadable.append(str(error))
                continue
            picture = self._picture(
                image, self._predict({"file_name": str(source.path)}), str(source.path), source.name
            )
            _write_image(self._output / f"{source.name}.png", picture)
        self._write_json()

    def _run_video(self, source: Source) -> None:
        video, path = cv2.VideoCapture(str(source.path)), self._output / f"{source.name}.mp4"
        expected, count = int(video.get(cv2.CAP_PROP_FRAME_COUNT)), 0
        with tempfile.TemporaryDirectory() as folder, _VideoFile(path, video.get(cv2.CAP_PROP_FPS) or 25.0) as film:
            frame_file = Path(folder) / "frame.png"
            for count, frame in enumerate(_frames(video), start=1):
                cv2.imwrite(str(frame_file), frame)
                found = self._predict({"file_name": str(frame_file)})
                name = f"{source.name}_{count:06d}"
                film.write(self._picture(frame[..., ::-1], found, f"{source.path}#{count}", name))
        if count < expected or not count:
            self.unreadable.append(f"{source.path}: {count} of {expected} frames can be read")

    def _picture(self, image: np.ndarray, found: dict, file_name: str, name: str) -> np.ndarray:
        """Record what was found in an (H, W, 3) uint8 RGB image; returns it drawn, in a size to look at."""
        image_id, size = len(self._images) + 1, int(np.clip(max(image.shape[:2]), *PICTURE))
        height, width = image.shape[:2]
        self._images.append({"id": image_id, "file_name": file_name, "height": height, "width": width})
        if self._kind in DETECTORS:
            objects = detections_of(found["instances"])
            self._objects += _coco_results(objects, image_id)
            return draw_objects(image, objects, self._names, size)
        if "sem_seg" in found:
            labels = predicted_classes(found["sem_seg"], (height, width))
            _write_image(self._output / "classes" / f"{name}.png", labels)
            return fit(paint_classes(image, labels, class_colors(self._names)), size)
        depth = found["depth"].float().cpu().numpy()
        _write_image(self._output / "depth" / f"{name}.png", np.clip(depth * _MILLIMETRES, 0, 65535).astype(np.uint16))
        return fit(color_depth(depth, (float(depth.min()), float(depth.max()) + 1e-3)), size)

    def _write_json(self) -> None:
        """images.json, which pycocotools reads as annotations without objects, and what loads into it."""
        categories = [{"id": n, "name": name} for n, name in enumerate(self._names, start=1)]
        contents = {"images.json": {"images": self._images, "categories": categories, "annotations": []}}
        if self._kind in DETECTORS:
            contents["predictions.json"] = self._objects
        for name, content in contents.items():
            with written_whole(self._output / name) as temporary:
                temporary.write_text(json.dumps(content, ensure_ascii=False))


class _VideoFile:
    """A video that is written frame by frame, each (H, W, 3) uint8 RGB of one size."""

    def __init__(self, path: Path, rate: float):
        self._path, self._rate, self._writer = path, rate, None

    def __enter__(self) -> "_VideoFile":
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.release()

    def write(self, picture: np.ndarray) -> None:
        picture = picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]  # codecs want even sides
        if self._writer is None:
            size = picture.shape[1], picture.shape[0]
            self._writer = cv2.VideoWriter(str(self._path), cv2.VideoWriter_fourcc(*"mp4v"), self._rate, size)
            expect(self._writer.isOpened(), f"cannot write {self._path}: this OpenCV has no encoder for MPEG-4")
        self._writer.write(np.ascontiguousarray(picture[..., ::-1]))


def _frames(video: cv2.VideoCapture) -> Iterator[np.ndarray]:
    """Its frames, (H, W, 3) uint8 BGR."""
    while (read := video.read())[0]:
        yield read[1]


def _coco_results(objects: Detections, image_id: int) -> list[dict]:
    """In COCO's result format: x, y, width and height in px; categories count from 1; masks as run lengths."""
    results = []
    for n, (x0, y0, x1, y1) in enumerate(objects.boxes.tolist()):
        result = {"image_id": image_id, "category_id": int(objects.classes[n]) + 1, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        result["score"] = float(objects.scores[n])
        if objects.masks is not None:
            mask = pycocotools.mask.encode(np.asfortranarray(objects.masks[n].astype(np.uint8)))
            result["segmentation"] = {**mask, "counts": mask["counts"].decode()}
        results.append(result)
    return results


def _write_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = image[..., ::-1] if image.ndim == 3 else image
    if not cv2.imwrite(str(path), np.ascontiguousarray(pixels)):
        raise UserError(f"cannot write {path}: expected a folder with room left")
