import pytest
from tiny import tiny_config

from revisit.engine.solver import resolve_schedule
from revisit.errors import UserError


def resolved(num_images: int, *options: object):
    cfg = tiny_config("SOLVER.MAX_ITER", 0, *options)
    resolve_schedule(cfg, num_images)
    return cfg


def test_epochs_become_iterations_with_the_real_size_of_the_data():
    options = ("SOLVER.EPOCHS", 200, "TEST.EVAL_EPOCHS", 5, "SOLVER.STEP_EPOCHS", (120, 160))
    cfg = resolved(118287, "SOLVER.IMS_PER_BATCH", 256, *options)
    assert cfg.SOLVER.MAX_ITER == 92400  # 462 whole batches an epoch
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 4620
    assert cfg.TEST.EVAL_PERIOD == 2310
    assert cfg.SOLVER.STEPS == (120 * 462, 160 * 462)


def test_a_length_in_iterations_wins():
    cfg = resolved(1000, "SOLVER.EPOCHS", 200, "SOLVER.MAX_ITER", 30, "SOLVER.CHECKPOINT_PERIOD", 10)
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.CHECKPOINT_PERIOD) == (30, 10)


@pytest.mark.parametrize(
    ("images", "epochs", "message"), [(1000, 0, "SOLVER.EPOCHS"), (7, 1, "7 images, fewer than one batch of 8")]
)
def test_a_run_without_length_or_without_a_whole_batch_is_refused(images, epochs, message):
    with pytest.raises(UserError, match=message):
        resolved(images, "SOLVER.EPOCHS", epochs)
