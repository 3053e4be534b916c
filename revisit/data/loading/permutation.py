"""The order of an epoch, whatever the number of images: drawn as one array, or computed where it is looked at."""

from dataclasses import dataclass

import numpy as np

# Images whose order is an array in every process, 128 MB of it at most, drawn in half a second. 10**8 would take
# 800 MB and some seconds, again in every epoch. Part of every recipe: another number is another order.
MOST_DRAWN = 2**24
ROUNDS = 8  # four look random to whoever sees a few places (Luby and Rackoff, 1988); an epoch shows all


@dataclass(frozen=True)
class KeyedPermutation:
    """A permutation of 0 to ``size`` - 1 that takes no memory: a slice of it is computed from ``keys``.

    A Feistel network permutes the numbers of an even number of bits, at most four times as many as are wanted. Whatever
    it sends out of the range is sent on until it is in the range again (cycle walking: Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002).
    """

    size: int
    keys: tuple[int, ...]  # of 64 bits, one a round

    def __getitem__(self, part: slice) -> np.ndarray:
        """What stands at these places, int64."""
        places = np.arange(*part.indices(self.size), dtype=np.uint64)
        images = self._scrambled(places)
        while (outside := images >= self.size).any():
            images[outside] = self._scrambled(images[outside])
        return images.astype(np.int64)

    def _scrambled(self, numbers: np.ndarray) -> np.ndarray:
        bits = (self.size - 1).bit_length()
        half = np.uint64((bits + 1) // 2)
        mask = (np.uint64(1) << half) - np.uint64(1)
        left, right = numbers >> half, numbers & mask
        for key in self.keys:
            mixed = _mixed(right ^ np.uint64(key))
            left, right = right, left ^ (mixed & mask)
        return left << half | right


def _mixed(words: np.ndarray) -> np.ndarray:
    """Every bit of a word depends on all: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


def draw_order(size: int, rng: np.random.Generator) -> np.ndarray | KeyedPermutation:
    """A permutation of 0 to ``size`` - 1 that depends on the generator alone; slices of it are int64 arrays."""
    if size <= MOST_DRAWN:
        return rng.permutation(size)
    keys = rng.integers(2**64, size=ROUNDS, dtype=np.uint64)
    return KeyedPermutation(size, tuple(keys.tolist()))
