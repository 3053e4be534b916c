"""Which images make up which batch, whatever the number of processes and wherever a run starts."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_config
from trees import refused

from revisit.data.loading.finetune_loader import FinetuneLoader, MappedRecords
from revisit.data.loading.sampler import EpochBatchSampler, GroupedBatchSampler
from revisit.data.randomness import Stream, counter_rng
from revisit.engine.setup import make_config

SEEDS = st.integers(0, 2**63 - 1)
WORLD_SIZES = st.integers(1, 4)


@st.composite
def sizes(draw):
    """(number of images, global batch, number of processes)."""
    world_size = draw(WORLD_SIZES)
    batch = world_size * draw(st.integers(1, 6))
    return draw(st.integers(batch, 60)), batch, world_size


@st.composite
def shapes(draw):
    """(which records are wide, batch of a process, number of processes)."""
    world_size = draw(WORLD_SIZES)
    return draw(st.lists(st.booleans(), min_size=world_size, max_size=40)), draw(st.integers(1, 5)), world_size


def take(count, *args, sampler=EpochBatchSampler, **options):
    return list(islice(sampler(*args, **options), count))


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
    options = {"world_size": world_size, "start_iteration": start}
    shares = [take(5, num_images, batch, seed, rank=r, **options) for r in range(world_size)]
    for n in range(5):
        assert all(len(share[n]) == batch // world_size for share in shares)
        assert [key for share in shares for key in share[n]] == whole[n]


@given(
    st.one_of(st.tuples(st.just(EpochBatchSampler), sizes()), st.tuples(st.just(GroupedBatchSampler), shapes())),
    SEEDS,
    st.integers(0, 40),
)
def test_a_run_can_start_at_any_iteration(sampler_and_size, seed, start):
    sampler, (*size, world_size) = sampler_and_size
    options = {"sampler": sampler, "rank": world_size - 1, "world_size": world_size}
    assert take(4, *size, seed, start_iteration=start, **options) == take(start + 4, *size, seed, **options)[start:]


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
    shown = [take(3, 10, 3, 0, start_iteration=3 * epoch) for epoch in range(40)]
    dropped = {frozenset(range(10)) - {index for batch in batches for _, index in batch} for batches in shown}
    assert len(dropped) > 5 and not frozenset.intersection(*dropped)


@pytest.mark.parametrize(
    "args, options, match",
    [((20, 6, 0), {"world_size": 4}, "6 does not divide by 4"), ((5, 6, 0), {}, "5 images .* batch of 6")],
)
def test_batches_that_cannot_be_made_are_refused(args, options, match):
    with pytest.raises(ValueError, match=match):
        EpochBatchSampler(*args, **options)


@given(shapes(), SEEDS)
def test_every_epoch_of_finetuning_has_each_record_once_over_all_processes(shape, seed):
    wide, batch, world_size = shape
    places = []
    for rank in range(world_size):
        sampler = GroupedBatchSampler(wide, batch, seed, rank=rank, world_size=world_size)
        own = list(islice(sampler._positions(), 3 * len(wide)))
        assert [place for place, _ in own] == [rank + n * world_size for n in range(len(own))]
        places += own
    record_at = dict(places)
    for epoch in range(3):
        mine = [record_at[epoch * len(wide) + n] for n in range(len(wide))]
        assert sorted(mine) == list(range(len(wide)))


@given(shapes(), SEEDS)
def test_a_batch_of_finetuning_has_wide_images_or_others(shape, seed):
    wide, batch, world_size = shape
    for keys in take(20, wide, batch, seed, world_size=world_size, sampler=GroupedBatchSampler):
        assert len(keys) == batch and len({wide[index] for _, index in keys}) == 1


def test_what_the_mapper_draws_depends_on_the_place_in_the_run_alone():
    samples = MappedRecords([{"n": n} for n in range(4)], lambda record: (record["n"], np.random.random()), seed=3)
    once, again, elsewhere = samples[5, 2], samples[5, 2], samples[6, 2]
    assert once == again and once[1] != elsewhere[1]
    other_seed = MappedRecords([{"n": 2}], lambda record: (record["n"], np.random.random()), seed=4)
    assert other_seed[5, 0][1] != once[1]


def test_images_whose_size_no_record_has_are_in_one_group(toy_datasets):
    cfg = make_config("configs/toy/segmentation_voc.yaml", ["DATALOADER.ASPECT_RATIO_GROUPING", True])
    assert not any(FinetuneLoader(cfg, lambda record: record)._wide)


def test_another_sampler_is_refused():
    cfg = tiny_config("DATALOADER.SAMPLER_TRAIN", "RepeatFactorTrainingSampler")
    refused("expected TrainingSampler", FinetuneLoader, cfg, lambda record: record)


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


@given(ARGUMENTS)
def test_numbers_are_philox_of_the_named_key_and_counter(arguments):
    """So every argument matters, counters are not interchangeable, and no two generators overlap."""
    seed, stream, first, second = arguments
    blocks = [philox_4x64((seed, int(stream)), (block, 0, second, first)) for block in (1, 2)]
    assert draws(*arguments, count=8).tolist() == [word for block in blocks for word in block]


def test_stream_numbers_are_part_of_every_recipe():
    assert {stream.name: int(stream) for stream in Stream} == {
        "SHUFFLE": 1, "VIEWS": 2, "SHUFFLE_BN": 3, "TOY_SCENE": 4, "TOY_VIDEO": 5, "STEP": 6,
        "FINETUNE_ORDER": 7, "FINETUNE_SAMPLE": 8, "ANNOTATIONS": 9,
    }  # fmt: skip


def test_three_counters_are_refused():
    with pytest.raises(ValueError, match="two counters"):
        counter_rng(0, Stream.VIEWS, 1, 2, 3)


@pytest.mark.parametrize("arguments", [(-1, Stream.VIEWS, 0), (0, Stream.VIEWS, -1), (2**64, Stream.VIEWS, 0)])
def test_numbers_outside_64_bits_are_refused(arguments):
    with pytest.raises(OverflowError):
        counter_rng(*arguments)
