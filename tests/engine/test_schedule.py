from __future__ import annotations

import pytest
from tiny import tiny_config

from revisit.engine.schedule import resolve_schedule
from revisit.errors import UserError


def resolved(num_images: int, *options: object):
    cfg = tiny_config("SOLVER.MAX_ITER", 0, *options)
    resolve_schedule(cfg, num_images)
    return cfg


def test_epochs_become_iterations_with_the_real_size_of_the_data():
    cfg = resolved(118287, "SOLVER.IMS_PER_BATCH", 256, "SOLVER.EPOCHS", 200, "TEST.EVAL_EPOCHS", 5)
    assert cfg.SOLVER.MAX_ITER == 92400  # 462 whole batches an epoch
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 4620
    assert cfg.TEST.EVAL_PERIOD == 2310


def test_a_length_in_iterations_wins():
    cfg = resolved(1000, "SOLVER.EPOCHS", 200, "SOLVER.MAX_ITER", 30, "SOLVER.CHECKPOINT_PERIOD", 10)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.CHECKPOINT_PERIOD) == (30, 10)


def test_a_run_without_length_is_refused():
    with pytest.raises(UserError, match="SOLVER.EPOCHS"):
        resolved(1000, "SOLVER.EPOCHS", 0)


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(UserError, match="7 images, fewer than one batch of 8"):
        resolved(7)
