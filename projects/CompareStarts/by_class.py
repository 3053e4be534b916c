"""``by_class:NAME:N:SEED``: N labelled images of a data set, as many of each class as there can be.

A seed draws one order, round by round: after round k each class is on k images, or on all that show it. So k images a
class are the first images, and fewer are among more. An image with objects of several classes counts for each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from revisit.data.sources.catalog import get_records, metadata_of_part
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import LABELS, Records, take
from revisit.data.sources.subsets import are_numbers, classes_shown, is_labelled
from revisit.errors import expect

BY_CLASS = "by_class"
TEXTS = ("NAME", "N", "SEED")


def images_for(name: str, per_class: int, seeds: Iterable[int]) -> int:
    """How many images it takes until every class is on ``per_class`` of them, or on all that show it, with each seed.

    Raises:
        UserError: images that do not name their classes.
    """
    records = get_records(name)
    of_classes = ([*rounds(records, seed, name)][:-1] for seed in seeds)
    return max(sum(map(len, each[:per_class])) for each in of_classes)


def rounds(records: Records, seed: int, name: str) -> Iterator[list[int]]:
    """Indices of the labelled images of each round, which may be empty; those that show no class are the last round.

    Raises:
        UserError: images that do not name their classes.
    """
    classes = {index: set(classes_shown(each)) for index, each in enumerate(records) if is_labelled(each)}
    expect(
        all(records[index].keys() & LABELS for index in classes),
        f"{name} does not name the classes of each image: expected --labels N, without /class",
    )
    order = np.random.default_rng(seed).permutation(sorted(classes)).tolist()
    waiting = [index for index in order if classes[index]]
    shown = Counter()
    each_on = 0
    while waiting:
        each_on += 1
        chosen = []
        rest = []
        for index in waiting:
            if any(shown[each] < each_on for each in classes[index]):
                shown.update(classes[index])
                chosen.append(index)
            else:
                rest.append(index)
        yield chosen
        waiting = rest
    yield [index for index in order if not classes[index]]


def load_by_class(name: str, count: str, seed: str) -> LabelledSet:
    """See the module. Raises UserError where N and SEED are no numbers, or there are fewer than N labelled images."""
    expect(
        are_numbers(count, seed) and int(count) > 0,
        f"data set '{BY_CLASS}:{name}:{count}:{seed}': expected numbers N and SEED",
    )
    records = get_records(name)
    order = list(islice(chain.from_iterable(rounds(records, int(seed), name)), int(count)))
    expect(
        len(order) == int(count),
        f"data set {name!r} has {len(order):,} labelled images: expected at most as many, not {count}",
    )
    return LabelledSet(take(records, np.sort(order)), class_metadata(name))


LABEL_LAYOUT_REGISTRY.register(LabelLayout(BY_CLASS, ":".join(TEXTS), load_by_class, metadata_of_part, TEXTS))
