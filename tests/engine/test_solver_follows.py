"""Keys of finetuning that follow the run: its learning rate the batch, its evaluations the length."""

import pytest
from trees import logged

from revisit.engine.merging import read_stated
from revisit.engine.schedules import build_schedule
from revisit.engine.setup import make_config
from revisit.keys import Facts, resolve_auto_values

RECIPE = "configs/own_images/detection.yaml"


def rate(*options: object, config_file: str = RECIPE) -> float:
    return make_config(config_file, options).SOLVER.BASE_LR


@pytest.mark.parametrize(("batch", "expected"), [(1, 0.0025), (4, 0.01), (6, 0.015), (16, 0.04)])
def test_the_rate_is_in_proportion_to_the_batch(batch, expected):
    assert rate("SOLVER.IMS_PER_BATCH", batch) == pytest.approx(expected)


def test_a_rate_that_is_stated_nearer_to_the_user_stays(tmp_path):
    assert rate("SOLVER.IMS_PER_BATCH", 8, "SOLVER.BASE_LR", 0.003) == 0.003
    file = tmp_path / "own.yaml"
    file.write_text("_BASE_: own_images/detection.yaml\nSOLVER: {BASE_LR: 0.005, IMS_PER_BATCH: 2}\n")
    assert rate(config_file=str(file)) == 0.005
    assert rate("SOLVER.IMS_PER_BATCH", 8, config_file=str(file)) == 0.005
    file.write_text("_BASE_: own_images/detection.yaml\nSOLVER: {IMS_PER_BATCH: 2}\n")
    assert rate(config_file=str(file)) == pytest.approx(0.005)


def test_the_rate_is_decided_once_and_in_one_line():
    options = ("SOLVER.IMS_PER_BATCH", 8)
    lines = [line for _, line in logged(make_config, RECIPE, options) if "SOLVER.BASE_LR" in line]
    assert len(lines) == 1
    assert lines[0].startswith("SOLVER.REFERENCE_BATCH 8, SOLVER.BASE_LR 0.02: a rate of 0.01 for batches of 4 images")
    cfg = make_config(RECIPE, options)
    resolve_auto_values(cfg, Facts(images=100, stated=read_stated(RECIPE, options).keys))
    resolve_auto_values(cfg, Facts(images=100))
    assert cfg.SOLVER.BASE_LR == pytest.approx(0.02)


@pytest.mark.parametrize("recipe", ["detection/voc_faster_rcnn_R50_C5", "blood_cells/detection"])
def test_rates_of_published_results_stay(recipe):
    before, after = (rate(*batch, config_file=f"{recipe}.yaml") for batch in ((), ("SOLVER.IMS_PER_BATCH", 32)))
    assert before == after


def test_evaluations_are_quarters_of_the_run_and_keep_the_best(toy_datasets):
    def resolved(*options: object) -> tuple[int, bool]:
        cfg = make_config(RECIPE, options)
        resolve_auto_values(cfg, Facts(images=60, stated=read_stated(RECIPE, options).keys))
        return cfg.TEST.EVAL_PERIOD, cfg.TEST.KEEP_BEST

    test = ("DATASETS.TEST", ("toy_voc_test",))
    assert resolved(*test) == (150, True)
    assert resolved(*test, "SOLVER.MAX_ITER", 10) == (3, True)
    assert resolved(*test, "TEST.EVAL_PERIOD", 7) == (7, True)
    assert resolved(*test, "TEST.EVAL_EPOCHS", 2) == (2 * 15, True)
    assert resolved(*test, "TEST.EVAL_PERIOD", 0) == (0, False)
    assert resolved() == (0, False)  # without images to test on


@pytest.mark.parametrize(
    ("shares", "steps"), [((0.9, 0.95), (9,)), ((0.99,), (9,)), ((0.7, 0.72), (7,)), ((0.01, 0.5), (1, 5))]
)
def test_shares_of_a_short_run_are_steps_within_it(shares, steps):
    cfg = make_config(
        "configs/toy/detection.yaml", ["SOLVER.MAX_ITER", 10, "SOLVER.STEPS", shares, "SOLVER.WARMUP_ITERS", 0]
    )
    assert cfg.SOLVER.STEPS == steps
    rates = [build_schedule(cfg, 10)(iteration / 10) for iteration in range(10)]
    assert [iteration for iteration in range(1, 10) if rates[iteration] < 0.5 * rates[iteration - 1]] == list(steps)
