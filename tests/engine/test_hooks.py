import logging
from types import SimpleNamespace

import pytest

from revisit.engine.hooks import CollapseAlarm, ReadErrors, Throughput
from revisit.errors import UserError

from detectron2.utils.events import EventStorage


@pytest.fixture
def storage():
    with EventStorage(0) as storage:
        yield storage


def test_each_unreadable_file_is_logged_once(caplog):
    hook = ReadErrors(global_batch=100, iterations_per_epoch=100)
    with caplog.at_level(logging.WARNING):
        hook.observe(["a.jpg: truncated JPEG"])
        hook.observe(["a.jpg: truncated JPEG", "b.jpg: not an image"])
    assert [record.message.count("a.jpg") for record in caplog.records] == [1, 0]


def test_the_run_stops_when_more_than_one_percent_of_the_reads_fail(storage):
    hook = ReadErrors(global_batch=500, iterations_per_epoch=20)
    hook.observe(["x.jpg: bad"] * 10)
    hook.observe([])  # 10 of 1010: less than one percent
    assert storage.history("read_failures").latest() == 10
    hook.observe(["x.jpg: bad"] * 20)  # not judged inside a window
    with pytest.raises(UserError, match="30 of 2030 .* x.jpg: bad"):
        hook.observe([])
    small = ReadErrors(global_batch=20, iterations_per_epoch=3)  # judged once an epoch
    small.observe(["x.jpg: bad"])
    small.observe([])
    with pytest.raises(UserError, match="1 of 61"):
        small.observe([])


def test_hooks_resume_where_they_were():
    errors, again = (ReadErrors(global_batch=8, iterations_per_epoch=100) for _ in range(2))
    for n in range(3):
        errors.observe(["x.jpg: bad"] * n)
    errors.gather_state()
    again.load_state_dict(errors.state_dict())
    assert again.state_dict() == {"steps": 3, "failures": 3}
    alarm = CollapseAlarm()
    alarm.load_state_dict({"warned": True})
    assert alarm.state_dict() == {"warned": True}


@pytest.mark.parametrize(("waiting", "hints"), [(0.9, 1), (0.0, 0)])
def test_a_run_that_waits_for_data_says_once_what_to_do(caplog, waiting, hints):
    hook = Throughput(global_batch=32, num_workers=1)
    with EventStorage(0) as storage, caplog.at_level(logging.WARNING):
        for iteration in range(60):
            storage.iter = iteration
            hook.trainer = SimpleNamespace(storage=storage, iter=iteration, start_iter=0)
            hook.before_step()
            storage.put_scalar("data_time", waiting)
            hook.after_step()
        assert storage.history("images_per_second").latest() > 0
    assert sum("DATALOADER.NUM_WORKERS" in record.message for record in caplog.records) == hints


@pytest.mark.parametrize(("spread", "warnings"), [(0.01, 1), (0.3, 0)])
def test_a_collapse_is_reported_once_and_a_healthy_run_never_is(storage, caplog, spread, warnings):
    hook = CollapseAlarm()
    for iteration in range(2 * CollapseAlarm.WINDOW):
        hook.trainer = SimpleNamespace(iter=iteration, start_iter=0, storage=storage)
        storage.put_scalar("embedding_std", spread)
        with caplog.at_level(logging.WARNING):
            hook.after_step()
    assert len([record for record in caplog.records if "collapse" in record.message]) == warnings
