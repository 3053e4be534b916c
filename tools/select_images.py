#!/usr/bin/env python
"""Choose which of the embedded images to label first, and hand them to a tool for labelling.

    python tools/embed.py --weights imagenet:efficientnet_lite0 --data folder:/data/photos --output output/rows
    python tools/curate.py --embeddings output/rows --output output/curated
    python tools/select_images.py --embeddings output/rows --rule groups=output/curated/groups.csv --count 50 \\
        --output output/to_label

Writes selected.txt, a data set, list:output/to_label/selected.txt, in the order of choosing; to_label.json, a COCO file
with these images and no annotations; label_studio.json, tasks for Label Studio, and label_studio.xml, an interface to
draw boxes on them; and the sheet selected.png. With groups no near-duplicate is labelled twice.
"""

import argparse

from revisit.command.options import DEFAULT, add, named, parse, parser_of
from revisit.engine.command import run_command
from revisit.errors import expect
from revisit.files import make_folder

WAYS = ("typical", "k-centre", "random")


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "embeddings", help="output of tools/embed.py, of images")
    add(parser, "count", default=50, help=f"images to choose {DEFAULT}")
    add(parser, "how", default="typical", choices=WAYS, help=f"by TypiClust, by greedy k-centre, or any {DEFAULT}")
    add(parser, "labelled", help="a data set: its labelled images count, and are not chosen")
    groups = "groups=FILE: file_name,group, as of tools/curate.py: at most one image of each, none of a labelled one's"
    add(parser, "rule", type=named({"groups": str}), help=groups)
    add(parser, "seed", help=f"of clusters and draws {DEFAULT}")
    add(parser, "output", required=True)
    return parse(parser)


def main() -> None:
    args = parse_args()
    from projects.Objectives.image_groups import groups_of
    from projects.Rows.image_lists import images_of, labelled_in
    from projects.Rows.label_files import expect_unlabelled, write_chosen
    from projects.Rows.selection import SELECTIONS, without_duplicates
    from revisit.boxes.boxes import sides_of

    table = images_of(args.embeddings)
    total, class_names = len(table.rows), sorted({*table.classes.tolist()} - {""})
    labelled = labelled_in(table, args.labelled)
    for rule, file in args.rule:
        groups, _ = groups_of(file, table.records, f"--rule {rule}={file}")
        stays = without_duplicates(groups, labelled, sides_of(table.boxes).prod(axis=1))
        table, labelled = table.of(stays), labelled[stays]
    rest = len(table.rows) - int(labelled.sum())
    alone = " of different groups" if args.rule else ""
    expect(args.count <= rest, f"--count {args.count}: expected at most {rest}, the images without labels{alone}")
    make_folder(args.output, "--output")
    expect_unlabelled(args.output)
    places = SELECTIONS[args.how](table.rows, labelled, args.count, args.seed)
    write_chosen(args.output, table.of(places), f"{args.count} images to label, {args.how}", class_names)
    already = f", next to {labelled.sum():,} that are labelled" if labelled.any() else ""
    print(f"{args.count} of {total:,} images{already}: selected.txt, to_label.json and label_studio.json")
    print(f"written to {args.output}, drawn in selected.png")


if __name__ == "__main__":
    run_command(main)
