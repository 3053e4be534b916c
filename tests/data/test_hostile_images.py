"""2,000 images that something or somebody has spoilt: every one is decoded or counted, none ends a worker."""

from __future__ import annotations

import io
import os
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import tiny_config

from revisit.data.loader import ResumableLoader
from revisit.data.reader import UnreadableImageError, read_image

NUM_IMAGES = 2000


def originals() -> dict[str, bytes]:
    """One file of every kind that folders of images hold, by suffix and name of the kind."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:48, 0:64]
    pixels = np.stack([y * 5, x * 4, (y * x) % 256], axis=-1).astype(np.uint8) // 2 + rng.integers(
        0, 20, (48, 64, 3), np.uint8
    )
    picture = Image.fromarray(pixels)
    frames = [picture.rotate(angle) for angle in (0, 90, 180)]
    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    palette = picture.quantize(32)
    palette.info["transparency"] = bytes(range(0, 256, 8))
    made = {
        "jpg": (picture, {}),
        "progressive.jpg": (picture, {"progressive": True}),
        "turned.jpg": (picture, {"exif": exif}),
        "cmyk.jpg": (picture.convert("CMYK"), {}),
        "grey.jpg": (picture.convert("L"), {}),
        "png": (picture, {}),
        "16bit.png": (Image.fromarray((y * 1000).astype(np.uint16)), {}),
        "palette.png": (palette, {}),
        "rgba.png": (picture.convert("RGBA"), {}),
        "1bit.png": (picture.convert("1"), {}),
        "gif": (frames[0], {"save_all": True, "append_images": frames[1:]}),
        "webp": (frames[0], {"save_all": True, "append_images": frames[1:]}),
        "tif": (picture, {"compression": "tiff_lzw"}),
        "16bit.tif": (Image.fromarray((x * 900).astype(np.uint16)), {}),
        "bmp": (picture, {}),
        "ppm": (picture, {}),
    }
    files = {}
    for kind, (image, options) in made.items():
        buffer = io.BytesIO()
        suffix = kind.rpartition(".")[2]
        image.save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()), **options)
        files[kind] = buffer.getvalue()
    return files


def spoil(data: bytes, rng: random.Random) -> bytes:
    spoilt = bytearray(data)
    size = len(data)
    match rng.randrange(7):
        case 0:
            return data[: rng.randrange(size)]
        case 1:
            for _ in range(rng.choice([1, 8, 100])):
                spoilt[rng.randrange(size)] ^= 1 << rng.randrange(8)
        case 2:  # headers: sizes, offsets, orientation
            for _ in range(rng.choice([1, 3])):
                spoilt[rng.randrange(min(size, 200))] = rng.choice([0, 1, 127, 128, 255])
        case 3:
            return b""
        case 4:
            start = rng.randrange(size)
            spoilt[start : start + rng.randrange(1, 400)] = bytes(rng.randrange(1, 400))
        case 5:  # two of them in one
            start = rng.randrange(size)
            return data[:start] + data[rng.randrange(size) :]
        case 6:
            return data
    return bytes(spoilt)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files, a tenth of them under the suffix of another kind."""
    folder = tmp_path_factory.mktemp("hostile")
    kinds = originals()
    for number in range(NUM_IMAGES):
        rng = random.Random(number)
        kind = list(kinds)[number % len(kinds)]
        suffix = rng.choice([*kinds]) if rng.random() < 0.1 else kind
        (folder / f"{number:04d}.{suffix.rpartition('.')[2]}").write_bytes(spoil(kinds[kind], rng))
    return folder


def readable(path: Path) -> bool:
    try:
        image = read_image(path)
    except UnreadableImageError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return False
    assert image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size > 0
    return True


def test_every_kind_is_decoded_as_long_as_it_is_whole(tmp_path):
    for kind, data in originals().items():
        path = tmp_path / f"whole.{kind}"
        path.write_bytes(data)
        image = read_image(path)
        assert image.shape == ((64, 48, 3) if kind == "turned.jpg" else (48, 64, 3)), kind
        assert image.std() > 10, kind


def test_each_image_is_decoded_or_counted(folder):
    found = [readable(path) for path in sorted(folder.iterdir())]
    assert len(found) == NUM_IMAGES and 0.15 * NUM_IMAGES < sum(found) < 0.85 * NUM_IMAGES


def test_the_loaders_workers_survive_them_and_name_each(folder, monkeypatch):
    monkeypatch.setattr("revisit.data.loader.MAX_REPLACEMENTS", NUM_IMAGES)
    options = ("SOLVER.IMS_PER_BATCH", 50, "DATALOADER.NUM_WORKERS", 2, "VIEWS.NUM_SMALL", 0)
    loader = ResumableLoader(tiny_config("DATASETS.TRAIN", (f"folder:{folder}",), *options))
    errors = [error for batch in islice(loader, loader.iterations_per_epoch) for error in batch["read_errors"]]
    named = {error.partition(":")[0] for error in errors}
    assert named == {str(path) for path in folder.iterdir() if not readable(path)}


def test_a_pipe_and_an_endless_device_are_no_images(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")  # would keep its reader waiting for ever
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zero.jpg"):
        with pytest.raises(UnreadableImageError, match=name):
            read_image(tmp_path / name)


def test_a_file_larger_than_any_photograph_is_not_read(tmp_path):
    with open(tmp_path / "big.jpg", "wb") as file:
        file.truncate(2**40)  # takes no place on the disk
    with pytest.raises(UnreadableImageError, match=f"at most {2**30} bytes"):
        read_image(tmp_path / "big.jpg")
