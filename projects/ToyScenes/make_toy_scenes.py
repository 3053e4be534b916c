#!/usr/bin/env python
"""Draw ToyScenes, a small image world with exact boxes, masks and depth.

    export DETECTRON2_DATASETS=~/datasets
    python projects/ToyScenes/make_toy_scenes.py --output $DETECTRON2_DATASETS/toy_scenes

draws 2000 train and 500 held-out images of each kind, in well under a minute on two cores:

    toy_scenes.json                      what was drawn, and with which arguments
    object_centric/{train,heldout}/      one object per image, in folders named after the class
    object_centric/{train,val,test}.txt  lists for classification: val is a fifth of train, test is heldout
    coco/{train2017,val2017}/            2 to 8 objects per image, with boxes and masks in
    coco/annotations/                      instances_{train2017,val2017}.json
    VOC2007/                             the same images as Pascal VOC: trainval and test for
                                           detection, train_aug and val for segmentation
    cityscapes/{leftImg8bit,gtFine}/     the same scenes as Cityscapes: train and val
    NYUD_MT/                             the same images as NYUD: segmentation and depth, train and val
    DAVIS/                               videos of 20 frames whose objects pass each other, as DAVIS-2017

The ten classes are five shapes, each striped or dotted; colour says nothing about the class. Held-out images show the
same classes in textures, colours, light and backgrounds that no train image has. The same seed gives the same bytes on
any number of workers. A quick look:

    python projects/ToyScenes/make_toy_scenes.py --output /tmp/toy_scenes --num-images 60
"""

import argparse

from revisit.engine.command import run_command
from revisit.errors import translated
from revisit.files import output_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--output", required=True, type=output_path, metavar="DIR", help="folder to make")
    images = f"images in each train set, at least 10; held-out sets get N // 4 {default}"
    add("--num-images", type=int, default=2000, metavar="N", help=images)
    add("--seed", type=int, default=0, help=f"another seed, another data set {default}")
    add("--size", type=int, default=128, metavar="PX", help=f"64 to 512 pixels a side {default}")
    tail = "class k = 1..10 of the train sets has weight k**-1.5 (default: all alike)"
    add("--long-tailed", action="store_true", help=tail)
    add("--workers", type=int, metavar="W", help="processes that draw (default: one per CPU core)")
    add("--overwrite", action="store_true", help="replace ToyScenes in DIR; deletes nothing else, ever")
    args = parser.parse_args()
    from projects.ToyScenes import make_toy_scenes  # takes seconds

    with translated(f"writing ToyScenes to --output {args.output}"):
        written = make_toy_scenes(**vars(args))
    print(f"ToyScenes is in {args.output}" + ("" if written else " already; nothing to do"))


if __name__ == "__main__":
    run_command(main)
