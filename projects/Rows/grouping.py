"""Which images nearly equal which, and the groups that they form: all pairs are compared, a block at a time.

Two images are near-duplicates if their perceptual hashes differ in few bits *and* their rows have a high cosine. Either
alone takes more others for near-duplicates at the same recall (docs/results/curation.md).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from projects.Rows.hashes import differing_bits
from revisit.progress import progress

BLOCK = 512  # images that are compared with all others at a time
SHOWN = 12  # pairs on each side of the threshold
ROUNDING = 1e-5  # of cosines


class Looks(NamedTuple):
    """What N images are compared by."""

    rows: np.ndarray  # (N, C) float32, of length 1
    bits: np.ndarray  # (N, 64) bool


class Rule(NamedTuple):
    """When two images are near-duplicates."""

    similar: float  # the least cosine; copies of the same bytes have 1 within ROUNDING
    differing: int  # bits of 64, at most

    def __str__(self) -> str:
        return f"a cosine of {self.similar:g} and at most {self.differing} of 64 bits that differ"

    def holds(self, pairs: "Pairs") -> np.ndarray:
        """For which pairs whose hashes are similar enough, (P,) bool."""
        return pairs.cosines >= self.similar - ROUNDING


class Pairs(NamedTuple):
    """P pairs of images by their places, and how similar they are."""

    places: np.ndarray  # (P, 2) int64
    differing: np.ndarray  # (P,) int64 bits
    cosines: np.ndarray  # (P,) float32

    def of(self, order: np.ndarray) -> "Pairs":
        """The pairs at these places, or of this mask."""
        return Pairs(self.places[order], self.differing[order], self.cosines[order])

    def joined(self, others: "Pairs") -> "Pairs":
        """These pairs, then the others."""
        return Pairs(*map(np.concatenate, zip(self, others, strict=True)))


NO_PAIRS = Pairs(np.empty((0, 2), np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


class Grouped(NamedTuple):
    """N images in groups, and the pairs around the threshold, the most similar ones first."""

    groups: np.ndarray  # (N,) int64, from 0 on, in the order of their first images
    alike: Pairs  # the SHOWN least similar near-duplicates
    others: Pairs  # the SHOWN most similar pairs of as similar hashes that are none


def pairs_of(some: Looks, others: Looks, differing: int, title: str) -> Iterator[Pairs]:
    """Pairs of one of ``some`` and one of the ``others`` whose hashes differ in so many bits at most, BLOCK images of
    ``some`` at a time."""
    for start in progress(title, "block", range(0, len(some.rows), BLOCK)):
        part = slice(start, start + BLOCK)
        bits = differing_bits(some.bits[part], others.bits)
        first, second = np.nonzero(bits <= differing)
        cosines = np.minimum(some.rows[part] @ others.rows.T, 1)
        places = np.stack([first + start, second], axis=1)
        yield Pairs(places, bits[first, second].astype(int), cosines[first, second])


def grouped(looks: Looks, rule: Rule) -> Grouped:
    """Groups are connected components: near-duplicates of near-duplicates are in one group."""
    groups, alike, others = np.arange(len(looks.rows)), NO_PAIRS, NO_PAIRS
    for pairs in pairs_of(looks, looks, rule.differing, "comparing"):
        pairs = pairs.of(pairs.places[:, 0] < pairs.places[:, 1])
        is_alike = rule.holds(pairs)
        groups = _connected(groups, pairs.places[is_alike])
        alike = _most_similar_first(alike.joined(pairs.of(is_alike)))
        alike = alike.of(slice(-SHOWN, None))
        others = _most_similar_first(others.joined(pairs.of(~is_alike))).of(slice(SHOWN))
    return Grouped(groups, alike, others)


def _connected(groups: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Groups (N,) after more pairs (P, 2) have been joined; by blocks, so that never all pairs are in memory."""
    count = groups.max() + 1
    first, second = groups[places].T
    edges = coo_array((np.ones(len(places), bool), (first, second)), shape=(count, count))
    _, joined = connected_components(edges, directed=False)
    _, where, numbers = np.unique(joined[groups], return_index=True, return_inverse=True)
    return where.argsort().argsort()[numbers]


def _most_similar_first(pairs: Pairs) -> Pairs:
    return pairs.of(np.argsort(-pairs.cosines, kind="stable"))


class Leaks(NamedTuple):
    """Test images that a training image nearly equals."""

    pairs: Pairs  # for each of these test images it and the most similar training image
    training: np.ndarray  # (N,) bool, which training images nearly equal a test image


def leaks(training: Looks, test: Looks, rule: Rule) -> Leaks:
    """Every test image against every training image."""
    is_leak, best = np.zeros(len(training.rows), bool), NO_PAIRS
    for pairs in pairs_of(test, training, rule.differing, "comparing with test images"):
        pairs = pairs.of(rule.holds(pairs))
        is_leak[pairs.places[:, 1]] = True
        order = np.lexsort((-pairs.cosines, pairs.places[:, 0]))
        _, first = np.unique(pairs.places[order, 0], return_index=True)
        best = best.joined(pairs.of(order[first]))
    return Leaks(_most_similar_first(best), is_leak)
