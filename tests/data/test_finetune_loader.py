"""Batches of finetuning: Detectron2's rules, but the same from any start, on any number of workers."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_config

from revisit.data.finetune_loader import FinetuneLoader, GroupedBatchSampler, MappedRecords
from revisit.errors import UserError

SEEDS = st.integers(0, 2**63 - 1)


@st.composite
def shapes(draw):
    """(which records are wide, batch of a process, number of processes)."""
    world_size = draw(st.integers(1, 4))
    wide = draw(st.lists(st.booleans(), min_size=world_size, max_size=40))
    return wide, draw(st.integers(1, 5)), world_size


def take(count, *args, **options):
    return list(islice(GroupedBatchSampler(*args, **options), count))


@given(shapes(), SEEDS)
def test_every_epoch_has_each_record_once_over_all_processes(shape, seed):
    wide, batch, world_size = shape
    samplers = [GroupedBatchSampler(wide, batch, seed, rank=r, world_size=world_size) for r in range(world_size)]
    count = 3 * len(wide)
    places = {}
    for sampler in samplers:
        for place, index in islice(sampler._places(), count):
            assert place not in places
            places[place] = index
    for epoch in range(3):
        mine = [places[epoch * len(wide) + n] for n in range(len(wide))]
        assert sorted(mine) == list(range(len(wide)))


@given(shapes(), SEEDS, st.integers(0, 30))
def test_a_run_can_start_at_any_iteration(shape, seed, start):
    wide, batch, world_size = shape
    options = {"rank": world_size - 1, "world_size": world_size}
    assert (
        take(3, wide, batch, seed, start_iteration=start, **options)
        == take(start + 3, wide, batch, seed, **options)[start:]
    )


@given(shapes(), SEEDS)
def test_a_batch_has_wide_images_or_others(shape, seed):
    wide, batch, world_size = shape
    for keys in take(20, wide, batch, seed, world_size=world_size):
        assert len(keys) == batch and len({wide[index] for _, index in keys}) == 1


def test_what_the_mapper_draws_depends_on_the_place_in_the_run_alone():
    samples = MappedRecords([{"n": n} for n in range(4)], lambda record: (record["n"], np.random.random()), seed=3)
    once, again, elsewhere = samples[5, 2], samples[5, 2], samples[6, 2]
    assert once == again and once[1] != elsewhere[1]
    other_seed = MappedRecords([{"n": 2}], lambda record: (record["n"], np.random.random()), seed=4)
    assert other_seed[5, 0][1] != once[1]


def test_another_sampler_is_refused():
    cfg = tiny_config("DATALOADER.SAMPLER_TRAIN", "RepeatFactorTrainingSampler")
    with pytest.raises(UserError, match="expected TrainingSampler"):
        FinetuneLoader(cfg, lambda record: record)
