#!/usr/bin/env python
"""Pack a data set into tar files (WebDataset's layout) and index them.

    python tools/make_shards.py --data coco_2017_train_images --output $DETECTRON2_DATASETS/coco_shards
    python tools/train_net.py --config-file configs/pretrain/knn_moco.yaml --num-gpus 2 \\
        DATASETS.TRAIN "('shards:$DETECTRON2_DATASETS/coco_shards',)"

A file system or an object store is then asked for one large file instead of thousands of small ones; order and batches
stay what the sampler makes them. Images keep their bytes; where each has one class, it comes along. What is no image, a
damaged one, or a link out of the folder that is named is left out, and counted. What is done already is kept, so an
interrupted call resumes where it stopped. --output may be a folder, or any place that fsspec writes (s3://bucket/train,
with that protocol's own package installed), which gets whole files only, the index last.

To train from photographs that are far larger than its crops need, --short-side N packs JPEGs of that size instead of
images that are larger.

Of tar files in WebDataset's layout from elsewhere, it makes the index, where no --data are given:

    python tools/make_shards.py --output /data/shards

At a URL their headers are read, not the images, of many tar files at a time.
"""

from projects.LargeData.places import place_of
from revisit.command.options import add, named, parse, parser_of
from revisit.engine.command import natural, run_command
from revisit.errors import expect
from revisit.jobs.options import add_runner_options, runner_of

PROCESSES = 4  # shards written at a time


def main() -> None:
    """Write the shards, then their index."""
    parser = parser_of(__doc__, __file__)
    data = "a name or KIND:PATH, as in DATASETS.TRAIN, or a folder of photographs"
    add(parser, "data", help=f"{data}; without it the *.tar in PLACE get their index.npz")
    add(parser, "output", type=place_of, required=True, metavar="PLACE", help="folder or URL of the tar files")
    size = "images per shard: 100 MB to 1 GB suit most stores (default: %(default)s, 330 MB of COCO)"
    add(parser, "count", default=2000, help=size)
    shorter = "pack images whose short side is longer as JPEGs of this one, upright; others keep their bytes"
    add(parser, "short-side", help=shorter)
    add(parser, "rule", type=named({"quality": natural}), help="quality=N: of these JPEGs, 1 to 100 (default: 90)")
    add_runner_options(parser, PROCESSES)
    args = parse(parser)
    quality = dict(args.rule).get("quality")
    expect(bool(args.data) or not args.short_side, "--short-side makes images smaller: expected --data with it")
    expect(args.short_side or not quality, "--rule quality is for JPEGs that are made: expected --short-side with it")
    from projects.LargeData.packing import QUALITY, Smaller, make_shards, read_manifest, without_links_out
    from projects.LargeData.shard_index import INDEX
    from projects.LargeData.shards import MAX_SHORT_SIDE, write_index
    from revisit.data.sources.catalog import get_records
    from revisit.data.sources.class_names import names_of

    smaller = Smaller(args.short_side, quality or QUALITY) if args.short_side else None
    if smaller:
        side, quality = smaller
        expect(side <= MAX_SHORT_SIDE, f"--short-side is {side}: expected at most {MAX_SHORT_SIDE} px")
        expect(quality <= 100, f"--rule quality={quality}: expected at most 100")
    runner = runner_of(args, PROCESSES)
    if not args.data:
        names, records = list(args.output.states()), []
        expect(bool(names), f"no *.tar in {args.output}: expected tar files in WebDataset's layout, or --data to pack")
    else:
        records = without_links_out(get_records(args.data), args.data)
        classes = names_of(args.data) if "label" in records[0] else []
        names = make_shards(records, args.output, args.count, runner, smaller, classes)
    manifest = read_manifest(args.output)
    index = write_index(args.output, names, manifest.get("short_side", 0), manifest.get("classes", []))
    left_out = max(0, len(records) - len(index.shard))
    without = f"; {left_out:,} files of {len(records):,} were no whole images and are left out" if left_out else ""
    print(f"{args.output}/{INDEX}: {len(index.shard):,} images in {len(names):,} shards{without}")
    print(f"in configs: DATASETS.TRAIN \"('shards:{args.output}',)\"")


if __name__ == "__main__":
    run_command(main)
