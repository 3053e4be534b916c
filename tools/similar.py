#!/usr/bin/env python
"""Find what is most similar to an image or to a box: neighbours in a table of tools/embed.py, printed and drawn.

    python tools/similar.py --embeddings output/rows --query /data/photos/a.jpg \\
        --weights imagenet:efficientnet_lite0 --output output/similar.png

The query may be an image of the table, which is left out, or another one. A table says which weights made it, by name
and digest; which are loaded, you say.
"""

import argparse
from pathlib import Path

from projects.Predict.command_line import add_overrides
from revisit.engine.command import natural, parse_with_pairs, run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--embeddings", required=True, type=Path, metavar="DIR", help="output of tools/embed.py")
    add("--query", required=True, type=Path, metavar="FILE", help="an image, of the table or not")
    add("--weights", default="", metavar="FILE", help="those of the table, with which the query is compared")
    add("--config-file", default="", metavar="FILE", help="where the table was made with one")
    add("--box", nargs=4, type=float, metavar=("X0", "Y0", "X1", "Y1"), help="px, where the table has rows of boxes")
    add("--count", type=natural, default=11, metavar="N", help=f"how many {default}")
    add("--output", required=True, type=output_path, metavar="PNG", help="the sheet that is drawn")
    add_overrides(parser)
    return parse_with_pairs(parser)


def main() -> None:
    args = parse_args()
    expect(args.query.is_file(), f"--query {args.query}: no such file; expected an image")
    from projects.Rows.embedders import Named
    from projects.Rows.row_table import load_table
    from projects.Rows.similar import draw_similar, lines_of, similar_to

    table = load_table(args.embeddings)
    named = Named(args.weights, args.config_file, args.opts)
    similar = similar_to(table, args.query, args.box, args.count, named)
    print(*lines_of(table, similar), sep="\n")
    make_folder(args.output.parent, "--output")
    draw_similar(args.output, table, similar, args.query, args.box)
    print(f"drawn in {args.output}")


if __name__ == "__main__":
    run_command(main)
