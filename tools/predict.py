#!/usr/bin/env python
"""Predict for image files, folders of images and videos, without a data set: pictures, and one JSON of all objects.

    python tools/predict.py --config-file configs/toy/detection.yaml --output output/found photos/ film.mp4 \\
        --opts MODEL.WEIGHTS output/toy/detection/model_final.pth

The output folder gets a picture of every image, by its name, and a video of every video. Of a detector,
predictions.json has the objects in COCO's result format, and images.json the images and classes that its numbers mean,
so that pycocotools reads them by COCO("images.json").loadRes("predictions.json"). Of a segmenter, classes/NAME.png has
the class of each pixel, of a depth network depth/NAME.png the millimetres. Names of classes come from the checkpoint.
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command
from revisit.errors import expect


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config-file", required=True, metavar="FILE", help="of the finetuned model, as for tools/train_net.py")
    add("--output", required=True, type=Path, metavar="DIR", help="folder for pictures and JSON, created if needed")
    scores = "detection: find objects that score at least this, 0 to 1 (default: %(default)s)"
    add("--score-threshold", type=float, default=0.5, metavar="S", help=scores)
    add("inputs", nargs="+", type=Path, metavar="PATH", help="image files, folders of them, videos")
    opts = "last: KEY VALUE pairs over the config, MODEL.WEIGHTS FILE and others"
    add("--opts", nargs=argparse.REMAINDER, default=[], help=opts)
    parser.set_defaults(num_gpus=1, num_machines=1, resume=False)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from projects.Predict.file_predictions import FilePredictor, find_sources
    from projects.Predict.predictions import TASKS, set_score_threshold
    from revisit.engine.bit_depth_of_run import resolve_bit_depth
    from revisit.engine.setup import make_config
    from revisit.files import make_folder

    cfg = make_config(args.config_file, args.opts)
    architecture = cfg.MODEL.META_ARCHITECTURE
    expect(architecture in TASKS, f"MODEL.META_ARCHITECTURE {architecture} predicts nothing: expected {list(TASKS)}")
    set_score_threshold(cfg, args.score_threshold)
    sources = find_sources(args.inputs, args.output)
    resolve_bit_depth(cfg, [{"file_name": str(source.path)} for source in sources if not source.is_video])
    make_folder(args.output, "--output")
    predictor = FilePredictor(cfg, args.output)
    predictor.run(sources)
    for message in predictor.unreadable:
        print(f"left out: {message}")
    done = len(sources) - len(predictor.unreadable)
    expect(done > 0, "none of the inputs can be read")
    print(f"{done} of {len(sources)} files: pictures and JSON are in {args.output}")


if __name__ == "__main__":
    run_command(main)
