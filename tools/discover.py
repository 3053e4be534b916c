#!/usr/bin/env python
"""Find objects in photographs that nobody labelled, by the frozen features of a start: boxes, masks and a sheet.

    python tools/discover.py --weights imagenet:efficientnet_lite0 --images folder:/data/photos --output output/found

Writes data_set.json, a COCO data set of one class with masks, for a detector or for an annotation tool; proposals.json,
boxes with scores for OBJECTS.PROPOSALS; and found.png, some images with their best boxes. The same command continues
where it was interrupted. Where --images has boxes of its own, of any classes, the found ones are scored against them.
Which parts of an image count as objects: projects/Discover/README.md.
"""

import argparse
from functools import partial

from revisit.engine.command import natural, run_command
from revisit.files import make_folder, output_path
from revisit.jobs.options import add_runner_options, runner_of


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--weights", required=True, metavar="FILE", help="a converted backbone, a run's checkpoint, or a name")
    add("--images", required=True, metavar="NAME", help="a data set, such as folder:/data/photos")
    add("--output", required=True, type=output_path, metavar="DIR")
    add("--boxes", type=natural, default=30, metavar="N", help=f"the most objects of an image {default}")
    add("--short-side", type=natural, default=480, metavar="PX", help=f"to which an image is resized {default}")
    add("--stride", type=int, default=8, choices=(4, 8, 16, 32), help=f"px of a cell of the finer map {default}")
    add("--pyramid", action="store_true", help="maps of the pyramid (FPN) in the weights, not of the backbone")
    add_runner_options(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from projects.Discover.discovery import discover
    from projects.Discover.scores import class_agnostic_scores
    from projects.Discover.sheet import save_found
    from revisit.boxes.coco_files import folder_of, write_data_set, write_results
    from revisit.data.sources.catalog import get_records, register
    from revisit.data.sources.file_names import expect_file_names
    from revisit.data.sources.records import fingerprint
    from revisit.engine.freed_memory import keep_freed_memory
    from revisit.jobs.job import PerProcess
    from revisit.jobs.record import Record
    from revisit.network.dense_features import DenseFeatures

    runner = runner_of(args)
    keep_freed_memory("cpu")
    register(args.images)
    records = list(get_records(args.images))
    expect_file_names(records, f"--images {args.images}")
    features = PerProcess(partial(DenseFeatures, args.weights, args.stride, args.short_side, args.pyramid))
    looked_at = fingerprint(records, labels=False)  # parts are by place: with one image more they would be of others
    settings = {**features().settings, "boxes": args.boxes, "images": looked_at}
    make_folder(args.output, "--output")
    with runner.alone(args.output):
        Record(args.output, settings).claim()
    images = discover(records, features, args.output, args.boxes, runner)
    folder, data_set = folder_of(images, args.images), args.output / "data_set.json"
    count = write_data_set(data_set, images, folder=folder)
    save_found(args.output / "found.png", images)
    write_results(args.output / "proposals.json", images)
    without = sum(not image["objects"] for image in images)
    empty = f", {without} of them without any" if without else ""
    of_all = f"{count} box{'es' * (count != 1)} in {len(images)} of {len(records)} images{empty}"
    print(f"{of_all}; at most {args.boxes} each, the best first: {args.output / 'found.png'}")
    print(f"a detector learns them as coco:{folder}:{data_set}")
    if all("annotations" in record for record in records):
        scores = class_agnostic_scores(images)
        print(f"against the boxes of {args.images}: AP50 {scores['AP50']:.1f}, recall {scores['recall50']:.1f} %")


if __name__ == "__main__":
    run_command(main)
