#!/usr/bin/env python
"""Find duplicates, near-duplicates and leaks among embedded images, and a balanced part of them.

    python tools/embed.py --weights imagenet:efficientnet_lite0 --images folder:/data/photos --output output/rows
    python tools/curate.py --embeddings output/rows --test folder:/data/test \\
        --weights imagenet:efficientnet_lite0 --output output/curated

Writes unique.txt, one image of each group of near-duplicates, and balanced.txt, as many of these of each cluster as
there are: both are data sets, list:output/curated/unique.txt. groups.csv says which images belong together,
clusters.csv which are alike, leaks.csv which test images nearly equal a training image. pairs.png shows where the
threshold lies. The same command continues where it was interrupted, and with another threshold reads no image again.
"""

import argparse
from pathlib import Path

from revisit.engine.command import natural, run_command
from revisit.errors import expect
from revisit.files import make_folder, output_path
from revisit.jobs.options import add_runner_options, runner_of


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--embeddings", required=True, type=Path, metavar="DIR", help="output of tools/embed.py, of images")
    add("--output", required=True, type=output_path, metavar="DIR")
    add("--test", default="", metavar="NAME", help="test images: a data set, or an output of tools/embed.py")
    add("--weights", default="", metavar="FILE", help="those of the table, to embed --test of a data set")
    add("--similar", type=float, default=0.9, metavar="X", help=f"least cosine of near-duplicates {default}")
    add("--bits", type=int, default=16, metavar="N", help=f"of 64, in which their hashes differ at most {default}")
    add("--clusters", type=natural, metavar="N", help="(default: the root of the number of images that differ)")
    add("--keep", type=natural, metavar="N", help="images of balanced.txt (default: half of those that differ)")
    add_runner_options(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    expect(0 < args.similar <= 1, f"--similar {args.similar}: expected a cosine above 0, at most 1")
    expect(0 <= args.bits <= 64, f"--bits {args.bits}: expected 0 to 64")
    import numpy as np

    from projects.Rows.curation import find_clusters, find_groups, find_leaks, hashed, kept_of, table_of_test
    from projects.Rows.grouping import Rule
    from projects.Rows.image_lists import full_names, images_of
    from revisit.data.sources.image_folders import write_list

    runner = runner_of(args)
    table = images_of(args.embeddings)
    expect(len(table.rows) > 1, f"{args.embeddings} has one image: expected two at least, to compare them")
    make_folder(args.output, "--output")
    rule = Rule(args.similar, args.bits)
    images = hashed(table, args.output / "digests", runner)
    groups, lines = find_groups(images, rule, args.output)
    print(*lines, sep="\n", flush=True)
    leaking = np.zeros(len(groups), bool)
    if args.test:
        test_table = table_of_test(args.test, table, args.weights, args.output / "test", runner)
        test = hashed(test_table, args.output / "test_digests", runner)
        leaks, line = find_leaks(images, test, rule, args.output)
        leaking = leaks.training
        print(line, flush=True)
    kept = table.of(kept_of(groups, table, leaking))
    expect(len(kept.rows) > 0, "every training image nearly equals a test image: nothing is left to keep")
    write_list(args.output / "unique.txt", full_names(kept))
    groups_kept = "of each group without leaks" if leaking.any() else "of each group"
    print(f"unique.txt has {len(kept.rows):,} images, one {groups_kept}")
    print(find_clusters(kept, args.clusters, args.keep, args.output), f"written to {args.output}", sep="\n")


if __name__ == "__main__":
    run_command(main)
