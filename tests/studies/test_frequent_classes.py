"""The most frequent classes of COCO's files."""

import json
import sys

from revisit.data.sources.coco_truth import read_coco
from studies.found_boxes import frequent_classes

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


def test_both_files_have_the_classes_that_are_frequent_in_training(tmp_path, monkeypatch):
    train = write(tmp_path / "train.json", "cat", "cup", "cup", "dog*", "dog*", "cat", "dog")
    test = write(tmp_path / "test.json", "dog", "dog", "dog", "cat")
    output = tmp_path / "two"
    options = ["--data", train, "--test", test, "--count", "2", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["frequent_classes", *options])
    frequent_classes.main()
    written = [read_coco(output / name) for name in ("train.json", "test.json")]
    for content in written:
        assert [category["name"] for category in content["categories"]] == ["cat", "cup"]  # crowds of dogs do not count
    assert [[box["bbox"][0] for box in content["annotations"]] for content in written] == [[1, 2, 3, 6], [4]]
    assert [len(content["images"]) for content in written] == [1, 1]
