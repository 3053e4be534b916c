"""``by_class:NAME:N:SEED``: N labelled images of a data set, as many of each class as there can be.

A seed draws one order, round by round: after round k each class is on k images, or on all that show it. So k images a
class are the beginning of it, and fewer are among more. An image with objects of several classes counts for each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np

from revisit.data.sources.catalog import get_records, metadata_of_part
from revisit.data.sources.class_names import class_metadata
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY, LabelLayout, LabelledSet
from revisit.data.sources.records import Records, labels_of, take
from revisit.data.sources.subsets import is_labelled
from revisit.errors import expect

BY_CLASS = "by_class"
TEXTS = ("NAME", "N", "SEED")


def by_class_name(name: str, count: int, seed: int) -> str:
    return f"{BY_CLASS}:{name}:{count}:{seed}"


def images_for(name: str, per_class: int, seeds: Iterable[int]) -> int:
    """How many images it takes until every class is on ``per_class`` of them, or on all that show it, with each seed.

    Raises:
        UserError: images that do not name their classes.
    """
    records = get_records(name)
    return max(sum(map(len, islice(rounds(records, seed, name), per_class))) for seed in seeds)


def rounds(records: Records, seed: int, name: str) -> Iterator[list[int]]:
    """Indices of the labelled images of each round, which may be empty; those that show no class are the last round.

    Raises:
        UserError: images that do not name their classes.
    """
    classes = _classes(records, name)
    waiting = np.random.default_rng(seed).permutation(sorted(classes)).tolist()
    without = [index for index in waiting if not classes[index]]
    waiting = [index for index in waiting if classes[index]]
    shown, taken = Counter(), 0
    while waiting:
        taken += 1
        chosen = []
        for index in waiting:
            if any(shown[each] < taken for each in classes[index]):
                shown.update(classes[index])
                chosen.append(index)
        yield chosen
        waiting = _without(waiting, chosen)
    yield without


def _without(indices: Sequence[int], others: Iterable[int]) -> list[int]:
    leave = set(others)
    return [index for index in indices if index not in leave]


def _classes(records: Records, name: str) -> dict[int, set[int]]:
    """By index of a labelled image, the classes that it shows."""
    labels = labels_of(records)
    if labels is not None:
        return {index: {int(label)} for index, label in enumerate(labels) if label >= 0}
    labelled = [index for index, record in enumerate(records) if is_labelled(record)]
    named = all("annotations" in records[index] for index in labelled)
    expect(named, f"{name} does not name the classes of each image: expected --labels N, without /class")
    boxes = ((index, records[index]["annotations"]) for index in labelled)
    return {index: {box["category_id"] for box in of_image if not box.get("iscrowd", 0)} for index, of_image in boxes}


def load_by_class(name: str, count: str, seed: str) -> LabelledSet:
    """See the module. Raises UserError where N and SEED are no numbers, or there are fewer than N labelled images."""
    are_numbers = all(text.isascii() and text.isdecimal() for text in (count, seed))
    expect(are_numbers and int(count) > 0, f"data set '{BY_CLASS}:{name}:{count}:{seed}': expected numbers N and SEED")
    records = get_records(name)
    order = list(islice(chain.from_iterable(rounds(records, int(seed), name)), int(count)))
    enough = len(order) == int(count)
    expect(enough, f"data set {name!r} has {len(order):,} labelled images: expected at most as many, not {count}")
    return LabelledSet(take(records, np.sort(order)), class_metadata(name))


LABEL_LAYOUT_REGISTRY.register(LabelLayout(BY_CLASS, ":".join(TEXTS), load_by_class, metadata_of_part, TEXTS))
