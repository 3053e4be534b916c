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
any number of workers.

With --channels rgbd the photographs are TIFFs with depth as a fourth channel, 255 / metres, but for those of cityscapes
and DAVIS: INPUT.CHANNELS "red green blue depth". A quick look:

    python projects/ToyScenes/make_toy_scenes.py --output /tmp/toy_scenes --count 60
"""

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import translated


def main() -> None:
    parser = parser_of(__doc__, __file__)
    add(parser, "output", required=True, help="folder to make")
    add(
        parser,
        "count",
        type=int,
        default=2000,
        help=f"images in each train set, at least 10; held-out sets get N // 4 {DEFAULT}",
    )
    add(parser, "seed", type=int, help=f"another seed, another data set {DEFAULT}")
    add(parser, "size", type=int, default=128, help=f"64 to 512 pixels a side {DEFAULT}")
    add(
        parser,
        "how",
        choices=("alike", "long-tailed"),
        default="alike",
        help=f"long-tailed: class k = 1..10 of the train sets has weight k**-1.5 {DEFAULT}",
    )
    add(parser, "channels", choices=("rgb", "rgbd"), default="rgb", help=f"of the photographs {DEFAULT}")
    add(parser, "processes", type=int, help="that draw (default: one per CPU core)")
    add(parser, "replace", help="replace ToyScenes in DIR; deletes nothing else, ever")
    args = parse(parser)
    from projects.ToyScenes import make_toy_scenes  # takes seconds

    with translated(f"writing ToyScenes to --output {args.output}"):
        written = make_toy_scenes(
            args.output,
            args.count,
            seed=args.seed,
            size=args.size,
            long_tailed=args.how == "long-tailed",
            channels=args.channels,
            workers=args.processes,
            overwrite=args.replace,
        )
    print(f"ToyScenes is in {args.output}" + ("" if written else " already; nothing to do"))


if __name__ == "__main__":
    run_command(main)
