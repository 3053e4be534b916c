#!/usr/bin/env python
"""Count the annotated objects per image of a data set, as in the paper's table of data sets.

    python datasets/count_objects.py coco $DETECTRON2_DATASETS/coco/annotations/instances_train2017.json \\
        --output output/objects
    python datasets/count_objects.py openimages $DETECTRON2_DATASETS/openimages/train-annotations-bbox.csv \\
        --list $DETECTRON2_DATASETS/subsets/openimages_118k.txt --output output/objects

KIND says how annotations are laid out; every box counts, one around a group or a crowd too:

    coco        instances_*.json; images without an object count
    openimages  *-annotations-bbox.csv, a line for each box; images without a box are not in it
    bdd100k     bdd100k_labels_images_*.json or det_*.json; lanes and drivable areas, which have no box2d, do not count
    imagenet    a folder of *.xml in the layout of Pascal VOC, at any depth; images without a file do not count

DIR/objects.json has the numbers of images and objects, and objects_per_image.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from xml.etree import ElementTree

from prepare_openimages_subsets import count_boxes
from tqdm import tqdm

from revisit.data.sources.image_folders import visible_files
from revisit.data.sources.split_files import read_lines
from revisit.engine.command import run_command
from revisit.errors import expect, translated
from revisit.files import make_folder, output_path, written_whole


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("path", metavar="FILE", type=Path, help="annotations, of imagenet a folder")
    what = "count only images whose names are in this list of paths, as the scripts beside this one write them"
    parser.add_argument("--list", metavar="FILE", type=Path, help=what)
    parser.add_argument("--output", metavar="DIR", type=output_path, required=True, help="folder for objects.json")
    args = parser.parse_args(argv)
    with translated(f"reading {args.path} as annotations of {args.kind}"):
        objects, without = KINDS[args.kind](args.path), 0
    if args.list:
        wanted = listed_names(args.list)
        objects = {name: objects[name] for name in objects.keys() & wanted}
        without = len(wanted) - len(objects)
        expect(objects, f"{args.path} has annotations of none of the {len(wanted):,} images in {args.list}")
    expect(objects, f"{args.path} names no image")
    total, mean = sum(objects.values()), sum(objects.values()) / len(objects)
    numbers = {"images": len(objects), "without_annotations": without, "objects": total, "objects_per_image": mean}
    numbers["annotations"] = str(args.path)
    make_folder(args.output, "--output")
    with written_whole(args.output / "objects.json") as temporary:
        temporary.write_text(json.dumps(numbers, indent=2) + "\n")
    left_out = f"; {without:,} more of the list have no annotations" if without else ""
    print(f"{args.path}: {total:,} objects in {len(objects):,} images, {mean:.2f} per image{left_out}")


def listed_names(path: Path) -> set[str]:
    """Names of images without folder and suffix, from a text file with one path a line."""
    lines = map(str.strip, read_lines(path, "list of images"))
    return {Path(line).stem for line in lines if line and not line.startswith("#")}


def check_differ(names: Iterable[str]) -> None:
    """Raises UserError where images of several folders have one name, by which lists know them."""
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    expect(count < 2, f"{count} images are called {name}, without folder and suffix: expected one, so count them apart")


def count_coco(path: Path) -> Counter[str]:
    """Objects by image in COCO's format."""
    content = json.loads(path.read_bytes())
    images = {image["id"]: Path(image["file_name"]).stem for image in content["images"]}
    check_differ(images.values())
    objects = Counter(dict.fromkeys(images.values(), 0))
    objects.update(images[annotation["image_id"]] for annotation in content["annotations"])
    return objects


def count_bdd100k(path: Path) -> dict[str, int]:
    """Boxes by image in BDD100K's format: a list of frames, or a dict that has it."""
    content = json.loads(path.read_bytes())
    frames = content["frames"] if isinstance(content, dict) else content
    names = [Path(frame["name"]).stem for frame in frames]
    check_differ(names)
    boxes = (sum("box2d" in label for label in frame.get("labels") or ()) for frame in frames)
    return dict(zip(names, boxes, strict=True))


def count_imagenet(path: Path) -> dict[str, int]:
    """Objects by image in a folder of XML files as those of Pascal VOC."""
    files = [Path(file) for file in visible_files(path) if file.endswith(".xml")]
    check_differ(file.stem for file in files)
    files = tqdm(files, unit="file", desc=path.name, disable=None)
    return {file.stem: len(ElementTree.parse(file).findall("object")) for file in files}


KINDS: dict[str, Callable[[Path], Mapping[str, int]]] = {
    "coco": count_coco,
    "openimages": count_boxes,
    "bdd100k": count_bdd100k,
    "imagenet": count_imagenet,
}


if __name__ == "__main__":
    run_command(main)
