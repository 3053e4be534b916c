#!/usr/bin/env python
"""Two data sets of one file in COCO's format: all objects as one class, and those of its most frequent classes.

    python studies/found_boxes/coco_sets.py --data /data/coco/annotations/instances_train.json \\
        --test /data/coco/annotations/instances_val.json --output output/coco_sets

Writes one_train.json, one_test.json, ten_train.json and ten_test.json into --output, with the names of files as they
are. The most frequent classes are those of --data, crowds not counted.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from revisit.data.sources.coco_truth import read_coco
from revisit.engine.command import natural, run_command
from revisit.files import make_folder, output_path, write_whole

OBJECT = {"id": 1, "name": "object"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FILE", help="annotations that are learned from")
    add("--test", type=Path, required=True, metavar="FILE", help="annotations that are scored against")
    add("--count", type=natural, default=10, metavar="N", help="classes of the second set (default: %(default)s)")
    add("--output", type=output_path, required=True, metavar="DIR")
    args = parser.parse_args()
    contents = {"train": read_coco(args.data), "test": read_coco(args.test)}
    make_folder(args.output, "--output")
    frequent = most_frequent(contents["train"], args.count)
    for side, content in contents.items():
        write_whole(args.output / f"one_{side}.json", json.dumps(as_one_class(content)))
        write_whole(args.output / f"ten_{side}.json", json.dumps(of_classes(content, frequent)))


def as_one_class(content: dict) -> dict:
    """All annotations as of the class OBJECT."""
    annotations = [annotation | {"category_id": OBJECT["id"]} for annotation in content["annotations"]]
    return content | {"annotations": annotations, "categories": [OBJECT]}


def most_frequent(content: dict, count: int) -> list[str]:
    """Names of the ``count`` classes with the most objects; of equally frequent ones the first in the file."""
    objects = Counter(each["category_id"] for each in content["annotations"] if not each.get("iscrowd"))
    ranked = sorted(content["categories"], key=lambda category: -objects[category["id"]])
    return [category["name"] for category in ranked[:count]]


def of_classes(content: dict, names: list[str]) -> dict:
    """The annotations of these classes; all images stay."""
    categories = [category for category in content["categories"] if category["name"] in names]
    ids = {category["id"] for category in categories}
    annotations = [annotation for annotation in content["annotations"] if annotation["category_id"] in ids]
    return content | {"annotations": annotations, "categories": categories}


if __name__ == "__main__":
    run_command(main)
