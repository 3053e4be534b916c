"""Which images make up which batch, whatever the number of processes and wherever a run starts."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from revisit.data.sampler import EpochBatchSampler

SEEDS = st.integers(0, 2**63 - 1)


@st.composite
def sizes(draw):
    """(number of images, global batch, number of processes)."""
    world_size = draw(st.integers(1, 4))
    batch = world_size * draw(st.integers(1, 6))
    return draw(st.integers(batch, 60)), batch, world_size


def take(count, *args, **options):
    return list(islice(EpochBatchSampler(*args, **options), count))


@given(sizes(), SEEDS)
def test_an_epoch_shows_every_image_once_but_for_a_dropped_rest(size, seed):
    num_images, batch, world_size = size
    steps = EpochBatchSampler(num_images, batch, seed).iterations_per_epoch
    assert steps == num_images // batch
    shares = [take(3 * steps, num_images, batch, seed, rank=r, world_size=world_size) for r in range(world_size)]
    for epoch in range(3):
        part = slice(epoch * steps, (epoch + 1) * steps)
        keys = [key for share in shares for rank_batch in share[part] for key in rank_batch]
        assert {key[0] for key in keys} == {epoch}
        indices = [index for _, index in keys]
        assert len(indices) == len(set(indices)) == num_images - num_images % batch
        assert set(indices) <= set(range(num_images))


@given(sizes(), SEEDS, st.integers(0, 100))
def test_the_ranks_share_the_batch_of_a_single_process(size, seed, start):
    num_images, batch, world_size = size
    whole = take(5, num_images, batch, seed, start_iteration=start)
    shares = [
        take(5, num_images, batch, seed, rank=r, world_size=world_size, start_iteration=start)
        for r in range(world_size)
    ]
    for n in range(5):
        assert all(len(share[n]) == batch // world_size for share in shares)
        assert [key for share in shares for key in share[n]] == whole[n]


@given(sizes(), SEEDS, st.integers(0, 40))
def test_a_run_can_start_at_any_iteration(size, seed, start):
    num_images, batch, _ = size
    from_zero = take(start + 4, num_images, batch, seed)
    assert take(4, num_images, batch, seed, start_iteration=start) == from_zero[start:]


def order_of(epoch, seed=0, num_images=100):
    return [index for batch in take(10, num_images, 10, seed, start_iteration=10 * epoch) for _, index in batch]


def test_epochs_and_seeds_have_their_own_order():
    orders = [order_of(0), order_of(1), order_of(2), order_of(0, seed=1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    # Random permutations share one place on average; sorted runs or rotations of one another would not.
    agreements = [sum(a == b for a, b in zip(orders[0], order, strict=True)) for order in (range(100), *orders[1:])]
    assert max(agreements) < 8


def test_the_dropped_rest_changes_with_the_epoch():
    seen = [
        {index for batch in take(3, 10, 3, 0, start_iteration=3 * epoch) for _, index in batch} for epoch in range(40)
    ]
    assert set.union(*seen) == set(range(10))
    assert len({frozenset(range(10)) - images for images in seen}) > 5


@pytest.mark.parametrize(
    "args, options, match",
    [((20, 6, 0), {"world_size": 4}, "6 does not divide by 4"), ((5, 6, 0), {}, "5 images .* batch of 6")],
)
def test_batches_that_cannot_be_made_are_refused(args, options, match):
    with pytest.raises(ValueError, match=match):
        EpochBatchSampler(*args, **options)
