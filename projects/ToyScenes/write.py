"""Draws the whole ToyScenes data set with several processes, to a folder that appears complete or not at all."""

import json
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from projects.ToyScenes import layouts
from projects.ToyScenes.classes import CLASS_NAMES
from projects.ToyScenes.plan import GENERATOR_VERSION, Split, num_videos, plan_image
from projects.ToyScenes.scene import draw_scene
from revisit.errors import expect, first_few
from revisit.jobs.parts import Arrays, Work, as_lines, in_parts, of_lines
from revisit.jobs.processes import Processes
from revisit.jobs.record import Record
from revisit.threads import cores

LAYOUT_VERSION = 3  # whatever changes a folder or a label, but no picture, must change this number
RECORD = "toy_scenes.json"
_CHUNK = 20  # images of a part


def make_toy_scenes(
    output: str | Path,
    num_images: int = 2000,
    seed: int = 0,
    size: int = 128,
    long_tailed: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    channels: str = "rgb",
) -> bool:
    """Writes ToyScenes to the folder ``output``, which appears complete or not at all; False where it is there already.

    Args:
        num_images: images in each of the two train sets, at least 10; held-out sets have a quarter, rounded down.
        seed: 0 <= seed < 2**63. The same seed gives the same bytes, whatever ``workers`` is.
        size: pixels on a side, 64 to 512.
        long_tailed: classes of the train sets follow ``class_weights(True)``; held-out sets are uniform.
        workers: processes that draw, at least 1; None is one per CPU core.
        overwrite: replace ``output`` if it holds ToyScenes and nothing else.
        channels: rgb, or rgbd with depth as a fourth one, in TIFFs: see ``Scene.rgbd``.

    Raises:
        UserError: an argument is out of range, or ``output`` holds something else.
    """
    if workers is None:
        workers = cores()
    _check_range("count", num_images, 10, 10**6 - 1)
    _check_range("size", size, 64, 512)
    _check_range("seed", seed, 0, 2**63 - 1)
    _check_range("processes", workers, 1, 1024)
    ending = layouts.ending_of(channels)
    arguments = {"num_images": num_images, "seed": seed, "size": size, "long_tailed": long_tailed}
    facts = {  # they decide every byte
        "generator_version": GENERATOR_VERSION,
        "layout_version": LAYOUT_VERSION,
        **arguments,
        "channels": None if channels == "rgb" else channels,  # which older records do not have
        "class_names": list(CLASS_NAMES),
    }
    output = Path(output).expanduser().resolve()
    is_empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not is_empty:
        expect((output / RECORD).is_file(), f"{output} is there and is not ToyScenes, of which it would have {RECORD}")
        change = first_few(Record(output, facts, RECORD).differences())
        if not change and not overwrite:
            return False
        expect(overwrite, f"{output} holds ToyScenes with {change}: choose another --output, or give --replace")
        _check_nothing_else(output)
    with _all_or_nothing(output) as folder:
        annotations = _draw_everything(folder, workers, arguments | {"channels": channels})
        for split in layouts.SCENE_SETS:
            layouts.write_scene_set(folder, split, num_images, size, annotations[split], ending)
        layouts.write_other_lists(folder, num_images, long_tailed, ending)
        record = {name: fact for name, fact in facts.items() if fact is not None}
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return True


def _check_range(name: str, value: int, low: int, high: int) -> None:
    expect(low <= value <= high, f"--{name} is {value}, expected {low} to {high}: choose another value")


def _check_nothing_else(folder: Path) -> None:
    """Raises UserError where a folder of ToyScenes holds other files, too."""
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    foreign = sorted(name for name in files if name != RECORD and not layouts.FILES.fullmatch(name))
    expect(not foreign, f"{folder} also holds {first_few(foreign)}: --replace would delete it")


@contextmanager
def _all_or_nothing(output: Path) -> Iterator[Path]:
    """A new folder next to ``output`` that takes its place on success and vanishes on any failure.

    Its name is drawn: in a container a process has the number of the one before it, which may have been killed.
    """
    unfinished = output.with_name(f".{output.name}.partial-{secrets.token_hex(4)}")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(output, ignore_errors=True)
        unfinished.rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _draw_everything(folder: Path, workers: int, arguments: dict) -> dict[Split | None, list[dict]]:
    """Writes all images with their labels; returns the COCO annotations of each set, in order."""
    num_train = arguments["num_images"]
    pictures: list[tuple[Split | None, int]] = [(None, index) for index in range(num_videos(num_train))]
    pictures += [(split, index) for split in Split for index in range(split.num_images(num_train))]
    work = Work("drawing ToyScenes", len(pictures), _CHUNK, partial(_draw, folder, pictures, arguments))
    annotations: dict[Split | None, list[dict]] = defaultdict(list)
    with in_parts(work, folder / "parts", Processes(workers)) as arrays:
        for (split, _), drawn in zip(pictures, of_lines(arrays["lines"]), strict=True):
            annotations[split] += drawn
    return annotations


def _draw(folder: Path, pictures: list[tuple[Split | None, int]], arguments: dict, rows: range) -> Arrays:
    """Draws and writes some pictures and videos; the COCO annotations of each, if it is scene-centric."""
    return {"lines": as_lines([_draw_one(folder, *pictures[row], **arguments) for row in rows])}


def _draw_one(
    folder: Path,
    split: Split | None,
    index: int,
    num_images: int,
    seed: int,
    size: int,
    long_tailed: bool,
    channels: str,
) -> list[dict]:
    if split is None:
        layouts.write_video(folder, index, seed, size)
        return []
    scene = draw_scene(plan_image(seed, split, index, num_images, long_tailed), size)
    return layouts.write_image(folder, split, index, num_images, scene, channels)
