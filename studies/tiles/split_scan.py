"""Cut a labelled scan in two, left to learn from and right to test on, as COCO files.

    python studies/tiles/split_scan.py --image trees.png --xml trees.xml --share 0.667 --output DIR
    python tools/train_net.py ... DATASETS.TRAIN "('coco:DIR:DIR/left.json',)"

A box on the cut is of the side that its centre lies in, cut off at its border.
"""

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np

from revisit.files import output_path

SIDES = ("xmin", "ymin", "xmax", "ymax")


def boxes_of(path: Path) -> tuple[np.ndarray, list[str]]:
    """(N, 4) xyxy in px and the names of classes, of a file in Pascal VOC's format."""
    objects = ElementTree.parse(path).getroot().findall("object")
    boxes = [[float(each.findtext(f"bndbox/{side}")) for side in SIDES] for each in objects]
    return np.array(boxes), [each.findtext("name") for each in objects]


def write_half(image: np.ndarray, boxes: np.ndarray, names: list[str], start: int, output: Path, name: str) -> int:
    """The (H, W, 3) pixels of a side that begins at column ``start``, and its boxes; returns how many these are."""
    height, width = image.shape[:2]
    centres = boxes[:, [0, 2]].mean(axis=1) - start
    kept = np.flatnonzero((centres >= 0) & (centres < width))
    inside = (boxes[kept] - (start, 0, start, 0)).clip(0, (width, height, width, height))
    classes = sorted(set(names))
    annotations = []
    for number, (place, (x0, y0, x1, y1)) in enumerate(zip(kept, inside.tolist(), strict=True), start=1):
        box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
        annotations.append(box | {"id": number, "image_id": 1, "category_id": 1 + classes.index(names[place])})
    images = [{"id": 1, "file_name": f"{name}.png", "height": height, "width": width}]
    categories = [{"id": number, "name": each} for number, each in enumerate(classes, start=1)]
    cv2.imwrite(str(output / f"{name}.png"), image)
    content = {"images": images, "annotations": annotations, "categories": categories}
    (output / f"{name}.json").write_text(json.dumps(content))
    return len(annotations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="the scan, as OpenCV reads it")
    parser.add_argument("--xml", required=True, help="its boxes, in Pascal VOC's format")
    parser.add_argument("--share", type=float, default=2 / 3, help="of the columns to learn from")
    parser.add_argument("--output", type=output_path, required=True, help="folder for left.png, left.json, and so on")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    image, (boxes, names) = cv2.imread(args.image), boxes_of(Path(args.xml))
    cut = round(args.share * image.shape[1])
    for name, start, part in (("left", 0, image[:, :cut]), ("right", cut, image[:, cut:])):
        count = write_half(part, boxes, names, start, args.output, name)
        print(f"{name}: {part.shape[1]} x {part.shape[0]} px, {count} boxes")


if __name__ == "__main__":
    main()
