"""Short videos in DAVIS's layout: objects that turn and change places, in front of each other, with exact masks."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from projects.common.label_maps import palette_image
from projects.ToyScenes.appearance import HELDOUT
from projects.ToyScenes.classes import class_weights
from projects.ToyScenes.layouts import encode_jpeg
from projects.ToyScenes.plan import ScenePlan, plan_scene_centric
from projects.ToyScenes.scene import draw_scene
from revisit.randomness import Stream, counter_rng

NUM_FRAMES = 20
MOST_OBJECTS = 3
TURN = (-40.0, 40.0)  # degrees, from the first frame to the last
IMAGES_PER_VIDEO = 250  # of a train set
FEWEST, MOST = 2, 8

FRAMES, MASKS, SETS = "DAVIS/JPEGImages/480p", "DAVIS/Annotations/480p", "DAVIS/ImageSets/2017"


def num_videos(num_train: int) -> int:
    """Videos beside train sets of so many images."""
    return min(MOST, max(FEWEST, num_train // IMAGES_PER_VIDEO))


def video_name(index: int) -> str:
    return f"toy-{index + 1:02d}"


def plan_video(seed: int, index: int) -> list[ScenePlan]:
    """The scenes of a video's frames: a function of its arguments alone, in held-out appearance.

    Each of its two or three objects moves evenly to where the next one started, so that they pass each other, the
    nearer one in front. Camera, background and light stay.
    """
    rng = counter_rng(seed, Stream.TOY_VIDEO, index)
    scene = plan_scene_centric(rng, HELDOUT, class_weights(long_tailed=False))
    objects = scene.objects[:MOST_OBJECTS]
    starts = np.array([thing.centre for thing in objects])
    ends = np.roll(starts, -1, axis=0) if len(objects) > 1 else 1 - starts
    turns = rng.uniform(*TURN, len(objects))
    plans = []
    for progress in np.linspace(0, 1, NUM_FRAMES):
        centres = (1 - progress) * starts + progress * ends
        moved = tuple(
            replace(thing, centre=(float(x), float(y)), rotation=thing.rotation + progress * float(turn))
            for thing, (x, y), turn in zip(objects, centres, turns, strict=True)
        )
        plans.append(replace(scene, objects=moved))
    return plans


def make_folders(root: Path, num_train: int) -> None:
    """Makes every folder of the layout under ``root``."""
    for index in range(num_videos(num_train)):
        for folder in (FRAMES, MASKS):
            (root / folder / video_name(index)).mkdir(parents=True)
    (root / SETS).mkdir(parents=True)


def file_counts(num_train: int) -> dict[str, int]:
    """Frames and masks below each folder of the layout."""
    return dict.fromkeys((FRAMES, MASKS), num_videos(num_train) * NUM_FRAMES)


def write_video(root: Path, index: int, seed: int, size: int) -> None:
    """Draws a video and writes its frames and its masks, whose ids count the objects from 1."""
    for number, plan in enumerate(plan_video(seed, index)):
        scene = draw_scene(plan, size)
        (root / FRAMES / video_name(index) / f"{number:05d}.jpg").write_bytes(encode_jpeg(scene.image))
        mask = palette_image(scene.instances.astype(np.uint8))
        mask.save(root / MASKS / video_name(index) / f"{number:05d}.png", compress_level=1)


def write_set(root: Path, num_train: int) -> None:
    """Writes the list of all videos."""
    names = [video_name(index) for index in range(num_videos(num_train))]
    (root / SETS / "val.txt").write_text("".join(f"{name}\n" for name in names))
