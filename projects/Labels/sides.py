"""Groups to sides, such as training and test: sizes as asked, and of every class its share, by as few moves as do it.

A cut goes through an order in which the rarest class of each group is spread evenly. Then one group after another
changes its side, the one by which the deviations fall most. Of few groups, which may be large, other ways to begin are
tried, too.
"""

import numpy as np
from scipy.sparse import csr_array

from revisit.data.sources.subsets import evenly_spread

MOST_MOVES = 2000
FEW, CUTS = 1000, 5  # groups, of which so few begin in other ways, too, by more cuts
TOLERATED = 0.1  # share of the objects asked for of a class, or one group if that is more
# Of the images, while classes can still gain: a swap of two groups is two moves. What no move may exceed is one group.
TOLERATED_SIZE, GROUPS_OF_SIZE = 0.01, 2.0
IMAGES = 0  # the column of them
_FILLED = 1e9  # worth of a side that is not empty


def divided(content: csr_array, shares: np.ndarray, seed: int) -> np.ndarray:
    """(G,) int64, the side of each group.

    The images of a side differ from those asked for by one group, the largest, at most. Where a side can have a group
    by this rule, none is empty.

    Args:
        content: (G, 1 + C) float64 of G groups, how many images they have, above 0, and how many objects of each class.
        shares: (S,) above 0, of each side, 1 together.
    """
    content = content[:, content.sum(axis=0) > 0]
    moves, rng = _Moves(content, shares), np.random.default_rng(seed)
    starts = [_cut(content, shares, rng)]
    if content.shape[0] <= FEW:
        starts += [_largest_first(content, shares), *(_cut(content, shares, rng) for _ in range(CUTS))]
    return min((_improved(side, moves) for side in starts), key=moves.deviation)


def sums_of(content: csr_array, side: np.ndarray, count: int) -> np.ndarray:
    """(S, 1 + C) float64, what is on each of ``count`` sides, where ``side`` (G,) says where the groups are."""
    is_on = np.eye(count)[side]
    return (content.T @ is_on).T


def _improved(side: np.ndarray, moves: "_Moves") -> np.ndarray:
    for _ in range(MOST_MOVES):
        change = moves.changes(side)
        best, to = np.unravel_index(change.argmin(), change.shape)
        if change[best, to] > -1e-9:
            break
        side[best] = to
    return side


def _cut(content: csr_array, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(G,) sides by an order that is cut where its images come nearest to what is asked."""
    drawn = rng.permutation(content.shape[0])
    images = content[:, [IMAGES]].toarray().ravel()[drawn]
    order = evenly_spread(_rarest(content)[drawn], images, rng).argsort(kind="stable")
    ends = np.cumsum(images[order])
    wanted = np.cumsum(shares)[:-1] * ends[-1]
    middles = ends - images[order] / 2
    side = np.empty(len(drawn), int)
    side[drawn[order]] = np.searchsorted(wanted, middles, side="left")
    return side


def _largest_first(content: csr_array, shares: np.ndarray) -> np.ndarray:
    """(G,) sides: each group goes to where most images are missing."""
    images = content[:, [IMAGES]].toarray().ravel()
    missing = shares * images.sum()
    side = np.empty(len(images), int)
    for group in np.argsort(-images, kind="stable"):
        side[group] = missing.argmax()
        missing[side[group]] -= images[group]
    return side


def _rarest(content: csr_array) -> np.ndarray:
    """(G,) int64, of the classes of each group the one with fewest objects in all; IMAGES of one without."""
    totals = content.sum(axis=0)
    totals[IMAGES] = np.inf
    entries = content.tocoo()
    order = np.lexsort((totals[entries.col], entries.row))
    _, first = np.unique(entries.row[order], return_index=True)
    return entries.col[order][first]


class _Moves:
    """What becomes of the squared deviations, in units of what is tolerated, if a group changes its side."""

    def __init__(self, content: csr_array, shares: np.ndarray):
        self.content, self.images = content, content[:, [IMAGES]].toarray()  # (G, 1)
        self.wanted = shares[:, None] * content.sum(axis=0)  # (S, 1 + C)
        share, groups = (np.full(content.shape[1], value) for value in (TOLERATED, 1.0))
        share[IMAGES], groups[IMAGES] = TOLERATED_SIZE, GROUPS_OF_SIZE
        self.scale = np.maximum(share * self.wanted, groups * content.max(axis=0).toarray()) ** -2.0
        self.own = content.power(2) @ self.scale.T  # (G, S)

    def _off(self, side: np.ndarray) -> np.ndarray:
        """(S, 1 + C), what the sides have more than is wanted."""
        return sums_of(self.content, side, len(self.wanted)) - self.wanted

    def deviation(self, side: np.ndarray) -> float:
        """What the moves make smaller."""
        return float((self._off(side) ** 2 * self.scale).sum()) + _FILLED * (len(self.wanted) - len(np.unique(side)))

    def changes(self, side: np.ndarray) -> np.ndarray:
        """(G, S) of a move of each group to each side; infinite where the number of images forbids it."""
        rows, off = np.arange(len(side)), self._off(side)
        slope = self.content @ (2 * off * self.scale).T
        change = self.own + slope + (self.own - slope)[rows, side][:, None]
        groups = np.bincount(side, minlength=len(off))
        change += _FILLED * ((groups == 1)[side][:, None] - 1.0 * (groups == 0))
        room = self.images.max() + 1e-9
        too_many = off[:, IMAGES] + self.images > room
        too_few = off[side, IMAGES][:, None] - self.images < -room
        change[too_many | too_few] = np.inf
        change[rows, side] = 0
        return change
