"""The order of very many images: each once, at random places, with random neighbours, whoever asks for which part."""

from itertools import islice

import numpy as np
import pytest

from revisit.data.loading import permutation
from revisit.data.loading.permutation import KeyedPermutation, draw_order
from revisit.data.loading.sampler import EpochBatchSampler
from revisit.data.randomness import Stream, counter_rng

SIZES = (1, 2, 3, 1000, 2**20 + 7)


@pytest.fixture
def keyed(monkeypatch):
    """Orders by (size, epoch), of few images too."""
    monkeypatch.setattr(permutation, "MOST_DRAWN", 0)
    return lambda size, epoch: draw_order(size, counter_rng(3, Stream.SHUFFLE, epoch))


@pytest.mark.parametrize("size", SIZES)
def test_every_image_is_there_once(keyed, size):
    order = keyed(size, 0)[:]
    assert order.dtype == np.int64 and (np.bincount(order, minlength=size) == 1).all() and len(order) == size


def test_a_part_of_an_order_is_the_same_without_the_rest(keyed):
    order = keyed(1000, 5)
    assert np.array_equal(np.concatenate([order[:17], order[17:400], order[400:2000]]), order[:])
    assert len(order[1000:]) == 0


def feistel_in_whole_numbers(size, keys, place):
    """One place, step by step: halves of bits, SplitMix64's finaliser, and on until the number is one of the range."""
    half = -(-(size - 1).bit_length() // 2)
    while True:
        left, right = divmod(place, 2**half)
        for key in keys:
            mixed = right ^ key
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                mixed = ((mixed ^ mixed >> shift) * factor) % 2**64
            mixed ^= mixed >> 31
            left, right = right, left ^ mixed % 2**half
        place = left * 2**half + right
        if place < size:
            return place


@pytest.mark.parametrize("size", [1, 2, 1000, 10**8, 2**40 + 1])
def test_an_order_is_a_feistel_network_that_walks_on(keyed, size):
    order = keyed(size, 2)
    start = max(0, size - 40)
    expected = [feistel_in_whole_numbers(size, order.keys, place) for place in range(start, size)]
    assert order[start:].tolist() == expected


def deviation(counts, expected, freedom):
    """Chi-square of counts, in standard deviations from what uniform ones have."""
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return (chi_square - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [50, 64])  # where numbers are sent on, and where none is
def test_every_image_is_as_often_at_every_place_and_next_to_every_other(keyed, size):
    orders = np.array([keyed(size, epoch)[:] for epoch in range(2000)])
    places = np.zeros((size, size))
    np.add.at(places, (np.arange(size), orders), 1)
    assert abs(deviation(places, len(orders) / size, (size - 1) ** 2)) < 4
    pairs = np.zeros((size, size))
    np.add.at(pairs, (orders[:, :-1], orders[:, 1:]), 1)
    others = ~np.eye(size, dtype=bool)
    assert not pairs[~others].any()
    assert abs(deviation(pairs[others], len(orders) / size, size * (size - 1) - 1)) < 4


def test_within_one_epoch_of_very_many_images_places_and_neighbours_are_uniform(keyed):
    size, bins = 2**20 + 7, 64
    order = keyed(size, 0)[:]
    part = order * bins // size
    at = np.arange(size) * bins // size
    for one, other in ((at, part), (part[:-1], part[1:])):
        counts = np.histogram2d(one, other, bins=bins)[0]
        expected = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
        assert abs(deviation(counts, expected, (bins - 1) ** 2)) < 4
    steps = np.bincount(np.diff(order) % size * bins // size, minlength=bins)
    assert abs(deviation(steps, size / bins, bins - 1)) < 4
    agreements = [(order == other).sum() for other in (np.arange(size), keyed(size, 1)[:])]
    assert max(agreements) < 8  # one on average


def test_up_to_a_stated_number_of_images_the_order_is_drawn_as_an_array(monkeypatch):
    monkeypatch.setattr(permutation, "MOST_DRAWN", 100)
    drawn, computed = (draw_order(size, counter_rng(0, Stream.SHUFFLE, 1)) for size in (100, 101))
    assert np.array_equal(drawn, counter_rng(0, Stream.SHUFFLE, 1).permutation(100))
    assert isinstance(computed, KeyedPermutation)


def test_batches_of_very_many_images_are_each_image_once_for_any_rank_and_start(keyed):
    def batches(count, **options):
        return list(islice(EpochBatchSampler(103, 10, 7, **options), count))

    whole = batches(20)
    for epoch in range(2):
        keys = [key for batch in whole[10 * epoch : 10 * epoch + 10] for key in batch]
        assert {key[0] for key in keys} == {epoch} and len({key[1] for key in keys}) == 100
    shares = [batches(15, rank=rank, world_size=2, start_iteration=5) for rank in range(2)]
    assert [one + other for one, other in zip(*shares, strict=True)] == whole[5:]


def test_the_first_batch_of_a_hundred_million_images_needs_no_array_of_them():
    assert permutation.MOST_DRAWN == 2**24  # another number is another order
    assert isinstance(draw_order(10**8, counter_rng(0, Stream.SHUFFLE, 0)), KeyedPermutation)
    batch = next(iter(EpochBatchSampler(10**8, 512, 0, start_iteration=10**5)))
    assert len(set(batch)) == 512 and max(index for _, index in batch) > 2**24
