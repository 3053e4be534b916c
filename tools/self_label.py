#!/usr/bin/env python
"""Label images by a detector of your own, for a round of self-training: a data set with the boxes that it is sure of.

    python tools/self_label.py --weights output/boxes/model_final.pth \\
        --data coco:/data/photos:output/found/data_set.json --score-threshold 0.7 --output output/found_2

Writes data_set.json, a COCO data set with the detector's classes. Boxes that --data has already stay, where the
detector finds none of an IoU above 0.5. Masks are kept where the detector has masks. Images that somebody labelled are
better left out, and learned from next to the others:

    python tools/self_label.py --weights output/own/few_labels/model_final.pth --data folder:/data/photos \\
        --labelled coco:/data/photos:/data/boxes.json --score-threshold 0.7 --output output/labelled

A detector that sees tiles (INPUT.TILES), and any with --data tiles:1024+128:folder:/data/scans, looks at windows; what
it finds is merged in whole images. docs/choosing-a-start.md has the path.
"""

import argparse
from functools import partial
from pathlib import Path

from projects.Predict.command_line import add_network_options
from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import expect_uncorrected, make_folder


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add_network_options(parser, "take boxes")
    add(parser, "data", required=True, help="a data set, with boxes or without, such as folder:/data/photos")
    add(parser, "labelled", help="a data set: its images, with boxes or empty, are not labelled again")
    add(parser, "output", required=True)
    add(parser, "opts")
    return parse(parser)


def main() -> None:
    args = parse_args()
    from projects.Discover.self_labels import in_whole, in_windows, self_labelled, without_labelled
    from projects.Predict.predictions import Predictor, finetuned_config, heads_of, set_score_threshold
    from projects.Tiles.tiled_names import tiling_and_name
    from projects.Tiles.tiled_predictions import some_windows
    from projects.Tiles.tiling_of_run import expect_tiles
    from projects.Tiles.windows import Tiling
    from revisit.boxes.coco_files import folder_of, write_data_set
    from revisit.checkpoint.run_folder import trained_network
    from revisit.data.sources.catalog import get_records
    from revisit.data.sources.file_names import expect_file_names
    from revisit.evaluation.box_evaluators import tasks_of
    from revisit.keys import DETECTORS, Facts, resolve_auto_values

    from detectron2.data import MetadataCatalog

    data_set = args.output / "data_set.json"
    expect_uncorrected(data_set)
    cfg = finetuned_config(args)
    expect(cfg.MODEL.META_ARCHITECTURE in DETECTORS, f"{cfg.MODEL.META_ARCHITECTURE} has no boxes: expected a detector")
    threshold = set_score_threshold(cfg, args)
    stated, data = tiling_and_name(args.data)
    tiling = stated or (Tiling.of(str(cfg.INPUT.TILES)) if cfg.INPUT.TILES else None)
    expect_tiles(cfg, tiling, args.data)
    records = get_records(data, trained_network(cfg).classes, whose=cfg.MODEL.WEIGHTS)
    expect_file_names(records, f"--data {args.data}")
    if args.labelled:
        count = len(records)
        records = without_labelled(records, get_records(args.labelled))
        print(f"{count - len(records)} of {count} images are labelled in {args.labelled}, and are left out")
    resolve_auto_values(cfg, Facts(records=some_windows(records, tiling) if tiling else records))
    predictor = Predictor(cfg)
    nms = heads_of(cfg).NMS_THRESH_TEST
    detect = partial(in_windows, predictor, tiling, nms) if tiling else partial(in_whole, predictor)
    labelled = self_labelled(records, detect, has_masks="segm" in tasks_of(cfg))
    sure = sum("score" in each for image in labelled for each in image["objects"])
    expect(
        sure > 0, f"no box scores {threshold:g} in {len(labelled)} of {len(records)} images: lower --score-threshold"
    )
    make_folder(args.output, "--output")
    folder = folder_of(labelled, data)
    files = [MetadataCatalog.get(name).get("json_file", "") for name in (data, args.labelled) if name]
    is_input = data_set.resolve() in [Path(file).resolve() for file in files]
    expect(not is_input, f"{data_set} is the input: give another --output")
    count = write_data_set(data_set, labelled, predictor.class_names, folder=folder)
    print(f"{count} boxes in {len(labelled)} of {len(records)} images, {sure} of them of the detector")
    print(f"a detector learns them as coco:{folder}:{data_set}")


if __name__ == "__main__":
    run_command(main)
