#!/usr/bin/env python
"""Find what is most similar to an image or to a box: neighbours in a table of tools/embed.py, printed and drawn.

    python tools/similar.py --embeddings output/rows --data /data/photos/a.jpg \\
        --weights imagenet:efficientnet_lite0 --output output/similar.png

The image may be an image of the table, which is left out, or another one. A table says which weights made it, by name
and digest; which are loaded, you say.
"""

import argparse
from pathlib import Path

from revisit.command.options import DEFAULT, add, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_place


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "embeddings")
    add(parser, "data", required=True, type=Path, metavar="FILE", help="the image to compare, of the table or not")
    add(parser, "weights", help="those of the table, with which the image is compared")
    add(parser, "config-file", help="where the table was made with one")
    corners = "px of the image, where the table has rows of boxes"
    add(parser, "boxes", nargs=4, type=float, default=None, metavar=("X0", "Y0", "X1", "Y1"), help=corners)
    add(parser, "count", default=11, help=f"how many {DEFAULT}")
    add(parser, "output", required=True, metavar="PNG", help="the sheet that is drawn")
    add(parser, "opts")
    return parse(parser)


def main() -> None:
    args = parse_args()
    expect(args.data.is_file(), f"--data {args.data}: no such file; expected an image")
    make_place(args.output, "--output", ".png")
    from projects.Rows.embedders import Named
    from projects.Rows.row_table import load_table
    from projects.Rows.similar import draw_similar, lines_of, similar_to

    table = load_table(args.embeddings)
    named = Named(args.weights, args.config_file, args.opts)
    similar = similar_to(table, args.data, args.boxes, args.count, named)
    print(*lines_of(table, similar), sep="\n")
    draw_similar(args.output, table, similar, args.data, args.boxes)
    print(f"drawn in {args.output}")


if __name__ == "__main__":
    run_command(main)
