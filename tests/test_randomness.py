"""Random numbers are a pure function of what they are for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from revisit.randomness import Stream, counter_rng

SEEDS = st.integers(0, 2**63 - 1)
COUNTERS = st.integers(0, 2**40)
ARGUMENTS = st.tuples(SEEDS, st.sampled_from(list(Stream)), COUNTERS, COUNTERS)


def draws(seed, stream, *counters, count=4):
    return counter_rng(seed, stream, *counters).bit_generator.random_raw(count)


def test_global_generators_are_neither_read_nor_advanced():
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    numbers = draws(3, Stream.SHUFFLE, 5)
    assert np.random.random() == expected
    assert np.array_equal(draws(3, Stream.SHUFFLE, 5), numbers)


def philox_4x64(key, counter):
    """Philox-4x64-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), in whole numbers."""
    mask = 2**64 - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * 0xD2E7470EE14C6C93, c2 * 0xCA5A826395121157
        c0, c1, c2, c3 = (product1 >> 64) ^ c1 ^ k0, product1 & mask, (product0 >> 64) ^ c3 ^ k1, product0 & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return c0, c1, c2, c3


@settings(deadline=None)
@given(ARGUMENTS)
def test_numbers_are_philox_of_the_named_key_and_counter(arguments):
    """So every argument matters, counters are not interchangeable, and no two generators overlap."""
    seed, stream, first, second = arguments
    blocks = [philox_4x64((seed, int(stream)), (block, 0, second, first)) for block in (1, 2)]
    assert draws(*arguments, count=8).tolist() == [word for block in blocks for word in block]


def test_stream_numbers_are_part_of_every_recipe():
    numbers = {stream.name: int(stream) for stream in Stream}
    assert numbers.items() >= {"SHUFFLE": 1, "VIEWS": 2, "SHUFFLE_BN": 3, "TOY_SCENE": 4}.items()
    assert len(set(numbers.values())) == len(numbers)


def test_three_counters_are_refused():
    with pytest.raises(ValueError, match="two counters"):
        counter_rng(0, Stream.VIEWS, 1, 2, 3)


@pytest.mark.parametrize("arguments", [(-1, Stream.VIEWS, 0), (0, Stream.VIEWS, -1), (2**64, Stream.VIEWS, 0)])
def test_numbers_outside_64_bits_are_refused(arguments):
    with pytest.raises(OverflowError):
        counter_rng(*arguments)
