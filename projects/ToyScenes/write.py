"""Draws the whole ToyScenes data set with several processes and writes it."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import cv2
from tqdm import tqdm

from projects.ToyScenes import layouts, pixel_layouts, videos
from projects.ToyScenes.classes import CLASS_NAMES
from projects.ToyScenes.output import RECORD, all_or_nothing, check_replaceable, is_already_there
from projects.ToyScenes.scene import draw_scene
from projects.ToyScenes.splits import GENERATOR_VERSION, Split, plan_image
from revisit.errors import UserError

LAYOUT_VERSION = 3  # whatever changes a folder or a label, but no picture, must change this number
_CHUNK = 20  # images that a process draws before it reports


@dataclass(frozen=True)
class Arguments:
    """What decides every byte of the data set."""

    num_images: int
    seed: int
    size: int
    long_tailed: bool


@dataclass(frozen=True)
class _Chunk:
    """Neighbouring images of one set."""

    split: Split
    indices: range

    @property
    def num_pictures(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class _Video:
    """One video."""

    index: int
    num_pictures: int = videos.NUM_FRAMES


def make_toy_scenes(
    output: str | Path,
    num_images: int = 2000,
    seed: int = 0,
    size: int = 128,
    long_tailed: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> bool:
    """Writes ToyScenes to the folder ``output``, which appears complete or not at all.

    Args:
        output: the folder to make; its parents are made too.
        num_images: images in each of the two train sets, at least 10; each of the two held-out sets has
            a quarter of it, rounded down.
        seed: 0 <= seed < 2**63. The same seed gives the same bytes, whatever ``workers`` is.
        size: pixels on a side, 64 to 512.
        long_tailed: classes of the train sets follow ``class_weights(True)``; held-out sets are uniform.
        workers: processes that draw, at least 1; None is one per CPU core.
        overwrite: replace ``output`` if it holds ToyScenes and nothing else.
        progress: show a bar with the remaining time on stderr.

    Returns:
        True if the data set was written, False if the very same one was already there.

    Raises:
        UserError: an argument is out of range, or ``output`` holds something else.
        OSError: ``output`` cannot be written.
    """
    arguments = Arguments(num_images, seed, size, long_tailed)
    workers = os.cpu_count() or 1 if workers is None else workers
    _check_ranges(arguments, workers)
    record = _record(arguments)
    output = Path(output).expanduser().resolve()
    if overwrite:
        check_replaceable(output)
    elif is_already_there(output, record):
        return False
    with all_or_nothing(output) as folder:
        layouts.make_folders(folder)
        pixel_layouts.make_folders(folder)
        videos.make_folders(folder, num_images)
        annotations = _draw_everything(folder, arguments, workers, progress)
        for split in layouts.COCO_NAMES:
            indices = range(split.num_images(num_images))
            numbers = [layouts.image_id(split, index, num_images) for index in indices]
            layouts.write_coco_json(folder, split, numbers, size, annotations[split])
            layouts.write_voc_set(folder, split, numbers)
            pixel_layouts.write_sets(folder, split, numbers)
        layouts.write_object_lists(folder, num_images, long_tailed)
        videos.write_set(folder, num_images)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return True


def _check_ranges(arguments: Arguments, workers: int) -> None:
    allowed = (
        ("num-images", arguments.num_images, 10, 10**6 - 1),
        ("size", arguments.size, 64, 512),
        ("seed", arguments.seed, 0, 2**63 - 1),
        ("workers", workers, 1, 1024),
    )
    for name, value, low, high in allowed:
        if not low <= value <= high:
            raise UserError(f"--{name} is {value}, expected {low} to {high}: choose another value")


def _record(arguments: Arguments) -> dict:
    return {
        "generator_version": GENERATOR_VERSION,
        "layout_version": LAYOUT_VERSION,
        **asdict(arguments),
        "class_names": list(CLASS_NAMES),
        "counts": {
            folder: count
            for module in (layouts, pixel_layouts, videos)
            for folder, count in module.file_counts(arguments.num_images).items()
        },
    }


def _draw_everything(folder: Path, arguments: Arguments, workers: int, progress: bool) -> dict[Split, list[dict]]:
    """Writes all images with their labels; returns the COCO annotations of each set, in order."""
    annotations: dict[Split, list[dict]] = {split: [] for split in Split}
    parts: list[_Chunk | _Video] = []
    for split in Split:
        indices = range(split.num_images(arguments.num_images))
        parts += [_Chunk(split, indices[start : start + _CHUNK]) for start in indices[::_CHUNK]]
    parts += [_Video(index) for index in range(videos.num_videos(arguments.num_images))]
    total = sum(part.num_pictures for part in parts)
    with tqdm(total=total, unit="image", desc="drawing ToyScenes", disable=not progress) as bar:
        drawn = _map(partial(_draw_part, folder, arguments), parts, workers)
        for part, found in zip(parts, drawn, strict=True):
            if isinstance(part, _Chunk):
                annotations[part.split] += found
            bar.update(part.num_pictures)
    return annotations


def _map(function: partial, parts: list[_Chunk | _Video], workers: int) -> Iterator[list[dict]]:
    if workers == 1:
        yield from map(function, parts)
        return
    # Spawned processes inherit no threads or locks, whatever the caller has loaded before.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(parts)), context, _set_up_worker) as pool:
        try:
            yield from pool.map(function, parts)
        finally:
            pool.shutdown(cancel_futures=True)


def _set_up_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the work on Ctrl-C
    cv2.setNumThreads(1)  # one process per core is parallel enough


def _draw_part(folder: Path, arguments: Arguments, part: _Chunk | _Video) -> list[dict]:
    """Draws and writes a part of the data set; returns its COCO annotations, if it has any."""
    if isinstance(part, _Chunk):
        return _draw_chunk(folder, arguments, part)
    videos.write_video(folder, part.index, arguments.seed, arguments.size)
    return []


def _draw_chunk(folder: Path, arguments: Arguments, chunk: _Chunk) -> list[dict]:
    annotations = []
    for index in chunk.indices:
        plan = plan_image(arguments.seed, chunk.split, index, arguments.num_images, arguments.long_tailed)
        scene = draw_scene(plan, arguments.size)
        if chunk.split.is_object_centric:
            layouts.write_object_image(folder, chunk.split, index, scene)
        else:
            number = layouts.image_id(chunk.split, index, arguments.num_images)
            jpeg = layouts.encode_jpeg(scene.image)
            annotations += layouts.write_scene_image(folder, chunk.split, number, scene, jpeg)
            pixel_layouts.write_scene(folder, chunk.split, number, scene, jpeg)
    return annotations
