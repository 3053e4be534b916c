#!/usr/bin/env python
"""Predict for image files, folders of images and videos, without a data set: pictures, and one JSON of all objects.

    python tools/predict.py --weights output/toy/detection/model_final.pth --output output/predicted photos/ film.mp4

A run's checkpoint knows its network, classes and input; KEY VALUE pairs at the end change what concerns the test.
The output folder gets a picture of every image, by its name, and a video of every video. Of a detector,
predictions.json has the objects in COCO's result format, and images.json the images and classes that its numbers mean,
so that pycocotools reads them by COCO("images.json").loadRes("predictions.json"). data_set.json has the same objects of
image files as a COCO data set, which CVAT and FiftyOne open, label_studio.json as tasks for Label Studio, whose
interface is label_studio.xml. Objects of images with coordinates are in predictions.gpkg and predictions.geojson, too.
Images too large for one look are seen by --tiles, and scored, drawn and written as wholes; of one with more than 4,000
px a side, NAME.html zooms into all of it. Of a segmenter, classes/NAME.png has the class of each pixel, of a depth
network depth/NAME.png the millimetres. By --tiles, what is larger than 4,000 px or has a GeoTIFF's coordinates is a
NAME.tif, in tiles, with these. Names of classes come from the checkpoint. The same command continues where it was
interrupted.
"""

import argparse

from projects.Predict.command_line import add_network_options
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import UserError, expect
from revisit.files import make_folder
from revisit.jobs.options import add_runner_options, runner_of


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add_network_options(parser, "detection: find objects")
    add(parser, "output", required=True, help="folder for pictures and JSON")
    add(parser, "no-zoom", help="no pages that zoom into scans, whose tiles take about a fifth of a byte a pixel")
    add(parser, "data", nargs="+", default=[], type=str, metavar="PATH", help="image files, folders, data sets, videos")
    parser.add_argument("inputs", nargs="*", metavar="PATH", help="the same, without --data")
    tiling = "of images too large for one look: px, +overlap and @scale, such as 1024+128@0.5; whole: none"
    add(parser, "tiles", metavar="TILING", help=f"tiles {tiling} (default: what the weights have learned from)")
    add_runner_options(parser)
    add(parser, "opts")
    args = parse(parser)
    args.data = [*args.data, *args.inputs]
    expect(bool(args.data), "nothing to look at: expected --data, image files, folders of them, or videos")
    return args


def main() -> None:
    args = parse_args()
    from projects.Pixels.channel_files import files_of_others
    from projects.Predict.amounts import objects_in_words
    from projects.Predict.file_predictions import find_sources, other_pictures
    from projects.Predict.predictions import finetuned_config, set_score_threshold
    from projects.Tiles.map_files import are_rasters, write_map
    from projects.Tiles.pixel_predictions import predictor_of
    from projects.Tiles.tiled_predictions import some_windows, tiling_to_predict
    from revisit.data.images.deep_images import pixel_format
    from revisit.keys import Facts, resolve_auto_values

    runner = runner_of(args)
    cfg = finetuned_config(args)
    threshold = set_score_threshold(cfg, args)
    tiling = tiling_to_predict(cfg, args.tiles)
    sources = find_sources(args.data, args.output)
    others = files_of_others([str(source.path) for source in sources], pixel_format(cfg).files)
    sources = [source for source in sources if str(source.path) not in others]
    try:
        images = [{"file_name": str(source.path)} for source in sources if not source.is_video]
        images = some_windows(images, tiling) if tiling else images
        resolve_auto_values(cfg, Facts(records=images))
    except UserError as error:  # an odd file among photographs: those that cannot be read so are left out
        print(f"warning: {error}")
    make_folder(args.output, "--output")
    predictor = predictor_of(cfg, args.output, tiling, zooms=not args.no_zoom)
    predictor.run(sources, runner)
    for message in predictor.unreadable:
        print(f"left out: {message}")
    for message in predictor.shorter:
        print(f"note: {message}")
    for page in predictor.pages:
        print(page)
    done = len(sources) - len(predictor.unreadable)
    expect(done > 0, "none of the inputs can be read")
    written = f"{done} of {len(sources)} files: pictures and JSON are in {args.output}"
    print(pixel_format(cfg).caption(written))
    if others := other_pictures(args.output, sources):
        print(f"note: {len(others)} other pictures are there, such as {others[0]}: of an earlier call, or of others")
    if predictor.data_set:
        print(f"as a data set: {predictor.data_set}")
        if tiling or are_rasters(predictor.files):
            print(write_map(args.output, predictor.images[: len(predictor.files)], predictor.class_names))
    if predictor.is_detector:
        print(objects_in_words(cfg, predictor, threshold))


if __name__ == "__main__":
    run_command(main)
