"""Images per second of one process: views by ours and by plain torchvision and PIL, images from shards and files."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import tifffile
import torch
from PIL import Image

from projects.LargeData.looks_on_device import MapperWithoutLooks
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.reader import require_record
from revisit.data.loading.loader import ViewDataset
from revisit.data.loading.workers import one_thread
from revisit.data.sources.catalog import get_records
from revisit.data.views.mapper import ViewMapper
from revisit.errors import expect
from revisit.keys import with_values
from studies.benchmarks.measuring import compare, timer
from studies.benchmarks.references import AlbumentationsViews, ReferenceViews

from detectron2.config import CfgNode

BATCH = 32
MOST_PHOTOGRAPHS = 128
MOST_OF_CHANNELS = 16
QUALITY = 75  # of JPEG
EXPONENT = 1.2  # of the spectrum: 80 KB at 640 x 480, which take as long to decode as photographs of this quality

HOW_TO_GET_IT = (
    "pip install --no-deps --target DIR albumentations==2.0.8 albucore==0.0.24 simsimd==6.5.16 stringzilla==5.3.2, and "
    "put DIR into PYTHONPATH"
)


def measure_shards(*, files: str, shards: str, images: int = 2000, repeats: int) -> dict[str, object]:
    """Images read and decoded from ``shards``, a folder by tools/make_shards.py, against the same as loose files, the
    data set ``files``."""
    loose, packed = get_records(files), get_records(f"shards:{shards}")
    same = len(loose) == len(packed)
    expect(same, f"{files} has {len(loose)} images, {shards} {len(packed)}: expected the same images")
    order = np.random.default_rng(0).permutation(len(loose))[:images].tolist()
    timers = {"shards": timer(_reading(packed, order)), "files": timer(_reading(loose, order))}
    return compare(timers, repeats, len(order))


def measure_input(
    cfg: CfgNode, *, files: str | None = None, height: int = 480, images: int = 256, repeats: int
) -> dict[str, object]:
    """From files to a batch, in seconds of one core, without waiting for the disk: ours up to uint8 tensors, the
    reference's up to normalised ones; of a worker that leaves the looks to the device (DATALOADER.AUGMENT_ON_DEVICE);
    of decoding whole images alone; of albumentations, up to uint8 arrays, by its bilinear filter and by area. Of the
    data set ``files``, or without one of made-up photographs of that ``height``, px."""
    with one_thread(), files_or_photographs(files, min(images, MOST_PHOTOGRAPHS), height) as name:
        records = get_records(name)
        order = (np.random.default_rng(0).permutation(images) % len(records)).tolist()
        batches = [order[start : start + BATCH] for start in range(0, images, BATCH)]

        def ours(mapper: ViewMapper) -> Callable[[], object]:
            dataset = ViewDataset(records, mapper, PHOTOGRAPHS)
            return lambda: [dataset.__getitems__([(0, n) for n in batch]) for batch in batches]

        def theirs(views: ReferenceViews | AlbumentationsViews) -> Callable[[], object]:
            return lambda: [views.batch([records[n]["file_name"] for n in batch]) for batch in batches]

        random.seed(0)
        torch.manual_seed(0)
        forms = {"ours": ours(ViewMapper.from_config(cfg)), "worker": ours(MapperWithoutLooks.from_config(cfg))}
        forms["decoding"] = _reading(records, order)
        missing = {}
        try:
            for name, filter_ in (("albumentations", cv2.INTER_LINEAR), ("albumentations_area", cv2.INTER_AREA)):
                forms[name] = theirs(AlbumentationsViews(cfg, filter_))
        except ImportError as error:
            missing["albumentations"] = f"left out ({error}): {HOW_TO_GET_IT}"
        forms["reference"] = theirs(ReferenceViews(cfg))
        timers = {name: timer(form, time.thread_time) for name, form in forms.items()}
        return compare(timers, repeats, images) | missing


def measure_channels(
    cfg: CfgNode, *, channels: int = 4, height: int = 480, images: int = 64, repeats: int
) -> dict[str, object]:
    """From files to a batch as measure_input, of TIFFs of so many channels of 8 bits, deflated, with the look
    ``channels``; of decoding them alone; and of RGB PNGs of that size, with the looks of ``cfg``."""
    names = [f"band{place}" for place in range(channels)]
    mean, policy = [128.0] * channels, "channels"
    of_channels = with_values(cfg, {"INPUT.CHANNELS": names, "MODEL.PIXEL_MEAN": mean, "VIEWS.POLICY": policy})
    pixels = pixel_format(of_channels)
    order = [number % MOST_OF_CHANNELS for number in range(images)]
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        tiffs = [{"file_name": f"{folder}/{number:05d}.tif"} for number in range(MOST_OF_CHANNELS)]
        pngs = [{"file_name": f"{folder}/{number:05d}.png"} for number in range(MOST_OF_CHANNELS)]
        form = {"compression": "zlib", "predictor": True, "photometric": "minisblack", "planarconfig": "contig"}
        for tiff, png, image in zip(tiffs, pngs, noise(MOST_OF_CHANNELS, channels, height), strict=True):
            tifffile.imwrite(tiff["file_name"], image, **form)
            Image.fromarray(image[..., np.arange(3) % channels]).save(png["file_name"])
        sets = {"channels": (of_channels, tiffs, pixels), "png": (cfg, pngs, PHOTOGRAPHS)}
        loaders = {name: ViewDataset(files, ViewMapper.from_config(of), how) for name, (of, files, how) in sets.items()}
        calls = {name: partial(loader.__getitems__, [(0, n) for n in order]) for name, loader in loaders.items()}
        calls = {"channels": calls["channels"], "decoding": _reading(tiffs, order, pixels), "png": calls["png"]}
        timers = {name: timer(call, time.thread_time) for name, call in calls.items()}
        return compare(timers, repeats, images)


def _reading(records: list[dict], order: list[int], pixels: PixelFormat = PHOTOGRAPHS) -> Callable[[], object]:
    """A call that reads and decodes the records of these numbers, and keeps none: new memory for each takes longer."""

    def read() -> None:
        for number in order:
            require_record(records[number], pixels)

    return read


@contextmanager
def files_or_photographs(files: str | None, count: int, height: int = 480) -> Iterator[str]:
    """The name of a data set, or where there is none that of a temporary one of ``count`` made-up photographs."""
    loose = all("file_name" in record and "offset" not in record for record in (get_records(files) if files else ()))
    expect(loose, f"--files {files}: expected each image in a file of its own, not shards or arrays")
    with tempfile.TemporaryDirectory() as folder:
        if not files:
            write_photographs(Path(folder), count, height=height, width=height * 4 // 3)
        yield files or f"folder:{folder}"


def write_photographs(folder: Path, count: int, *, height: int = 480, width: int = 640) -> list[Path]:
    """Write JPEGs of a camera's sizes: noise with the spectrum of photographs."""
    paths = [folder / f"{number:05d}.jpg" for number in range(count)]
    for path, pixels in zip(paths, noise(count, 3, height, width), strict=True):
        cv2.imwrite(str(path), pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return paths


def noise(count: int, channels: int, height: int, width: int = 0) -> Iterator[np.ndarray]:
    """Images (H, W, C) uint8, 4 : 3 without a width, whose amplitude is 1 / frequency ** EXPONENT."""
    width = width or height * 4 // 3
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]) ** EXPONENT
    frequency[0, 0] = np.inf
    for _ in range(count):
        spectrum = np.fft.rfft2(rng.normal(size=(channels, height, width))) / frequency
        pixels = np.fft.irfft2(spectrum, s=(height, width))
        grey = pixels[:1] + 0.3 * pixels  # channels of photographs vary together
        scaled = np.clip(128 + 55 * grey / grey.std(), 0, 255).astype(np.uint8)
        yield np.ascontiguousarray(scaled.transpose(1, 2, 0))
