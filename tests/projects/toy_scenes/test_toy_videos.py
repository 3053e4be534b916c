"""ToyScenes' videos: objects that move, hide each other, and keep their ids; DAVIS's layout on disk."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from projects.common.label_maps import voc_colours
from projects.ToyScenes.scene import draw_scene
from projects.ToyScenes.videos import NUM_FRAMES, num_videos, plan_video, video_name, write_video


@pytest.mark.parametrize(("images", "videos"), [(10, 2), (60, 2), (2000, 8), (8000, 8)])
def test_number_of_videos(images, videos):
    assert num_videos(images) == videos


def test_seed_and_index_each_change_the_video():
    centres = {plan_video(seed, index)[0].objects[0].centre for seed, index in ((0, 1), (0, 2), (1, 1))}
    assert len(centres) == 3


@pytest.mark.parametrize("index", range(8))
def test_objects_change_places_and_keep_what_they_are(index):
    plans = plan_video(0, index)
    first, last = plans[0].objects, plans[-1].objects
    assert len(plans) == NUM_FRAMES and 2 <= len(first) <= 3
    assert np.allclose([thing.centre for thing in last], [thing.centre for thing in (*first[1:], first[0])])
    for plan in plans:
        assert [(t.class_id, t.distance, t.extent) for t in plan.objects] == [
            (t.class_id, t.distance, t.extent) for t in first
        ]
    steps = np.diff([[thing.centre for thing in plan.objects] for plan in plans], axis=0)
    assert np.allclose(steps, steps[0])


def test_nearer_objects_hide_farther_ones_on_the_way():
    hidden = 0
    for index in range(8):
        areas = np.array(
            [np.bincount(draw_scene(p, 64).instances.ravel(), minlength=4)[1:4] for p in plan_video(0, index)]
        )
        assert (areas[0][: len(plan_video(0, index)[0].objects)] > 0).all()  # all are there at the start
        hidden += (areas.min(axis=0) < 0.6 * areas.max(axis=0)).sum()
    assert hidden >= 8


def test_files_are_a_video_of_davis(toy_root: Path):
    root = toy_root / "toy_scenes/DAVIS"
    names = (root / "ImageSets/2017/val.txt").read_text().split()
    assert names == ["toy-01", "toy-02"]
    for index, name in enumerate(names):
        plans = plan_video(0, index)
        for number, plan in enumerate(plans):
            scene = draw_scene(plan, 64)
            with Image.open(root / f"Annotations/480p/{name}/{number:05d}.png") as mask:
                assert mask.mode == "P" and mask.getpalette()[:12] == voc_colours()[:4].ravel().tolist()
                assert np.array_equal(np.asarray(mask), scene.instances)
            with Image.open(root / f"JPEGImages/480p/{name}/{number:05d}.jpg") as frame:
                assert np.abs(np.asarray(frame).astype(int) - scene.image).mean() < 4  # quality 92
        assert len(list((root / f"JPEGImages/480p/{name}").iterdir())) == NUM_FRAMES


def test_writing_twice_gives_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        for part in ("JPEGImages", "Annotations"):
            (tmp_path / folder / "DAVIS" / part / "480p" / video_name(0)).mkdir(parents=True)
        write_video(tmp_path / folder, 0, seed=3, size=64)
    one, two = (sorted((tmp_path / folder).rglob("*.*")) for folder in ("a", "b"))
    assert len(one) == 2 * NUM_FRAMES
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
