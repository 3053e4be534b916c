"""Which images nearly equal which, and which of them are kept: all pairs are compared, a block at a time.

Two images are near-duplicates if their perceptual hashes differ in few bits, their rows have a high cosine *and* their
small pictures are the same. The first two alone each take more others for near-duplicates at the same recall, and
together pages of text, or areas of any colour (docs/results/curation.md).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from projects.Rows.hashes import differing_bits
from projects.Rows.pictures import are_same
from revisit.progress import progress

BLOCK = 512  # images that are compared with all others at a time, at most
MOST_PAIRS = 2**24  # that are compared at a time: each takes about 100 bytes where all images look alike
AT_ONCE = 1024  # near pairs of leaks
SHOWN = 12  # pairs on each side of the threshold
ROUNDING = 1e-5  # of cosines


class Looks(NamedTuple):
    """What N images are compared by."""

    rows: np.ndarray  # (N, C) float32, of length 1
    bits: np.ndarray  # (N, 64) bool
    pictures: np.ndarray  # (N, SIDE, SIDE, 3) uint8

    def of(self, order: np.ndarray) -> "Looks":
        """The images at these places."""
        return Looks(*(each[order] for each in self))

    def pairs(self, places: np.ndarray, others: np.ndarray) -> "Pairs":
        """How similar each image at ``places`` (P,) is to that at ``others`` (P,)."""
        differing = (self.bits[places] != self.bits[others]).sum(axis=1)
        cosines = np.minimum((self.rows[places] * self.rows[others]).sum(axis=1), 1)
        return Pairs(np.stack([places, others], axis=1), differing, cosines)


class Rule(NamedTuple):
    """When two images are near-duplicates."""

    similar: float  # the least cosine; copies of the same bytes have 1 within ROUNDING
    differing: int  # bits of 64, at most

    def __str__(self) -> str:
        differing = f"at most {self.differing} of 64 bits that differ"
        return f"the same small picture, a cosine of {self.similar:g} and {differing}"

    def may_hold(self, pairs: "Pairs") -> np.ndarray:
        """For which pairs whose hashes are similar enough, (P,) bool, if their pictures are the same."""
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
    """N images in groups, each around one that is kept, and the pairs around the threshold, the most similar ones
    first."""

    groups: np.ndarray  # (N,) int64, from 0 on, in the order of their first images
    kept: np.ndarray  # (N,) int64, the place of the image that is kept of its group
    alike: Pairs  # the SHOWN least similar pairs of an image and the one that is kept
    others: Pairs  # the SHOWN most similar pairs of as similar hashes that are none


def pairs_of(some: Looks, others: Looks, differing: int, title: str) -> Iterator[Pairs]:
    """Pairs of one of ``some`` and one of the ``others`` whose hashes differ in so many bits at most, ``block_of`` of
    ``some`` at a time."""
    size = block_of(len(others.rows))
    for start in progress(title, "block", range(0, len(some.rows), size)):
        part = slice(start, start + size)
        bits = differing_bits(some.bits[part], others.bits)
        first, second = np.nonzero(bits <= differing)
        cosines = np.minimum(some.rows[part] @ others.rows.T, 1)
        places = np.stack([first + start, second], axis=1)
        yield Pairs(places, bits[first, second].astype(int), cosines[first, second])


def block_of(others: int) -> int:
    """How many images are compared with so many others at a time."""
    return max(1, min(BLOCK, MOST_PAIRS // others))


def grouped(looks: Looks, rule: Rule, order: np.ndarray) -> Grouped:
    """Each image in the group of the first one that is kept and shows the same picture, if near-duplicates of this
    picture lead there; where there is none, it is kept itself.

    Args:
        order: (N,) int64, the places of the images, what is to be kept first.
    """
    count, links, others = len(order), [], NO_PAIRS
    ordered = looks.of(order)
    firsts, number_of = np.unique(_first_equals(ordered), return_inverse=True)  # of equal images one has links
    is_first = np.zeros(count, bool)
    is_first[firsts] = True
    for end, pairs in enumerate(pairs_of(ordered, ordered, rule.differing, "comparing"), start=1):
        is_near = rule.may_hold(pairs)
        between = pairs.places[is_near & is_first[pairs.places].all(axis=1)]
        block = range(len(links), np.searchsorted(firsts, end * block_of(count)))
        links += _links_in(number_of[between], block, len(firsts))
        is_other = ~is_near & (pairs.places[:, 0] < pairs.places[:, 1])
        others = _most_similar_first(others.joined(pairs.of(is_other))).of(slice(SHOWN))
    kept = np.empty_like(order)
    kept[order] = order[firsts[_kept(ordered.pictures[firsts], links)][number_of]]
    left_out = np.flatnonzero(kept != np.arange(len(kept)))
    alike = _most_similar_first(looks.pairs(left_out, kept[left_out])).of(slice(-SHOWN, None))
    _, where, numbers = np.unique(kept, return_index=True, return_inverse=True)
    return Grouped(where.argsort().argsort()[numbers], kept, alike, others._replace(places=order[others.places]))


def _first_equals(looks: Looks) -> np.ndarray:
    """For each image the place of the first one whose looks are the same bit by bit, (N,) int64."""
    by_hash: dict[int, list[int]] = {}
    equals = np.arange(len(looks.rows))
    for place, look in enumerate(zip(*looks, strict=True)):
        alike = by_hash.setdefault(hash(tuple(part.tobytes() for part in look)), [])
        same = (other for other in alike if all(np.array_equal(part[place], part[other]) for part in looks))
        equals[place] = next(same, place)
        if equals[place] == place:
            alike.append(place)
    return equals


def _links_in(places: np.ndarray, block: range, count: int) -> list[np.ndarray]:
    """For each image of a block those that it is linked to, by pairs (P, 2) in order: as int32 numbers, or as ``count``
    bits where these take less memory. Frames of a camera that stands still are all linked to each other."""
    ends = np.searchsorted(places[:, 0], block[1:])
    every = np.split(places[:, 1].astype(np.int32), ends)
    return [_as_bits(linked, count) if 8 * linked.nbytes > count else linked.copy() for linked in every]


def _as_bits(numbers: np.ndarray, count: int) -> np.ndarray:
    is_there = np.zeros(count, bool)
    is_there[numbers] = True
    return np.packbits(is_there)


def _kept(pictures: np.ndarray, links: Sequence[np.ndarray]) -> np.ndarray:
    """For each picture the place of the one that is kept, (N,) int64; ``links`` of _links_in go both ways."""
    count = len(pictures)
    kept, seen_from = np.full(count, -1), np.full(count, -1)
    for first in range(count):
        if kept[first] < 0:
            same = [first]
            seen_from[first] = first
            for place in same:  # which grows
                linked = links[place]
                near = np.flatnonzero(np.unpackbits(linked, count=count)) if linked.dtype == np.uint8 else linked
                new = near[(seen_from[near] != first) & (kept[near] < 0)]
                seen_from[new] = first
                same += [other for other in new.tolist() if are_same(pictures[first], pictures[other])]
            kept[same] = first
    return kept


def _most_similar_first(pairs: Pairs) -> Pairs:
    return pairs.of(np.argsort(-pairs.cosines, kind="stable"))


class Leaks(NamedTuple):
    """Test images that a training image nearly equals."""

    pairs: Pairs  # a test and a training image, the most similar first; all of both that leak are named, some twice
    training: np.ndarray  # (N,) bool, which training images nearly equal a test image


def leaks(training: Looks, test: Looks, rule: Rule) -> Leaks:
    """Every test image against every training image."""
    in_test, in_training = np.zeros(len(test.rows), bool), np.zeros(len(training.rows), bool)
    named = NO_PAIRS
    for pairs in pairs_of(test, training, rule.differing, "comparing with test images"):
        near = _most_similar_first(pairs.of(rule.may_hold(pairs)))
        leaking = []
        for start in range(0, len(near.places), AT_ONCE):
            some, others = near.places[start : start + AT_ONCE].T
            for number in np.flatnonzero(~(in_test[some] & in_training[others])).tolist():
                one, other = some[number], others[number]
                is_named = in_test[one] and in_training[other]
                if not is_named and are_same(training.pictures[other], test.pictures[one]):
                    in_test[one] = in_training[other] = True
                    leaking.append(start + number)
        named = named.joined(near.of(leaking))
    return Leaks(_most_similar_first(named), in_training)
