"""Which images of a large data set make up a subset: the lists of the paper's data-bias study.

Everything follows from a seed and names by SHA-256, which no version of a library and no machine changes. Lists of one
seed are nested: the images of a class have one order, and a subset takes as many of the first as it wants.
"""

import hashlib
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path

from revisit.data.sources.split_files import text_of_names
from revisit.errors import expect
from revisit.files import write_whole

PARETO_ALPHA = 6  # of ImageNet-LT (Liu et al. 2019)
MULTIPLES = (1, 2, 4, 8)  # of the smallest list, nested


def thousands(number: int) -> str:
    """118000 -> 118k, as lists are called; a number that is no multiple of 1,000 as it is."""
    return str(number) if number % 1000 else f"{number // 1000}k"


def seeded_order(names: Iterable[str], seed: int) -> list[str]:
    """The names in an order that looks random and depends on the names and the seed alone."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())


def uniform_counts(available: Mapping[str, int], total: int, seed: int) -> dict[str, int]:
    """How many images of each class make ``total`` as evenly as there are images: water-filling.

    Every class gives min(available, t) for the largest t that ``total`` allows; the rest is one more from classes that
    have it, in seeded order. More images never mean fewer of a class.

    Raises:
        UserError: there are fewer than ``total`` images.
    """
    number_of_all = sum(available.values())
    expect(number_of_all >= total, f"{number_of_all:,} images of {len(available):,} classes: {total:,} are asked for")

    def water(level: int) -> int:
        return sum(min(number, level) for number in available.values())

    level = bisect_right(range(1, max(available.values()) + 1), total, key=water)  # how many levels it reaches
    counts = {name: min(number, level) for name, number in available.items()}
    more = [name for name in seeded_order(available, seed) if available[name] > level]
    return counts | {name: level + 1 for name in more[: total - water(level)]}


def long_tailed_counts(num_classes: int, *, least: int, most: int, scale: float) -> list[int]:
    """Images a class, ascending: n = least + scale ((1 - u)^(-1/6) - 1), a quantile of a Pareto distribution, or most.

    u is (i + 1/2) / num_classes for the i-th class; n is rounded to the nearest number. ImageNet-LT's generator was
    never published: this was fitted to its lists (rms error 0.03 of the logarithm with least 5, most 1280, scale 555).
    """
    quantiles = ((i + 0.5) / num_classes for i in range(num_classes))
    values = (least + scale * ((1 - u) ** (-1 / PARETO_ALPHA) - 1) for u in quantiles)
    return [math.floor(min(most, value) + 0.5) for value in values]


def assign_counts(available: Mapping[str, int], counts: Iterable[int], seed: int) -> dict[str, int]:
    """Give each count to a class: the largest first, each to the next class in seeded order that has so many images.

    Raises:
        UserError: a count that no class is left for.
    """
    order = seeded_order(available, seed)
    given: dict[str, int] = {}
    for count in sorted(counts, reverse=True):
        name = next((name for name in order if name not in given and available[name] >= count), None)
        expect(name is not None, f"no class is left that has {count:,} images: expected classes of ImageNet's sizes")
        given[name] = count
    return given


def choose(files: Mapping[str, list[str]], counts: Mapping[str, int], seed: int) -> list[str]:
    """So many files of each class, the first in seeded order, sorted; files are told apart by ``class/name``."""
    return sorted(
        chosen
        for name, count in counts.items()
        for chosen in seeded_order((f"{name}/{file}" for file in files[name]), seed)[:count]
    )


def write_list(path: Path, images: list[str], folder: Path, comment: str) -> None:
    """Write a list that ``list:PATH`` reads, whole or not at all: ``images`` of ``folder``, seen from the list.

    Raises:
        UserError: there is another list already.
    """
    relative = os.path.relpath(folder.resolve(), path.parent.resolve())  # a link's parent is not its target's
    text = text_of_names([f"# {path.stem}: {comment}", *(f"{relative}/{name}" for name in images)], "an image")
    same = not path.exists() or path.read_text(errors="surrogateescape") == text
    expect(same, f"{path} is there already and is another list: move it away, or choose another --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
