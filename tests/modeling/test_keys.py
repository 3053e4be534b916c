"""What makes keys and what keeps them: momentum encoder, its batch statistics, the queue."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from methods import assert_momentum_networks_follow
from tiny import tiny_model
from torch import nn

from revisit.modeling.momentum import ema_update, momentum_copy
from revisit.modeling.queue import AlignedQueue
from revisit.modeling.shuffle_bn import scatter_shuffled, shuffle_permutation


def numbered(first: int, count: int, width: int) -> torch.Tensor:
    """Rows that carry their serial number."""
    return torch.arange(first, first + count, dtype=torch.float32)[:, None].expand(count, width)


def test_queue_starts_as_random_unit_rows():
    queue = AlignedQueue(20, keys=8, features=5)
    for ring in (queue.keys, queue.features):
        assert torch.allclose(ring.norm(dim=1), torch.ones(20))
    assert queue.keys.std(dim=0).min() > 0
    assert queue.fill_level == 0


@given(st.integers(1, 40), st.lists(st.integers(1, 40), max_size=12))
def test_queue_holds_the_newest_rows_in_order_of_age(length, batches):
    """The law: after any batches the oldest K rows ever enqueued, aligned, oldest first from the pointer on."""
    queue = AlignedQueue(length, keys=3, features=2)
    count = 0
    for batch in batches:
        batch = min(batch, length)
        queue.enqueue(keys=numbered(count, batch, 3), features=numbered(count, batch, 2))
        count += batch
    by_age = torch.cat([queue.keys[queue.pointer :], queue.keys[: queue.pointer]])[:, 0]
    kept = min(count, length)
    assert by_age[length - kept :].tolist() == list(range(count - kept, count))
    written = queue.keys[:, 0] == queue.features[:, 0]
    assert int(written.sum()) >= kept
    assert queue.fill_level == kept / length


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_ring_can_be_seen_as_it_will_be_under_autocast_too(dtype):
    queue = AlignedQueue(7, dtype, keys=3)
    before, rows = queue.keys.clone(), numbered(5, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        seen = queue.after_enqueue("keys", rows)
    assert torch.equal(queue.keys, before) and seen.dtype == dtype
    queue.enqueue(keys=rows)
    assert torch.equal(queue.keys, seen)


def test_queue_travels_in_the_state_dict_with_its_pointer():
    queue, copy = AlignedQueue(7, keys=3), AlignedQueue(7, keys=3)
    queue.enqueue(keys=numbered(0, 5, 3))
    copy.load_state_dict(queue.state_dict())
    for q in (queue, copy):
        q.enqueue(keys=numbered(5, 4, 3))
    assert torch.equal(queue.keys, copy.keys)
    assert queue.keys[:, 0].tolist() == [7, 8, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "rows",
    [
        {"keys": torch.zeros(8, 3), "features": torch.zeros(8, 2)},  # more than K
        {"keys": torch.zeros(4, 3), "features": torch.zeros(3, 2)},  # not aligned
        {"keys": torch.zeros(4, 3)},  # a ring is missing
    ],
)
def test_queue_refuses_rows_that_would_break_alignment(rows):
    queue = AlignedQueue(7, keys=3, features=2)
    before = queue.keys.clone()
    with pytest.raises(ValueError, match="rows"):
        queue.enqueue(**rows)
    assert torch.equal(queue.keys, before) and queue.num_enqueued == 0


def test_ema_after_n_steps_equals_its_closed_form_in_float64():
    torch.manual_seed(0)
    m, steps = 0.9, 25
    source = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    average = momentum_copy(source)
    start = [p.clone() for p in average.parameters()]
    history = []
    for _ in range(steps):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(torch.randn_like(p))
        history.append([p.detach().clone() for p in source.parameters()])
        ema_update(average, source, m)
    for i, mean in enumerate(average.parameters()):
        closed = m**steps * start[i] + sum((1 - m) * m ** (steps - 1 - t) * history[t][i] for t in range(steps))
        assert mean.numpy() == pytest.approx(closed.detach().numpy(), rel=1e-12)  # without a gradient


def test_ema_leaves_bn_statistics_alone():
    source = nn.BatchNorm2d(3)
    average = momentum_copy(source)
    source(torch.randn(8, 3, 4, 4) * 5 + 2)
    ema_update(average, source, 0.5)
    assert torch.equal(average.running_mean, torch.zeros(3))
    assert torch.equal(average.running_var, torch.ones(3))
    assert average.num_batches_tracked == 0


def test_every_momentum_network_follows_its_own():
    assert_momentum_networks_follow(tiny_model("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0))


def test_permutation_depends_on_seed_iteration_and_part_alone_and_one_process_scatters_by_it():
    drawn = shuffle_permutation(16, 3, 5).tolist()
    assert drawn == shuffle_permutation(16, 3, 5, part=0).tolist()
    others = [shuffle_permutation(16, *which).tolist() for which in ((3, 6), (4, 5), (3, 5, 1))]
    assert drawn not in others
    assert sorted(drawn) == list(range(16))
    rows, permutation = torch.arange(6), np.array([3, 1, 5, 0, 2, 4])
    assert scatter_shuffled(rows, permutation).tolist() == [3, 1, 5, 0, 2, 4]
