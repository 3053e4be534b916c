"""Images of classes under coloured lamps: a nuisance that agrees with the class, or does not."""

import colorsys
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from revisit.data.images.reader import read_image
from revisit.data.sources.catalog import get_records
from revisit.errors import expect
from revisit.files import write_whole
from revisit.markdown import csv_table

DARKEST = 0.3  # of a channel of a lamp


def make_tinted(images: Path, output: Path, agree: float, seed: int) -> None:
    """Write the images of class folders under their lamps, as PNG, and groups.csv.

    Args:
        agree: share of the images, in [0, 1], whose lamp is that of their class; 0.1 with ten classes: any lamp.
    """
    expect(not output.exists(), f"--output {output} is already there: expected a new folder")
    rng = np.random.default_rng(seed)
    records = get_records(f"class_folders:{images}")
    labels = [record["label"] for record in records]
    count = 1 + max(labels)
    expect(count > 1, f"--data {images} has one class: expected two at least")
    files = [Path(record["file_name"]) for record in records]
    names = [file.relative_to(images).with_suffix(".png") for file in files]
    name, times = Counter(names).most_common(1)[0]
    expect(times == 1, f"--data {images} has {times} files that would be {name}: expected names of their own")
    lines = []
    for file, name, label in zip(files, names, labels, strict=True):
        lamp = lamp_of(label, count, agree, rng)
        write_lit(file, output / name, lamp / count)
        lines.append((name, f"lamp {lamp}"))
    write_whole(output / "groups.csv", csv_table(("file_name", "group"), lines))


def lamp_of(label: int, count: int, agree: float, rng: np.random.Generator) -> int:
    """The lamp of an image of class ``label``, of ``count``: its class's, or any other one."""
    agrees = rng.random() < agree
    step = rng.integers(1, count)
    return label if agrees else int(label + step) % count


def write_lit(source: Path, target: Path, hue: float) -> None:
    """Write an image under a lamp of a hue in [0, 1)."""
    lamp = np.array(colorsys.hsv_to_rgb(hue, 1.0, 1.0))
    light = DARKEST + (1 - DARKEST) * lamp
    pixels = read_image(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * light).round().astype(np.uint8)).save(target)
