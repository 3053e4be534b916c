"""Images of channels with boxes, masks and classes and depth per pixel, as files of others."""

import json
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

SHAPE = (64, 80)  # px
NAMES = ("disc", "square")


def write_fields(folder: Path, *, count: int = 8, channels: int = 5, seed: int = 0) -> str:
    """TIFFs of 16 bits, in each a bright square in two of the channels; the data set of their boxes and masks.

    The folder has also ``list.txt``, and of each image ``labels/N.png`` and ``depth/N.npy``.
    """
    rng = np.random.default_rng(seed)
    images, boxes, layout = [], [], {"planarconfig": "contig"} if channels > 1 else {}
    for name in ("labels", "depth"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        values = rng.uniform(100, 2000, (*SHAPE, channels)) * np.linspace(0.5, 1, channels)
        labels = np.zeros(SHAPE, np.uint8)
        for kind in range(len(NAMES)):
            left, top, side = (int(rng.integers(*ends)) for ends in ((0, 40), (0, 30), (16, 30)))
            part = (slice(top, top + side), slice(left, left + side))
            values[part][..., -1 - kind % channels] += 2000
            labels[part] = kind + 1
            box = {"bbox": [left, top, side, side], "area": side * side, "iscrowd": 0, "category_id": kind + 1}
            right, low = left + side, top + side
            outline = [[left, top, right, top, right, low, left, low]]
            boxes.append({"id": len(boxes) + 1, "image_id": number + 1, "segmentation": outline, **box})
        tifffile.imwrite(folder / f"{number}.tif", values.astype(np.uint16), photometric="minisblack", **layout)
        np.save(folder / "depth" / f"{number}.npy", np.float32(1 + labels))
        Image.fromarray(labels).save(folder / "labels" / f"{number}.png")
        images.append({"id": number + 1, "file_name": f"{number}.tif", "height": SHAPE[0], "width": SHAPE[1]})
    kinds = [{"id": number, "name": name} for number, name in enumerate(NAMES, start=1)]
    truth = {"images": images, "annotations": boxes, "categories": kinds}
    (folder / "boxes.json").write_text(json.dumps(truth))
    (folder / "list.txt").write_text("\n".join(str(folder / image["file_name"]) for image in images))
    return f"coco:{folder}:{folder / 'boxes.json'}"
