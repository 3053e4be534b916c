#!/usr/bin/env python
"""Make an atlas of images or boxes: one HTML page, without network, with a map of what is similar.

    python tools/atlas.py --embeddings output/rows --output output/atlas.html

Point at a dot to see its image, click it for its nearest neighbours; colour by class, cluster, folder or any column of
a CSV file; the page lists what is most alike and what is least like any other.
"""

import argparse
from pathlib import Path

from revisit.engine.command import run_command
from revisit.files import make_folder, output_path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--embeddings", required=True, type=Path, metavar="DIR", help="output of tools/embed.py")
    add("--output", required=True, type=output_path, metavar="HTML")
    add("--columns", type=Path, metavar="CSV", help="more to colour by: file_name, and any columns")
    ways = "t-SNE, principal components, or UMAP where umap-learn is installed (default: %(default)s)"
    add("--map", default="tsne", choices=("tsne", "pca", "umap"), help=ways)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from projects.Rows.atlas import write_atlas
    from projects.Rows.row_table import load_table

    table = load_table(args.embeddings)
    make_folder(args.output.parent, "--output")
    count = write_atlas(args.output, table, args.map, args.columns)
    size = args.output.stat().st_size / 1e6
    print(f"{count} of {len(table.rows)} rows are in {args.output}, {size:.1f} MB")


if __name__ == "__main__":
    run_command(main)
