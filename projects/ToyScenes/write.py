"""Draws the whole ToyScenes data set with several processes, to a folder that appears complete or not at all."""

import json
import multiprocessing
import operator
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import cv2
from tqdm import tqdm

from projects.ToyScenes import layouts
from projects.ToyScenes.classes import CLASS_NAMES
from projects.ToyScenes.plan import GENERATOR_VERSION, NUM_FRAMES, Split, num_videos, plan_image
from projects.ToyScenes.scene import draw_scene
from revisit.errors import expect

LAYOUT_VERSION = 3  # whatever changes a folder or a label, but no picture, must change this number
RECORD = "toy_scenes.json"
_TOP_LEVEL = {RECORD, "object_centric", "coco", "VOC2007", "cityscapes", "NYUD_MT", "DAVIS"}
_CHUNK = 20  # images that a process draws before it reports


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
        num_images: images in each of the two train sets, at least 10; held-out sets have a quarter, rounded down.
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
    workers = os.cpu_count() or 1 if workers is None else workers
    allowed = {"num-images": (num_images, 10, 10**6 - 1), "size": (size, 64, 512), "seed": (seed, 0, 2**63 - 1)}
    for name, (value, low, high) in (allowed | {"workers": (workers, 1, 1024)}).items():
        expect(low <= value <= high, f"--{name} is {value}, expected {low} to {high}: choose another value")
    # What decides every byte of the data set.
    arguments = {"num_images": num_images, "seed": seed, "size": size, "long_tailed": long_tailed}
    record = {
        "generator_version": GENERATOR_VERSION,
        "layout_version": LAYOUT_VERSION,
        **arguments,
        "class_names": list(CLASS_NAMES),
        "counts": layouts.file_counts(num_images),
    }
    output = Path(output).expanduser().resolve()
    is_free = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if not is_free and overwrite:
        _check_replaceable(output)
    elif not is_free:
        _check_same(output, record)
        return False
    with _all_or_nothing(output) as folder:
        annotations = _draw_everything(folder, workers, progress, arguments)
        for split in layouts.SCENE_SETS:
            layouts.write_scene_set(folder, split, num_images, size, annotations[split])
        layouts.write_other_lists(folder, num_images, long_tailed)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return True


def _check_same(output: Path, record: dict) -> None:
    """Raises UserError unless ``output`` holds exactly the data set that ``record`` describes."""
    found = _read_record(output, "; expected a new or empty folder")
    differing = [key for key in record if key not in ("layout_version", "counts") and found.get(key) != record[key]]
    change = ", ".join(f"{key} {found.get(key)} (asked for: {record[key]})" for key in differing[:3])
    expect(
        not differing,
        f"{output} already holds ToyScenes with {change}: choose another --output, or replace it with --overwrite",
    )
    layout, expected = found.get("layout_version", 1), record["layout_version"]  # the first was not written down
    expect(
        layout == expected,
        f"{output} holds ToyScenes in layout version {layout}, expected {expected}, which has other files: "
        "draw it again with --overwrite, its pictures stay the same",
    )
    for folder, count in record["counts"].items():
        files = sum(1 for path in (output / folder).rglob("*") if path.suffix in (".jpg", ".png", ".npy"))
        expect(
            files == count,
            f"{output / folder} holds {files} pictures or maps, expected {count}: "
            "draw the data set again with --overwrite",
        )


def _check_replaceable(output: Path) -> None:
    """Raises UserError unless ``output`` holds ToyScenes and nothing else."""
    _read_record(output, ", so --overwrite does not delete it")
    foreign = min((path.name for path in output.iterdir() if path.name not in _TOP_LEVEL), default=None)
    expect(
        foreign is None,
        f"{output} also holds {foreign}, which is not part of ToyScenes, so --overwrite does not "
        "delete it: move it away, or choose another --output",
    )


def _read_record(output: Path, otherwise: str) -> dict:
    try:
        record = json.loads((output / RECORD).read_text())
    except (OSError, ValueError):
        record = None
    is_ours = isinstance(record, dict) and "generator_version" in record
    message = f"{output} exists and is not ToyScenes (a folder with {RECORD}){otherwise}: choose another --output"
    expect(is_ours, message)
    return record


@contextmanager
def _all_or_nothing(output: Path) -> Iterator[Path]:
    """A new folder next to ``output`` that takes its place on success and vanishes on any failure."""
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}.partial-{os.getpid()}")
    replaced = output.with_name(f".{output.name}.replaced-{os.getpid()}")
    unfinished.mkdir()
    try:
        yield unfinished
        if output.exists():
            output.rename(replaced)
        unfinished.rename(output)
    except BaseException:
        if replaced.exists() and not output.exists():
            replaced.rename(output)
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _draw_everything(folder: Path, workers: int, progress: bool, arguments: dict) -> dict[Split, list[dict]]:
    """Writes all images with their labels; returns the COCO annotations of each set, in order."""
    num_train = arguments["num_images"]
    annotations: dict[Split, list[dict]] = {split: [] for split in Split}
    jobs: list[tuple[list[dict], int, partial]] = []  # where annotations go, number of pictures, what draws them
    for split in Split:
        indices = range(split.num_images(num_train))
        for start in indices[::_CHUNK]:
            chunk = indices[start : start + _CHUNK]
            jobs.append((annotations[split], len(chunk), partial(_draw_images, folder, split, chunk, **arguments)))
    for index in range(num_videos(num_train)):
        draw = partial(layouts.write_video, folder, index, arguments["seed"], arguments["size"])
        jobs.append(([], NUM_FRAMES, draw))
    total = sum(num_pictures for _, num_pictures, _ in jobs)
    with tqdm(total=total, unit="image", desc="drawing ToyScenes", disable=not progress) as bar:
        drawn = _call([draw for *_, draw in jobs], workers)
        for (of_split, num_pictures, _), found in zip(jobs, drawn, strict=True):
            of_split += found or []
            bar.update(num_pictures)
    return annotations


def _call(jobs: list[partial], workers: int) -> Iterator[list[dict] | None]:
    if workers == 1:
        yield from map(operator.call, jobs)
        return
    # Spawned processes inherit no threads or locks, whatever the caller has loaded before.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _set_up_worker) as pool:
        try:
            yield from pool.map(operator.call, jobs)
        finally:
            pool.shutdown(cancel_futures=True)


def _set_up_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the work on Ctrl-C
    cv2.setNumThreads(1)  # one process per core is parallel enough


def _draw_images(
    folder: Path, split: Split, indices: range, num_images: int, seed: int, size: int, long_tailed: bool
) -> list[dict]:
    """Draws and writes neighbouring images of a set; returns their COCO annotations, if they are scene-centric."""
    annotations = []
    for index in indices:
        scene = draw_scene(plan_image(seed, split, index, num_images, long_tailed), size)
        annotations += layouts.write_image(folder, split, index, num_images, scene)
    return annotations
