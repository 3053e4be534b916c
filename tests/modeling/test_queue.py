import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from revisit.modeling.queue import AlignedQueue


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
