"""Draws the ToyScenes data set: see ``--help``."""

import argparse
import sys
from concurrent.futures.process import BrokenProcessPool
from typing import NoReturn

from projects.ToyScenes import make_toy_scenes
from revisit.errors import UserError

_EPILOG = """\
example:
  export DETECTRON2_DATASETS=~/datasets
  python projects/ToyScenes/make_toy_scenes.py --output $DETECTRON2_DATASETS/toy_scenes

  draws 2000 train and 500 held-out images of each kind, in well under a minute on two cores:

  toy_scenes/
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

  The ten classes are five shapes, each striped or dotted; colour says nothing about the class. Held-out
  images show the same classes in textures, colours, light and backgrounds that no train image has.
  The same seed gives the same bytes on any number of workers.

  A quick look:  python projects/ToyScenes/make_toy_scenes.py --output /tmp/toy_scenes --num-images 60
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"make_toy_scenes: {message}; --help shows an example\n")


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = _Parser(
        description="Draw ToyScenes, a small image world with exact boxes, masks and depth.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="folder to make")
    add(
        "--num-images",
        type=int,
        default=2000,
        metavar="N",
        help="images in each train set, at least 10; held-out sets get N // 4 (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="another seed, another data set (default: %(default)s)")
    add("--size", type=int, default=128, metavar="PX", help="64 to 512 pixels a side (default: %(default)s)")
    add(
        "--long-tailed",
        action="store_true",
        help="class k = 1..10 of the train sets has weight k**-1.5 (default: all alike)",
    )
    add("--workers", type=int, metavar="W", help="processes that draw (default: one per CPU core)")
    add("--overwrite", action="store_true", help="replace ToyScenes in DIR; deletes nothing else, ever")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    args = _parse(argv)
    try:
        written = make_toy_scenes(**vars(args), progress=True)
    except UserError as error:
        status, mistake = UserError.EXIT_CODE, str(error)
    except OSError as error:
        remedy = "expected a writable folder with room left: choose another --output"
        status, mistake = 2, f"cannot write {args.output}: {error}; {remedy}"
    except BrokenProcessPool:
        killed = "a drawing process was killed, perhaps for lack of memory"
        status, mistake = 1, f"{killed}; nothing was written: try --workers 1"
    except KeyboardInterrupt:
        status, mistake = 130, "interrupted; nothing was written"
    else:
        print(f"ToyScenes is in {args.output}" + ("" if written else " already; nothing to do"))
        return 0
    print(f"make_toy_scenes: {mistake}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
