from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from revisit.engine.hooks import ReadErrors, Throughput
from revisit.errors import UserError

from detectron2.utils.events import EventStorage


def test_each_unreadable_file_is_logged_once(caplog):
    hook = ReadErrors(num_images=10_000, images_per_step=100)
    with caplog.at_level(logging.WARNING):
        hook.observe(["a.jpg: truncated JPEG"])
        hook.observe(["a.jpg: truncated JPEG", "b.jpg: not an image"])
    assert [record.message.count("a.jpg") for record in caplog.records] == [1, 0]


def test_the_run_stops_when_more_than_one_percent_of_the_reads_fail():
    hook = ReadErrors(num_images=10_000, images_per_step=500)
    hook.observe(["x.jpg: bad"] * 5)
    hook.observe(["x.jpg: bad"] * 5)  # 10 of 1000: exactly one percent
    with pytest.raises(UserError, match="16 of 1500"):
        hook.observe(["x.jpg: bad"] * 6)


def test_a_small_data_set_is_judged_after_one_epoch():
    hook = ReadErrors(num_images=60, images_per_step=20)
    hook.observe(["x.jpg: bad"])
    hook.observe([])
    with pytest.raises(UserError, match="1 of 60"):
        hook.observe([])


@pytest.mark.parametrize(("waiting", "hints"), [(0.9, 1), (0.0, 0)])
def test_a_run_that_waits_for_data_is_told_once_what_to_do(caplog, waiting, hints):
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
