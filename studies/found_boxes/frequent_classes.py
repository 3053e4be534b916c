#!/usr/bin/env python
"""The most frequent classes of two files in COCO's format, as two files of their own.

    python studies/found_boxes/frequent_classes.py --data /data/coco/annotations/instances_train.json \\
        --test /data/coco/annotations/instances_val.json --output output/ten_classes

Writes train.json and test.json into --output, with all images, and the names of files as they are. The most frequent
classes are those of --data, crowds not counted.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from revisit.data.sources.coco_truth import read_coco
from revisit.engine.command import natural, run_command
from revisit.files import make_folder, output_path, write_whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FILE", help="annotations that are learned from")
    add("--test", type=Path, required=True, metavar="FILE", help="annotations that are scored against")
    add("--count", type=natural, default=10, metavar="N", help="classes (default: %(default)s)")
    add("--output", type=output_path, required=True, metavar="DIR")
    args = parser.parse_args()
    train, test = read_coco(args.data), read_coco(args.test)
    make_folder(args.output, "--output")
    frequent = most_frequent(train, args.count)
    for name, content in {"train.json": train, "test.json": test}.items():
        write_whole(args.output / name, json.dumps(of_classes(content, frequent)))


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
