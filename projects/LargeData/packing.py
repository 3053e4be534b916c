"""Write a data set into tar files, whole or smaller images: what tools/make_shards.py does."""

import io
import json
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
from PIL import Image

from projects.common.runners.job import Job, Runner
from projects.LargeData.places import Place, asking
from revisit.data.images.deep_images import DeepImageError
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.opening import SUFFIXES
from revisit.data.images.reader import Picture, open_record
from revisit.data.sources.records import changes, fingerprint
from revisit.errors import UserError, expect, translated

MANIFEST = "shards.json"
QUALITY = 90  # of JPEG
MAX_JPEG_SIDE = 65500  # px, libjpeg's


class Smaller(NamedTuple):
    """How images are made smaller."""

    short_side: int  # px
    quality: int = QUALITY  # of JPEG, 1 to 100


def make_shards(
    records: list[dict], place: Place, images_per_shard: int, runner: Runner, smaller: Smaller | None = None
) -> list[str]:
    """Write the shards of the records that are not there yet; returns the names of all.

    Raises:
        SystemExit: in a process that has made its share of the shards, where another one writes their index.
        UserError: a data set with more than classes, or a folder that has shards made otherwise.
    """
    more = sorted(records[0].keys() & {"offset", "annotations", "labels", "sem_seg_file_name", "depth_file_name"})
    what = "is in shards already" if "offset" in more else f"has {' and '.join(more)}, which shards do not hold"
    expect(not more, f"the data set {what}: expected images with one class each, or none (folder:DIR packs any images)")
    place.make()
    with runner.alone(place.folder):
        check_manifest(place, records, images_per_shard, smaller)
    count = len(range(0, len(records), images_per_shard))
    digits = max(6, len(str(count - 1)))
    names = [f"shard-{number:0{digits}d}.tar" for number in range(count)]
    make = partial(_write_parts, place, names, records, images_per_shard, smaller)
    lock = place.folder and place.folder / ".index.lock"
    # The reader too silences PIL, but of several threads that do so the last may not restore what the first found.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner.run(Job("writing shards", names, place.sizes, make, str(place), lock, in_threads=True))
    return names


def check_manifest(place: Place, records: list[dict], images_per_shard: int, smaller: Smaller | None) -> None:
    """Note in shards.json what is packed; raises UserError if the place was begun with something else."""
    images = fingerprint(records)
    sizes = {"images_per_shard": images_per_shard} | (smaller._asdict() if smaller else {})
    manifest = {"images": images, **sizes}
    if earlier := read_manifest(place):
        with translated(f"comparing with {place}/{MANIFEST}"):
            other = [f"other images, by {word}" for word in changes(earlier.pop("images"), images)]
        other += ["another size (--images-per-shard, --short-side, --quality)"] if earlier != sizes else []
        expect(not other, f"{place} has shards made otherwise: {', '.join(other)}; choose another --output")
    elif place.sizes():
        raise UserError(f"{place} has tar files of somebody else: choose another --output, or --index-only for those")
    with place.written(MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=2))


def read_manifest(place: Place) -> dict:
    """What shards.json notes; nothing where there is none."""
    with asking(f"reading {place}/{MANIFEST}"):
        content = place.read(MANIFEST)
        return {} if content is None else dict(json.loads(content))


def _write_parts(
    place: Place, names: list[str], records: list[dict], size: int, smaller: Smaller | None, numbers: Sequence[int]
) -> Iterator[int]:
    for number in numbers:
        start = number * size
        write_shard(place, names[number], start, records[start : start + size], smaller)
        yield 1


def write_shard(place: Place, name: str, start: int, records: list[dict], smaller: Smaller | None) -> None:
    """Write one tar file, whole or not at all: the same records, the same bytes."""
    with place.written(name) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, record in enumerate(records, start=start):
            data, suffix = image_bytes(record, smaller)
            members = {suffix: data} | ({".cls": str(record["label"]).encode()} if "label" in record else {})
            for ending, content in members.items():
                member = tarfile.TarInfo(f"{number:09d}{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def image_bytes(record: dict, smaller: Smaller | None) -> tuple[bytes, str]:
    """The file of a record as it is, or made smaller, and its suffix; PNG where the data set has arrays."""
    if "image" in record:
        data = cv2.imencode(".png", record["image"][..., ::-1])[1].tobytes()
        picture, suffix = Picture(data, "an image of the data set"), ".png"
    else:
        with translated("packing an image"):
            picture, suffix = open_record(record), Path(record["file_name"]).suffix.lower()
        expect(suffix in SUFFIXES, f"{picture.name}: expected a file ending in one of {', '.join(sorted(SUFFIXES))}")
    if smaller and (jpeg := make_smaller(picture, smaller)):
        return jpeg, ".jpg"
    return picture.data, suffix


def make_smaller(picture: Picture, smaller: Smaller) -> bytes | None:
    """A JPEG whose short side is ``smaller.short_side``; None of an image that is no larger, or that cannot be read."""
    try:
        pixels = picture.decode()
    except UnreadableImageError as error:
        deep = isinstance(error, DeepImageError)
        name = f"{picture.name} has more than 8 bits a sample, which JPEG cannot hold"
        expect(not deep, f"{name}: expected images of 8 bits, or no --short-side")
        return None
    height, width = pixels.shape[:2]
    if min(height, width) <= smaller.short_side:
        return None
    size = [round(side * smaller.short_side / min(height, width)) for side in (width, height)]
    name = f"{picture.name} would become a JPEG of {size[0]} x {size[1]} px"
    expect(max(size) <= MAX_JPEG_SIDE, f"{name}: expected at most {MAX_JPEG_SIDE}, so cut it in parts")
    file = io.BytesIO()
    # By means of blocks first, down to 3 times the size: a third of the time, on average 0.3 grey levels away.
    small = Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS, reducing_gap=3)
    small.save(file, "JPEG", quality=smaller.quality)
    return file.getvalue()
