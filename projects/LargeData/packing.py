"""Write a data set into tar files, whole or smaller images: what tools/make_shards.py does."""

import functools
import io
import json
import logging
import os
import re
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from projects.LargeData.places import Place, asking
from revisit.data.images.deep_images import DeepImageError, deep_images, format_of
from revisit.data.images.image_bytes import WINDOW, UnreadableImageError
from revisit.data.images.opening import SUFFIXES, TIFF_MAGICS
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import Picture, open_record
from revisit.data.sources.records import Records, changes, fingerprint
from revisit.errors import UserError, expect, printable, translated
from revisit.jobs.runner import Parts, Runner

MANIFEST = "shards.json"
QUALITY = 90  # of JPEG
MAX_JPEG_SIDE = 65500  # px, libjpeg's

logger = logging.getLogger(__name__)


class Smaller(NamedTuple):
    """How images are made smaller."""

    short_side: int  # px
    quality: int = QUALITY  # of JPEG, 1 to 100


def make_shards(
    records: list[dict],
    place: Place,
    images_per_shard: int,
    runner: Runner,
    smaller: Smaller | None = None,
    classes: Sequence[str] = (),
) -> list[str]:
    """Write the shards of the records that are not there yet; returns the names of all.

    Raises:
        SystemExit: in a process that has made its share of the shards, where another one writes their index.
        UserError: a data set with more than classes, or a folder that has shards made otherwise, or in which another
            command is at work.
    """
    others = {"offset", "annotations", "labels", "sem_seg_file_name", "depth_file_name", "channel_files"}
    more = sorted(records[0].keys() & others)
    what = "is in shards already" if "offset" in more else f"has {' and '.join(more)}, which shards do not hold"
    expect(not more, f"the data set {what}: expected images with one class each, or none (folder:DIR packs any images)")
    pixels = format_of({}, records)
    can_shrink = pixels.is_of_photographs or not smaller
    what = f"images of {pixels.count} channels or of other values than 0 to 255, which JPEG cannot hold"
    expect(can_shrink, f"{what}: expected images of 8 bits, or no --short-side")
    place.make()
    count = len(range(0, len(records), images_per_shard))
    digits = max(6, len(str(count - 1)))
    names = [f"shard-{number:0{digits}d}.tar" for number in range(count)]
    make = partial(_write_parts, place, names, records, images_per_shard, smaller, pixels)
    lock = place.folder and place.folder / ".index.lock"
    with runner.in_charge(place.folder / ".in_charge") if place.folder else nullcontext():
        with runner.alone(place.folder):
            check_manifest(place, records, images_per_shard, smaller, list(classes))
        # The reader too silences PIL, but of several threads that do so the last may not restore what the first found.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner.run(Parts("writing shards", names, place.states, make, str(place), lock, in_threads=True))
    return names


def check_manifest(
    place: Place, records: list[dict], images_per_shard: int, smaller: Smaller | None, classes: list[str]
) -> None:
    """Note in shards.json what is packed, and the names of its classes. Raises UserError if the place was begun with
    something else."""
    images = fingerprint(records)
    sizes = {"images_per_shard": images_per_shard} | (smaller._asdict() if smaller else {})
    manifest = json.dumps({"images": images, **sizes, "classes": classes}, indent=2)
    earlier = read_manifest(place)
    if earlier:
        earlier.pop("classes", None)
        with translated(f"comparing with {place}/{MANIFEST}"):
            other = [f"other images, by {word}" for word in changes(earlier.pop("images"), images)]
        other += ["another size (--count, --short-side, --rule quality)"] if earlier != sizes else []
        expect(not other, f"{place} has shards made otherwise: {', '.join(other)}; choose another --output")
    elif place.states():
        raise UserError(
            f"{place} has tar files of somebody else: choose another --output, or leave out --data to index those"
        )
    if earlier:
        with place.written(MANIFEST) as temporary:
            temporary.write_text(manifest)
    elif not place.created(MANIFEST, manifest):  # another command has begun the place at this moment
        check_manifest(place, records, images_per_shard, smaller, classes)


def read_manifest(place: Place) -> dict:
    """What shards.json notes; nothing where there is none."""
    with asking(f"reading {place}/{MANIFEST}"):
        content = place.read(MANIFEST)
        return {} if content is None else dict(json.loads(content))


def _write_parts(
    place: Place,
    names: list[str],
    records: list[dict],
    size: int,
    smaller: Smaller | None,
    pixels: PixelFormat,
    numbers: Sequence[int],
) -> Iterator[int]:
    for number in numbers:
        start = number * size
        write_shard(place, names[number], start, records[start : start + size], smaller, pixels)
        yield 1


def write_shard(
    place: Place, name: str, start: int, records: list[dict], smaller: Smaller | None, pixels: PixelFormat
) -> None:
    """Write one tar file, whole or not at all: the same records, the same bytes. What is no image, or a damaged one, is
    left out, and said."""
    left_out = []
    with place.written(name) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, record in enumerate(records, start=start):
            try:
                data, suffix = image_bytes(record, smaller, pixels)
            except UnreadableImageError as error:
                left_out.append(str(error))
                continue
            members = {suffix: data} | ({".cls": str(record["label"]).encode()} if "label" in record else {})
            for ending, content in members.items():
                member = tarfile.TarInfo(f"{number:09d}{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    if left_out:
        what = f"{name}: left out {len(left_out)} of {len(records)} files, which are no whole images"
        logger.warning(f"{what}, such as {printable(left_out[0])}")


def image_bytes(record: dict, smaller: Smaller | None, pixels: PixelFormat) -> tuple[bytes, str]:
    """The file of a record as it is, or made smaller, and its suffix; PNG where the data set has arrays in memory. It
    is decoded to know that it is whole.

    Raises:
        UnreadableImageError: no image, a damaged one, or one that is too large to be read.
        UserError: a file that cannot be read, or that shards or JPEG cannot hold.
    """
    if "image" in record:
        data = cv2.imencode(".png", record["image"][..., ::-1])[1].tobytes()
        picture, suffix = Picture(data, "an image of the data set"), ".png"
    else:
        with translated("packing an image"):
            seen = replace(pixels, bits=None)  # what has more bits keeps its bytes, see decoded
            picture, suffix = open_record(record, seen), Path(record["file_name"]).suffix.lower()
        if WINDOW in record:
            suffix = ".tif" if picture.data.startswith(TIFF_MAGICS) else ".pnm"
        readable = SUFFIXES | deep_images().SUFFIXES
        expect(suffix in readable, f"{picture.name}: expected a file ending in one of {', '.join(sorted(readable))}")
    image = decoded(picture, smaller)
    if smaller and min(image.shape[:2]) > smaller.short_side:
        return make_smaller(image, picture.name, smaller), ".jpg"
    return picture.data, suffix


def decoded(picture: Picture, smaller: Smaller | None) -> np.ndarray:
    """(H, W, C) uint8; nothing, (0, 0), of an image with more bits, which keeps its bytes. Raises: see image_bytes."""
    try:
        return picture.decode()
    except DeepImageError as error:
        name = f"{picture.name} has more than 8 bits a sample, which JPEG cannot hold"
        if smaller:
            raise UserError(f"{name}: expected images of 8 bits, or no --short-side") from error
        return np.empty((0, 0), np.uint8)


def make_smaller(pixels: np.ndarray, name: str, smaller: Smaller) -> bytes:
    """A JPEG, whose short side is ``smaller.short_side``, of an image (H, W, 3) uint8 that is called ``name``."""
    height, width = pixels.shape[:2]
    size = [round(side * smaller.short_side / min(height, width)) for side in (width, height)]
    what = f"{name} would become a JPEG of {size[0]} x {size[1]} px"
    expect(max(size) <= MAX_JPEG_SIDE, f"{what}: expected at most {MAX_JPEG_SIDE}, so cut it in parts")
    file = io.BytesIO()
    # By means of blocks first, down to 3 times the size: a third of the time, on average 0.3 grey levels away.
    small = Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS, reducing_gap=3)
    small.save(file, "JPEG", quality=smaller.quality)
    return file.getvalue()


def without_links_out(records: Records, name: str) -> Records:
    """The records of a data set without images that are links out of a folder in its ``name``, or of their own where it
    names none: who passes shards on has not seen what lies there. The folders may be links themselves.

    Raises UserError where nothing is left.
    """
    if records[0].keys() & {"offset", "image"}:
        return records
    parts = map(os.path.expanduser, re.split(r":(?!//)", name)[1:])
    named = [part for part in parts if os.path.isdir(part)]

    @functools.cache
    def leads_out(path: str, folder: str) -> bool:
        place = next((root for root in named if Path(folder).is_relative_to(root)), folder)
        return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(place))

    def is_out(file: str) -> bool:
        folder = os.path.dirname(file)
        return leads_out(file if os.path.islink(file) else folder, folder)

    links = {record["file_name"] for record in records if is_out(record["file_name"])}
    if not links:
        return records
    way_out = "name that folder itself, or in a list the files that they lead to"
    which = f"links out of their folder such as {min(links)}"
    line = f"left out {len(links):,} of {len(records):,} images, {which}: {way_out}"
    expect(len(links) < len(records), line)
    logger.warning(printable(line))
    return [record for record in records if record["file_name"] not in links]
