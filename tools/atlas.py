#!/usr/bin/env python
"""Make an atlas of images or boxes: one HTML page, without network, with a map of what is similar.

    python tools/atlas.py --embeddings output/rows --output output/atlas.html

Point at a dot to see its image, click it for its nearest neighbours; colour by class, cluster, folder or any column of
a CSV file; the page lists what is most alike and what is least like any other.
"""

import argparse

from revisit.command.options import add, parse, parser_of
from revisit.engine.command import run_command
from revisit.files import make_place


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "embeddings")
    add(parser, "output", required=True, metavar="HTML", help="the page")
    add(parser, "table", help="CSV of more to colour by: file_name, and any columns")
    ways = "t-SNE, principal components, or UMAP where umap-learn is installed (default: %(default)s)"
    add(parser, "how", default="tsne", choices=("tsne", "pca", "umap"), help=ways)
    return parse(parser)


def main() -> None:
    args = parse_args()
    make_place(args.output, "--output", ".html", ".htm")
    from projects.Rows.atlas import write_atlas
    from projects.Rows.row_table import load_table

    table = load_table(args.embeddings)
    count = write_atlas(args.output, table, args.how, args.table)
    size = args.output.stat().st_size / 1e6
    print(f"{count} of {len(table.rows)} rows are in {args.output}, {size:.1f} MB")


if __name__ == "__main__":
    run_command(main)
