#!/usr/bin/env python
"""Choose which of the embedded images to label first, and hand them to a tool for labelling.

    python tools/embed.py --weights imagenet:efficientnet_lite0 --images folder:/data/photos --output output/rows
    python tools/select_images.py --embeddings output/rows --budget 50 --how typical --output output/to_label

Writes selected.txt, a data set, list:output/to_label/selected.txt, in the order of choosing; to_label.json, a COCO file
with these images and no annotations; label_studio.json, tasks for Label Studio, and label_studio.xml, an interface to
draw boxes on them; and the sheet selected.png.
"""

import argparse
from pathlib import Path

from revisit.engine.command import natural, run_command, whole
from revisit.errors import expect
from revisit.files import make_folder, output_path

WAYS = ("typical", "k-centre", "random")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--embeddings", required=True, type=Path, metavar="DIR", help="output of tools/embed.py, of images")
    add("--budget", type=natural, default=50, metavar="N", help=f"images to choose {default}")
    add("--how", default="typical", choices=WAYS, help=f"by TypiClust, by greedy k-centre, or any {default}")
    add("--labelled", default="", metavar="NAME", help="a data set: its labelled images count, and are not chosen")
    add("--seed", type=whole, default=0, help=f"of clusters and draws {default}")
    add("--output", required=True, type=output_path, metavar="DIR")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from projects.Rows.image_lists import images_of, labelled_in
    from projects.Rows.label_files import write_chosen
    from projects.Rows.selection import SELECTIONS

    table = images_of(args.embeddings)
    labelled = labelled_in(table, args.labelled)
    rest = len(table.rows) - int(labelled.sum())
    expect(args.budget <= rest, f"--budget {args.budget}: expected at most {rest}, the images without labels")
    make_folder(args.output, "--output")
    places = SELECTIONS[args.how](table.rows, labelled, args.budget, args.seed)
    class_names = sorted({*table.classes.tolist()} - {""})
    write_chosen(args.output, table.of(places), f"{args.budget} images to label, {args.how}", class_names)
    already = f", next to {labelled.sum():,} that are labelled" if labelled.any() else ""
    print(f"{args.budget} of {len(table.rows):,} images{already}: selected.txt, to_label.json and label_studio.json")
    print(f"written to {args.output}, drawn in selected.png")


if __name__ == "__main__":
    run_command(main)
