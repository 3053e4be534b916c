#!/usr/bin/env python
"""Pack a data set into tar files (WebDataset's layout) and index them.

    python tools/make_shards.py --dataset coco_2017_train_images --output $DETECTRON2_DATASETS/coco_shards
    python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2 \\
        DATASETS.TRAIN "('shards:$DETECTRON2_DATASETS/coco_shards',)"

A file system or an object store is then asked for one large file instead of thousands of small ones; order and batches
stay what the sampler makes them. Images keep their bytes; where each has one class, it comes along. What is
done already is kept, so an interrupted call resumes where it stopped. The folder can be copied anywhere that fsspec
reads (s3://..., gs://...: with that protocol's own package installed).

To train from photographs that are far larger than its crops need, --short-side N packs JPEGs of that size instead of
images that are larger.

Of tar files in WebDataset's layout from elsewhere, --index-only makes the index:

    python tools/make_shards.py --index-only --output /data/shards
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from revisit.engine.command import natural, run_command
from revisit.errors import UserError, expect, translated
from revisit.files import make_folder, output_path, written_whole

if TYPE_CHECKING:  # numpy and OpenCV take a second to import: not before the command line is understood
    from revisit.data.images.reader import Picture

MANIFEST = "shards.json"
QUALITY = 90  # of JPEG
MAX_JPEG_SIDE = 65500  # px, libjpeg's


class Smaller(NamedTuple):
    """How images are made smaller."""

    short_side: int  # px
    quality: int  # of JPEG, 1 to 100


def main() -> None:
    """Write the shards, then their index."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dataset", metavar="NAME", help="a name or KIND:PATH, as in DATASETS.TRAIN")
    what.add_argument("--index-only", action="store_true", help="only write index.npz for the *.tar in DIR")
    add = parser.add_argument
    add("--output", type=output_path, required=True, metavar="DIR", help="folder of the tar files")
    size = "100 MB to 1 GB per shard suit most stores (default: %(default)s, 330 MB of COCO)"
    add("--images-per-shard", type=natural, default=2000, metavar="N", help=size)
    add("--workers", type=natural, default=4, metavar="W", help="shards written at a time (default: %(default)s)")
    shorter = "pack images whose short side is longer as JPEGs of this one, upright; others keep their bytes"
    add("--short-side", type=natural, metavar="PX", help=shorter)
    add("--quality", type=natural, metavar="Q", help=f"of these JPEGs, 1 to 100 (default: {QUALITY})")
    args = parser.parse_args()
    expect(not args.index_only or not args.short_side, "--short-side makes images smaller: expected --dataset with it")
    expect(args.short_side or not args.quality, "--quality is for JPEGs that are made: expected --short-side with it")
    import projects.ToyScenes  # noqa: F401  (knows the names of its data sets)
    from revisit.data.shards import INDEX, MAX_SHORT_SIDE, write_index
    from revisit.data.sources.catalog import get_records

    smaller = Smaller(args.short_side, args.quality or QUALITY) if args.short_side else None
    if smaller:
        side, quality = smaller
        expect(side <= MAX_SHORT_SIDE, f"--short-side is {side}: expected at most {MAX_SHORT_SIDE} px")
        expect(quality <= 100, f"--quality is {quality}: expected at most 100")
    if args.index_only:
        paths = sorted(args.output.glob("*.tar"))
        expect(bool(paths), f"no *.tar in {args.output}: expected tar files in WebDataset's layout")
    else:
        paths = make_shards(get_records(args.dataset), args.output, args.images_per_shard, args.workers, smaller)
    short_side = read_manifest(args.output).get("short_side", 0)
    index = write_index(args.output, paths, short_side)
    print(f"{args.output / INDEX}: {len(index.shard):,} images in {len(paths):,} shards")
    print(f"in configs: DATASETS.TRAIN \"('shards:{args.output}',)\"")


def make_shards(
    records: list[dict], output: Path, images_per_shard: int, workers: int, smaller: Smaller | None = None
) -> list[Path]:
    """Write the shards of the records that are not there yet; returns the paths of all.

    Raises UserError for a data set with more than classes, and for a folder that has shards made otherwise.
    """
    more = sorted(records[0].keys() & {"offset", "annotations", "labels", "sem_seg_file_name", "depth_file_name"})
    what = "is in shards already" if "offset" in more else f"has {' and '.join(more)}, which shards do not hold"
    expect(not more, f"the data set {what}: expected images with one class each, or none (folder:DIR packs any images)")
    make_folder(output, "--output")
    check_manifest(output, records, images_per_shard, smaller)
    starts = range(0, len(records), images_per_shard)
    digits = max(6, len(str(len(starts) - 1)))
    parts = {output / f"shard-{number:0{digits}d}.tar": start for number, start in enumerate(starts)}
    todo = {path: records[start : start + images_per_shard] for path, start in parts.items() if not path.exists()}
    done = len(records) - sum(map(len, todo.values()))
    from tqdm import tqdm

    bar = tqdm(total=len(records), initial=done, unit="image", desc="writing shards", disable=None)
    # The reader too silences PIL, but of several threads that do so the last may not restore what the first found.
    with bar, warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
        warnings.simplefilter("ignore")
        jobs = [pool.submit(write_shard, path, parts[path], part, smaller) for path, part in todo.items()]
        try:
            for job in as_completed(jobs):
                bar.update(job.result())
        except BaseException:  # Ctrl-C too: shards that have not begun are not waited for
            pool.shutdown(cancel_futures=True)
            raise
    return list(parts)


def check_manifest(output: Path, records: list[dict], images_per_shard: int, smaller: Smaller | None) -> None:
    """Note in shards.json what is packed; raises UserError if the folder was begun with something else."""
    from revisit.data.sources.records import changes, fingerprint

    images = fingerprint(records)
    sizes = {"images_per_shard": images_per_shard} | (smaller._asdict() if smaller else {})
    manifest = {"images": images, **sizes}
    if earlier := read_manifest(output):
        with translated(f"comparing with {output / MANIFEST}"):
            other = [f"other images, by {word}" for word in changes(earlier.pop("images"), images)]
        other += ["another size (--images-per-shard, --short-side, --quality)"] if earlier != sizes else []
        expect(not other, f"{output} has shards made otherwise: {', '.join(other)}; choose another --output")
    elif any(output.glob("*.tar")):
        raise UserError(f"{output} has tar files of somebody else: choose another --output, or --index-only for those")
    with written_whole(output / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=2))


def read_manifest(output: Path) -> dict:
    """What shards.json notes; nothing where there is none."""
    path = output / MANIFEST
    with translated(f"reading {path}"):
        return dict(json.loads(path.read_text())) if path.exists() else {}


def write_shard(path: Path, start: int, records: list[dict], smaller: Smaller | None) -> int:
    """Write one tar file, whole or not at all: the same records, the same bytes. Returns the number of images."""
    with written_whole(path) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, record in enumerate(records, start=start):
            data, suffix = image_bytes(record, smaller)
            members = {suffix: data} | ({".cls": str(record["label"]).encode()} if "label" in record else {})
            for ending, content in members.items():
                member = tarfile.TarInfo(f"{number:09d}{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return len(records)


def image_bytes(record: dict, smaller: Smaller | None) -> tuple[bytes, str]:
    """The file of a record as it is, or made smaller, and its suffix; PNG where the data set has arrays."""
    import cv2

    from revisit.data.images.opening import SUFFIXES
    from revisit.data.images.reader import Picture, open_record

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
    from PIL import Image

    from revisit.data.images.reader import UnreadableImageError

    try:
        pixels = picture.decode()
    except UnreadableImageError as error:
        deep = "INPUT.BIT_DEPTH" in str(error)
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


if __name__ == "__main__":
    run_command(main)
