#!/usr/bin/env python
"""Cut large images into tiles, or save them so that tiles of them are read fast.

    python tools/tiles.py cut --data coco:/data/scans:/data/trees.json --tiles 1024+128 --output /data/tiles
    python tools/tiles.py convert --data /data/scans --output /data/tiled

cut writes the windows that tiles:1024+128:NAME has as files, and their boxes, masks and keypoints in COCO's format, for
other tools; nothing here needs it. Parts of objects that are less than half of them, and crowds, have iscrowd 1.
annotations.json has all windows, to_learn.json as many empty ones as there are with objects.

convert writes each image as a tiled, deflated TIFF (BigTIFF), a part at a time. It keeps the samples, the coordinates
(GeoTIFF), the names of channels and what has no data. The image of a JPEG or a PNG is decoded whole.

What is done already is kept, so an interrupted call resumes where it stopped.
"""

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder

WAYS = ("cut", "convert")


def main() -> None:
    parser = parser_of(__doc__, __file__)
    parser.add_argument("way", choices=WAYS, metavar="{cut,convert}", help="what is written: windows, or whole images")
    add(parser, "data", required=True, help="a name or KIND:PATH, as in DATASETS.TRAIN, a folder of images, or a file")
    add(parser, "tiles", help="of cut: px of a tile, +overlap and @scale, such as 1024+128@0.5")
    add(parser, "output", required=True)
    args = parse(parser)
    expect((args.way == "cut") == bool(args.tiles), "cut needs --tiles, such as 1024+128, and convert has none")
    from projects.Tiles.converting import convert
    from projects.Tiles.tile_files import write_tiles
    from projects.Tiles.windows import Tiling

    tiling = Tiling.of(args.tiles) if args.tiles else None
    make_folder(args.output, "--output")
    print(write_tiles(args.data, tiling, args.output) if tiling else convert(args.data, args.output))


if __name__ == "__main__":
    run_command(main)
