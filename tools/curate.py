#!/usr/bin/env python
"""Find duplicates, near-duplicates and leaks among embedded images, and a balanced part of them.

    python tools/embed.py --weights imagenet:efficientnet_lite0 --data folder:/data/photos --output output/rows
    python tools/curate.py --embeddings output/rows --test folder:/data/test \\
        --weights imagenet:efficientnet_lite0 --output output/curated

Writes unique.txt, one image of each group of near-duplicates, and balanced.txt, as many of these of each cluster as
there are: both are data sets, list:output/curated/unique.txt. groups.csv says which images belong together,
clusters.csv which are alike, leaks.csv which test images nearly equal a training image. pairs.png shows where the
threshold lies. The same command continues where it was interrupted, and with another threshold reads no image again.
"""

import argparse

from revisit.command.options import add, named, parse, parser_of
from revisit.engine.command import natural, run_command, whole
from revisit.errors import expect
from revisit.files import make_folder
from revisit.jobs.options import add_runner_options, runner_of


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__, __file__)
    add(parser, "embeddings", help="output of tools/embed.py, of images")
    add(parser, "output", required=True)
    add(parser, "test", type=str, help="test images: a data set, or an output of tools/embed.py")
    add(parser, "weights", help="those of the table, to embed --test of a data set")
    rule = (
        "least cosine of near-duplicates (0.9); bits, of 64, in which their hashes differ at most (16); clusters (the"
    )
    kinds = named({"cosine": float, "bits": whole, "clusters": natural})
    add(parser, "rule", type=kinds, help=f"cosine=X bits=N clusters=N: {rule} root of the images that differ)")
    add(parser, "count", help="images of balanced.txt (default: half of those that differ)")
    add_runner_options(parser)
    return parse(parser)


def main() -> None:
    args = parse_args()
    rule = {"cosine": 0.9, "bits": 16, "clusters": None} | dict(args.rule)
    expect(0 < rule["cosine"] <= 1, f"--rule cosine={rule['cosine']}: expected above 0, at most 1")
    expect(rule["bits"] <= 64, f"--rule bits={rule['bits']}: expected 0 to 64")
    import numpy as np

    from projects.Rows.curation import find_clusters, find_groups, find_leaks, hashed, table_of_test
    from projects.Rows.grouping import Rule
    from projects.Rows.image_lists import full_names, images_of
    from revisit.data.sources.image_folders import write_list

    runner, is_near = runner_of(args), Rule(rule["cosine"], rule["bits"])
    table = images_of(args.embeddings)
    expect(len(table.rows) > 1, f"{args.embeddings} has one image: expected two at least, to compare them")
    make_folder(args.output, "--output")
    images = hashed(table, args.output / "digests", runner)
    leaking = np.zeros(len(table.rows), bool)
    for name in ("leaks.csv", "leaks.png"):  # of an earlier call, perhaps with other test images
        (args.output / name).unlink(missing_ok=True)
    if args.test:
        test_table = table_of_test(args.test, table, args.weights, args.output / "test", runner)
        test = hashed(test_table, args.output / "test_digests", runner)
        leaks, line = find_leaks(images, test, is_near, args.output)
        leaking = leaks.training
        print(line, flush=True)
    places, lines = find_groups(images, is_near, leaking, args.output)
    print(*lines, sep="\n", flush=True)
    kept = table.of(places)
    expect(len(kept.rows) > 0, "every training image nearly equals a test image: nothing is left to keep")
    write_list(args.output / "unique.txt", full_names(kept))
    groups_kept = "of each group without leaks" if leaking.any() else "of each group"
    print(f"unique.txt has {len(kept.rows):,} images, one {groups_kept}")
    print(find_clusters(kept, rule["clusters"], args.count, args.output), f"written to {args.output}", sep="\n")


if __name__ == "__main__":
    run_command(main)
