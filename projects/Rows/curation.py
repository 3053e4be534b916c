"""What tools/curate.py does with a table of images: groups, leaks, clusters, and lists of what to keep."""

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Rows.embedders import Named, embedder_of_table
from projects.Rows.embedding import embed
from projects.Rows.grouping import Leaks, Looks, Rule, grouped, leaks
from projects.Rows.hashes import Digests, digests_of
from projects.Rows.hierarchy import balanced, clustered
from projects.Rows.image_lists import full_names, images_of
from projects.Rows.pair_sheets import draw_leaks, draw_pairs
from projects.Rows.regions import whole_images
from projects.Rows.row_table import TABLE, RowTable
from revisit.boxes.boxes import sides_of
from revisit.command.options import data_set
from revisit.data.sources.image_folders import write_list
from revisit.errors import expect
from revisit.files import make_folder, write_whole
from revisit.jobs.processes import HERE
from revisit.jobs.runner import Runner
from revisit.markdown import csv_table


class Hashed(NamedTuple):
    """A table of images and their digests."""

    table: RowTable
    digests: Digests

    @property
    def looks(self) -> Looks:
        return Looks(self.table.rows, *self.digests[1:])


def hashed(table: RowTable, folder: Path, runner: Runner = HERE) -> Hashed:
    """Read the images once more; see digests_of."""
    records = table.records
    return Hashed(table, digests_of(records, folder, table.pixels, runner))


def table_of_test(name: str, training: RowTable, weights: str, output: Path, runner: Runner = HERE) -> RowTable:
    """The table of a folder of tools/embed.py, or of a data set, which is embedded as the training images were, by
    ``weights``.

    Raises:
        UserError: the table is of other weights or sizes than ``training``; see also images_of, embedder_of_table.
    """
    if (Path(name) / TABLE).is_file():
        table = images_of(Path(name))
        is_same = _comparable(table) == _comparable(training)
        expect(is_same, f"--test {name} was embedded by other weights or with another --size: embed it again")
        return table
    make_folder(output, "--output")
    return embed(whole_images(data_set(name)), embedder_of_table(training.about, Named(weights)), output, runner=runner)


def _comparable(table: RowTable) -> tuple[object, object]:
    """What decides whether rows of two tables can be compared."""
    return table.about["digest"], table.about["options"].get("size")


def find_groups(images: Hashed, rule: Rule, leaking: np.ndarray, output: Path) -> tuple[np.ndarray, list[str]]:
    """Write groups.csv and pairs.png. Returns the places of the images that are kept, sorted, and lines that say what
    there is.

    Of those that nearly equal each other one with most pixels is kept, of equals the first; none of those ``leaking``,
    (N,) bool, which hold no other place either.
    """
    pixels = sides_of(images.table.boxes).prod(axis=1)
    grouping = grouped(images.looks, rule, np.lexsort((-pixels, leaking)))
    lines = zip(full_names(images.table), grouping.groups.tolist(), strict=True)
    write_whole(output / "groups.csv", csv_table(("file_name", "group"), lines))
    count, total = grouping.groups.max() + 1, len(grouping.groups)
    if count == total:
        report = [f"no duplicates: no two of {total:,} images have {rule}"]
    else:
        different = len(np.unique(images.digests.contents))
        largest = max(Counter(grouping.groups.tolist()).values())
        copies = f"{total - different:,} copies of the same bytes, {different - count:,} near-duplicates"
        report = [f"{total:,} images show {count:,} things: {copies}; the largest group has {largest:,} images"]
    (output / "pairs.png").unlink(missing_ok=True)
    if len(grouping.alike.places) or len(grouping.others.places):
        draw_pairs(output / "pairs.png", images.table, grouping, rule)
        report.append(
            "pairs.png has the pairs around the threshold: if they are wrong, change --rule cosine=X or bits=N"
        )
    kept = np.unique(grouping.kept)
    return kept[~leaking[kept]], report


def find_leaks(images: Hashed, test: Hashed, rule: Rule, output: Path) -> tuple[Leaks, str]:
    """Write leaks.csv and, if there are any, leaks.png. Returns them, and a line that says how many."""
    leaked = leaks(images.looks, test.looks, rule)
    places = leaked.pairs.places
    names = full_names(test.table)[places[:, 0]], full_names(images.table)[places[:, 1]]
    lines = zip(*names, leaked.pairs.differing.tolist(), leaked.pairs.cosines.round(4).tolist(), strict=True)
    write_whole(output / "leaks.csv", csv_table(("test", "training", "bits", "cosine"), lines))
    total = len(test.table.rows)
    if not len(places):
        return leaked, f"no leaks: none of {total:,} test images nearly equals a training image"
    draw_leaks(output / "leaks.png", images.table, test.table, leaked.pairs)
    test_images = f"{len(np.unique(places[:, 0])):,} of {total:,} test images"
    training = f"{leaked.training.sum():,} of {len(leaked.training):,} training images"
    line = f"LEAKS: {test_images} nearly equal {training}, which are left out: leaks.csv, leaks.png"
    return leaked, line


def find_clusters(table: RowTable, num_clusters: int | None, keep: int | None, output: Path) -> str:
    """Write clusters.csv and balanced.txt, of a table whose images all differ. Returns a line that says their sizes."""
    total = len(table.rows)
    count = num_clusters or max(1, round(math.sqrt(total)))
    kept = keep or math.ceil(total / 2)
    expect(count <= total, f"--rule clusters={count}: expected at most {total}, the images that differ")
    expect(kept <= total, f"--count {kept}: expected at most {total}, the images that differ")
    levels = clustered(table.rows, [count, max(1, round(math.sqrt(count)))])
    names = full_names(table)
    lines = zip(names, *(level.tolist() for level in levels), strict=True)
    write_whole(output / "clusters.csv", csv_table(("file_name", "cluster", "coarse"), lines))
    places = balanced(levels, kept)
    write_list(output / "balanced.txt", names[places])
    before, after = (np.bincount(levels[0][part], minlength=levels[0].max() + 1) for part in (slice(None), places))
    sizes = f"{len(before)} clusters of {before.min():,} to {before.max():,} images"
    return f"{sizes}; balanced.txt has {kept:,} images, {after.min():,} to {after.max():,} of a cluster"
