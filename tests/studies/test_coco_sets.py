"""All objects of COCO's as one class, and those of the most frequent classes."""

import json
import sys

from revisit.data.sources.coco_truth import read_coco
from studies.found_boxes import coco_sets

CLASSES = ["cat", "dog", "cup"]
IDS = {"cat": 3, "dog": 7, "cup": 8}


def write(file, *names):
    """A file in COCO's format with one image, which shows objects of these classes; crowds end in a star."""
    annotations = [
        {
            "id": n,
            "image_id": 1,
            "category_id": IDS[name.rstrip("*")],
            "bbox": [n, 0, 4, 4],
            "iscrowd": int("*" in name),
        }
        for n, name in enumerate(names, start=1)
    ]
    categories = [{"id": IDS[name], "name": name} for name in CLASSES]
    images = [{"id": 1, "file_name": "a.jpg", "height": 9, "width": 9}]
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return str(file)


def test_one_class_has_all_objects_and_the_other_set_those_of_the_classes_frequent_in_training(tmp_path, monkeypatch):
    train = write(tmp_path / "train.json", "cat", "cup", "cup", "dog*", "dog*", "cat", "dog")
    test = write(tmp_path / "test.json", "dog", "dog", "dog", "cat")
    output = tmp_path / "sets"
    options = ["--data", train, "--test", test, "--count", "2", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["coco_sets", *options])
    coco_sets.main()
    one, ten = (
        {side: read_coco(output / f"{name}_{side}.json") for side in ("train", "test")} for name in ("one", "ten")
    )
    assert [len(one[side]["annotations"]) for side in ("train", "test")] == [7, 4]
    assert {each["category_id"] for side in one.values() for each in side["annotations"]} == {1}
    assert [category["name"] for category in one["test"]["categories"]] == ["object"]
    for side in ten.values():
        assert [category["name"] for category in side["categories"]] == ["cat", "cup"]  # crowds of dogs do not count
    assert [each["bbox"][0] for each in ten["test"]["annotations"]] == [4]
    assert [len(side["images"]) for side in (*one.values(), *ten.values())] == [1] * 4
