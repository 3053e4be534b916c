#!/usr/bin/env python
"""Find objects in photographs that nobody labelled, by the frozen features of a start: boxes, masks and a sheet.

    python tools/discover.py --weights imagenet:efficientnet_lite0 --data folder:/data/photos --output output/found

Writes data_set.json, a COCO data set of one class with masks, for a detector or for an annotation tool; proposals.json,
boxes with scores for OBJECTS.PROPOSALS; and found.png, some images with their best boxes. The same command continues
where it was interrupted, and ends with what to expect of the boxes: likely objects, doubtful, or background. Where
--data has boxes of its own, of any classes, the found ones are scored against them.
Small objects, and those in images too large for one look, are found in windows, such as --data
tiles:256+64:folder:/data/photos; the files are of whole images all the same.
Which parts of an image count as objects: projects/Discover/README.md.
"""

import argparse
from functools import partial

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.files import expect_uncorrected, make_folder
from revisit.jobs.options import add_runner_options, runner_of


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "weights", "data", required=True)
    add(parser, "output", required=True)
    add(parser, "count", default=30, help=f"the most objects of an image {DEFAULT}")
    add(parser, "short-side", default=480, help=f"to which an image is resized {DEFAULT}")
    add(parser, "stride")
    maps = f"maps of the backbone, or of the pyramid (FPN) in the weights {DEFAULT}"
    add(parser, "features", choices=("backbone", "pyramid"), help=maps)
    add_runner_options(parser)
    return parse(parser)


def main() -> None:
    args = parse_args()
    from projects.Discover.discovery import RULES, discover
    from projects.Discover.scores import class_agnostic_scores
    from projects.Discover.sheet import save_found
    from projects.Discover.tiled import in_whole_images, to_look_at, windows_of_images
    from projects.Discover.verdict import LIKELY_OBJECTS, verdict
    from projects.Tiles.tiled_names import tiling_and_name
    from revisit.boxes.coco_files import folder_of, same_names, write_data_set, write_results
    from revisit.data.images.deep_images import format_of
    from revisit.data.sources.catalog import get_records, register
    from revisit.data.sources.file_names import expect_file_names
    from revisit.data.sources.records import fingerprint
    from revisit.engine.freed_memory import keep_freed_memory
    from revisit.jobs.record import Record
    from revisit.jobs.runner import PerProcess
    from revisit.network.dense_features import DenseFeatures

    runner = runner_of(args)
    keep_freed_memory("cpu")
    tiling, data = tiling_and_name(args.data)
    register(data)
    whole = list(get_records(data))
    expect_file_names(whole, f"--data {args.data}")
    records = windows_of_images(whole, tiling) if tiling else whole
    dense = partial(DenseFeatures, args.weights, args.stride, args.short_side, args.features == "pyramid")
    made = dense(records)
    features = PerProcess(partial(dense, made.flags), made)
    looked_at = fingerprint(records, labels=False)  # parts are by place: with one image more they would be of others
    settings = {**made.settings, "boxes": args.count, "images": looked_at, "rules": RULES}
    make_folder(args.output, "--output")
    data_set = args.output / "data_set.json"
    expect_uncorrected(data_set)
    with runner.alone(args.output):
        Record(args.output, settings).claim()
    pixels = format_of(made.flags, records)
    images = discover(records, pixels, features, args.output, args.count, runner)
    judged = verdict(images)
    if tiling:
        images = list(in_whole_images(whole, records, images, args.count))
    folder = folder_of(images, data)
    count = write_data_set(data_set, images, folder=folder, info=judged._asdict())
    save_found(args.output / "found.png", [to_look_at(image) for image in images] if tiling else images, pixels)
    alike = same_names(images)
    if alike:
        print(f"no proposals.json: {alike}")
    else:
        write_results(args.output / "proposals.json", images)
    without = sum(not image["objects"] for image in images)
    empty = f", {without} of them without any" if without else ""
    of_all = f"{count} box{'es' * (count != 1)} in {len(images)} of {len(whole)} images{empty}"
    print(f"{of_all}; at most {args.count} each, the best first: {args.output / 'found.png'}")
    print(judged)
    if judged.verdict != LIKELY_OBJECTS and not tiling:
        print(f"objects much smaller than the image are found in windows: --data tiles:320+64:{data}")
    print(f"a detector learns them as coco:{folder}:{data_set}")
    if all("annotations" in record for record in whole):
        scores = class_agnostic_scores(images)
        print(f"against the boxes of {args.data}: AP50 {scores['AP50']:.1f}, recall {scores['recall50']:.1f} %")


if __name__ == "__main__":
    run_command(main)
