#!/usr/bin/env python
"""Carry the labels of a video's first frame, or of any, through all its frames, by the frozen features of any start.

    python tools/propagate.py --weights imagenet:efficientnet_lite0 --frames /data/film.mp4 --masks /data/first.png \\
        --output output/labels
    python tools/propagate.py --weights imagenet:efficientnet_lite0 --frames /data/videos --masks /data/masks \\
        --output output/labels --processes 2

Nothing is trained, and no GPU is needed: a cell of a frame takes the labels of the most similar cells of earlier
frames, as in the evaluation on DAVIS. A frame follows from the last mask before it that is given, and frames before the
first one follow from that, backwards: where an object is lost, correct that frame's mask, add it to --masks, and give
another --output. Writes

  masks/VIDEO/FRAME.png       ids of objects, with DAVIS's palette
  data_set.json               a COCO data set with boxes, masks and track_id
  label_studio.json, .xml     tasks with brush labels for Label Studio, and the interface that they need
  cvat/VIDEO.xml              "CVAT for video 1.1"
  sheets/VIDEO.png            some frames with their objects; look at these first
  frames/VIDEO/000000.jpg     the frames of a video file

The same command continues where it was interrupted, after the last frame that it has written.
KEY VALUE pairs change how labels spread, such as LABEL_PROPAGATION.RADIUS 12.0, in cells of the map.
"""

import argparse
import os
from functools import partial

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import expect_all_uncorrected, expect_uncorrected, make_folder
from revisit.jobs.options import add_runner_options, runner_of

RECIPE = "projects/FrozenEvaluations/configs/propagation/any_start.yaml"


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "weights", required=True)
    add(parser, "frames", required=True, help="folders of frames, folders of such folders, or video files")
    masks = "PNGs of ids, 1 for the first object, called as their frames; one alone that is called otherwise is of the"
    masks += " first frame. Of several videos a folder, with VIDEO.png, of the first frame, and VIDEO/FRAME.png"
    add(parser, "masks", help=masks)
    boxes = (
        "in place of --masks: of one video X0 Y0 X1 Y1 in px of the first frame, for each object, or a data set such"
    )
    boxes += " as coco:FRAMES:FILE, with one frame's"
    add(parser, "boxes", nargs="+", default=[], type=str, metavar="BOX", help=boxes)
    add(parser, "output", required=True)
    add(parser, "config-file", default=RECIPE, help=f"protocol and, of ResNets, the map {DEFAULT}")
    add_runner_options(parser)
    add(parser, "opts")
    return parse(parser)


def main() -> None:
    args = parse_args()
    expect(bool(args.masks) != bool(args.boxes), "nothing to propagate: expected --masks, or --boxes in their place")
    from projects.Labels.given_masks import given_boxes, given_masks
    from projects.Labels.propagated_files import write_files
    from projects.Labels.propagating import (
        PARTS,
        config_and_network,
        network_again,
        passes_of,
        propagate,
        remove_parts,
        settings_of,
        write_given,
    )
    from projects.Labels.video_frames import find_videos, records_of, with_frames
    from revisit.boxes.coco_files import folder_of
    from revisit.data.images.deep_images import pixel_format
    from revisit.data.sources.records import fingerprint
    from revisit.engine.freed_memory import keep_freed_memory
    from revisit.jobs.record import Record
    from revisit.jobs.runner import PerProcess

    runner = runner_of(args)
    make_folder(args.output, "--output")
    expect_uncorrected(args.output / "data_set.json")
    if not (args.output / PARTS).exists():  # an interrupted call replaces what an earlier one has recorded
        expect_all_uncorrected(args.output)
    videos = find_videos(args.frames, args.output)
    named = (args.weights, args.config_file, args.opts)
    cfg, network = config_and_network(*named)
    keep_freed_memory(cfg.MODEL.DEVICE)
    given_by, words = (given_masks, args.masks) if args.masks else (given_boxes, args.boxes)
    with runner.alone(args.output):
        videos = [with_frames(video, args.output) for video in videos]
        given = [given_by(video, words, alone=len(videos) == 1) for video in videos]
        pairs = list(zip(videos, given, strict=True))
        masks = {"masks": [its.digests(video) for video, its in pairs], "classes": list(given[0].classes)}
        frames = records_of(videos)
        of_frames = {"frames": fingerprint(frames), "folder": os.path.realpath(folder_of(frames))}
        Record(args.output, {**of_frames, **masks, **settings_of(cfg, network)}).claim()
        for video, its in pairs:
            write_given(args.output, video, its)
    with runner.in_charge(args.output / "parts.in_charge"):
        passes = [each for video, its in pairs for each in passes_of(video, its.numbers, args.output)]
        propagate(cfg, PerProcess(partial(network_again, *named), network), passes, args.output, runner)
        for line in write_files(args.output, videos, given, args.weights, pixel_format(cfg)):
            print(line, flush=True)
        remove_parts(args.output, passes)


if __name__ == "__main__":
    run_command(main)
