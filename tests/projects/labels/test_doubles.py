"""Images that are learned from more than once are said before the first step."""

import json

import pytest
from deep import shallow_picture
from PIL import Image
from tiny import tiny_config
from trees import logged, write

from projects.Labels.doubles import doubles
from revisit.data.sources.catalog import get_records


@pytest.fixture
def photos(tmp_path):
    """Two folders of three images each; one image is in both, under another name."""
    for number in range(6):
        path = tmp_path / f"{'ab'[number // 3]}/{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(shallow_picture()[:, number:]).save(path)
    (tmp_path / "b/again.png").write_bytes((tmp_path / "a/1.png").read_bytes())
    return tmp_path


def lines(cfg, name, to_learn=True):
    return [line for _, line in logged(doubles, cfg, name, get_records(name), to_learn)]


def test_images_of_two_training_sets_are_counted_once(photos):
    names = tuple(f"folder:{photos}/{each}" for each in "ab")
    cfg = tiny_config("DATASETS.TRAIN", names)
    assert lines(cfg, names[0]) == [] and lines(cfg, names[1], to_learn=False) == []
    (line,) = lines(cfg, names[1])
    assert f"1 of 4 images of {names[1]} are in DATASETS.TRAIN {names[0]}, too: they count twice" in line
    inside = (f"folder:{photos}", names[0])
    (line,) = lines(tiny_config("DATASETS.TRAIN", inside), inside[1])
    assert "3 of 3 images" in line


def test_equal_files_of_other_classes_are_named(photos):
    name = f"class_folders:{photos}"
    (line,) = lines(tiny_config("DATASETS.TRAIN", (name,)), name)
    assert f"1 images of {name} equal another one, byte for byte, and have other labels" in line
    assert f"{photos}/a/1.png and {photos}/b/again.png" in line
    (photos / "b/again.png").unlink()
    (photos / "a/copy.png").write_bytes((photos / "a/1.png").read_bytes())
    assert lines(tiny_config("DATASETS.TRAIN", (name,)), name) == []  # of the same class


@pytest.mark.parametrize(("moved", "count"), [(0, 0), (0.2, 0), (3, 1)])
def test_equal_files_with_other_boxes_are_named(photos, moved, count):
    files = ["a/0.png", "a/1.png", "b/again.png"]
    images = [{"id": n, "file_name": file, "width": 16, "height": 16} for n, file in enumerate(files)]
    box = {"category_id": 1, "area": 16, "iscrowd": 0}
    boxes = [box | {"id": n + 1, "image_id": n, "bbox": [1 + moved * (n == 2), 1, 4, 4]} for n in range(3)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    write(photos / "boxes.json", json.dumps(content))
    name = f"coco:{photos}:{photos}/boxes.json"
    assert len(lines(tiny_config("DATASETS.TRAIN", (name,)), name)) == count
