"""What is said over several evaluations without labels, however often the run was stopped between them."""

import logging
import shutil
from math import nan
from pathlib import Path

import pytest
import torch
from runs import assert_numbers_are_explained, assert_same, load, run_config, train, train_for_module

from revisit.engine.config_checks import check_training
from revisit.engine.label_free_history import LabelFreeHistory
from revisit.engine.setup import check_evaluation_data, make_config
from revisit.errors import UserError
from revisit.evaluation.label_free import LabelFreeScores
from revisit.viz.curves import read_metrics

OPTIONS = ("SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0, "TEST.EVAL_PERIOD", 2)
OPTIONS += ("MONITOR.IMAGES", "toy_scenes_train", "KNN_EVAL.IMAGE_SIZE", 32, "KNN_EVAL.NUM_NEIGHBORS", 5)
KNN = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train")
NAMES = ("rankme", "alignment", "uniformity", "neighbor_stability")


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory) -> Path:
    return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS)


def test_it_needs_no_bank_and_its_numbers_are_explained(whole):
    metrics = read_metrics(whole / "metrics.json")
    assert set(NAMES) < metrics.keys() and "knn_top1" not in metrics
    assert [iteration for iteration, _ in metrics["rankme"]] == [0, 1, 3, 5, 8]
    assert_numbers_are_explained(whole)


@pytest.mark.parametrize("iteration", [1, 2])  # an evaluation follows its checkpoint, or not
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(toy_datasets, whole, tmp_path, iteration):
    shutil.copy(whole / f"model_{iteration:07d}.pth", tmp_path)
    train(tmp_path, *OPTIONS, resume=True)
    ends = [load(folder / "model_final.pth")["trainer"]["hooks"]["LabelFreeHistory"] for folder in (whole, tmp_path)]
    assert len(ends[0]["last"]) == 3  # the last evaluation follows the last checkpoint
    assert_same(*ends)
    before, after = (read_metrics(folder / "metrics.json") for folder in (whole, tmp_path))
    for name in NAMES:
        assert after[name] == [point for point in before[name] if point[0] > iteration]


def test_it_is_beside_knn_at_every_evaluation_and_changes_no_training(toy_datasets, whole, tmp_path):
    storage = train(tmp_path, *OPTIONS, *KNN).storage
    at = {name: [iteration for _, iteration in storage.history(name).values()] for name in (*NAMES, "knn_top1")}
    assert at == {**dict.fromkeys(at, [0, 1, 3, 5, 8]), "neighbor_stability": [3, 5, 8]}
    assert all(0 < value <= 100 for value, _ in storage.history("neighbor_stability").values())
    assert_same(*(load(folder / "model_final.pth")["model"] for folder in (whole, tmp_path)))
    assert read_metrics(tmp_path / "metrics.json")["rankme"] == read_metrics(whole / "metrics.json")["rankme"]


def test_other_images_are_compared_among_themselves_alone(toy_datasets, whole, tmp_path, caplog):
    shutil.copy(whole / "model_0000002.pth", tmp_path)
    with caplog.at_level(logging.INFO):
        trainer = train(tmp_path, *OPTIONS, "MONITOR.MAX_IMAGES", 30, resume=True)
    assert "MONITOR.IMAGES are others than before: their evaluations are compared from here on" in caplog.text
    assert [iteration for _, iteration in trainer.storage.history("neighbor_stability").values()] == [5, 8]


FLAT = [(30, 0.2, -1.0), (31, 0.2, -1.0), (30.5, 0.205, -1.02), (30, 0.2, -1.05)]


@pytest.mark.parametrize(
    ("values", "said_after"),
    [
        ([(10, 0.5, -0.3), (20, 0.3, -0.5), *FLAT, *FLAT], 6),  # once
        (FLAT[:3], None),  # too few
        ([(31.6, 0.2, -1.0), *FLAT[1:]], None),  # RankMe by 5.3 %
        ([(30, 0.216, -1.0), *FLAT[1:]], None),  # alignment by 8 %
        ([(30, 0.2, -1.08), (30, 0.2, -1.0), *FLAT[2:]], None),  # uniformity by 8 %
        ([(nan, 0.2, -1.0), *FLAT[1:]], None),
    ],
)
def test_advice_comes_once_when_four_evaluations_lie_within_five_percent(
    toy_datasets, tmp_path, caplog, values, said_after
):
    """Of a run that stops after each evaluation."""
    cfg = run_config(tmp_path, *OPTIONS)
    hook, said = LabelFreeHistory(cfg), []
    for number, scores in enumerate(values, start=1):
        resumed = LabelFreeHistory(cfg)
        resumed.load_state_dict(hook.state_dict())
        hook = resumed
        with caplog.at_level(logging.INFO):
            hook._remember(LabelFreeScores(*scores, torch.zeros(60, 5)))
        said += [number] * ("the curves without labels have flattened" in caplog.text)
        caplog.clear()
    assert said == ([said_after] if said_after else [])


MONITORED = ("MONITOR.IMAGES", "toy_scenes_train", "DATASETS.TEST", "()", "KNN_EVAL.BANK", "")


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("pretrain", (*MONITORED, "MONITOR.IMAGES", ""), "TEST.EVAL_EPOCHS is 7, but DATASETS.TEST is empty"),
        ("pretrain", (*MONITORED, "TEST.KEEP_BEST", True), "only labels say which evaluation is the best: expected"),
        ("depth", ("MONITOR.IMAGES", "toy_scenes_train"), "MONITOR.IMAGES is 'toy_scenes_train': it is for pretrain"),
    ],
)
def test_what_makes_no_sense_is_refused(config, options, message):
    cfg = make_config(f"configs/toy/{config}.yaml", ["KNN_EVAL.LINEAR", "False", *map(str, options)])
    with pytest.raises(UserError, match=message):
        check_training(cfg)


def test_a_monitor_alone_is_something_to_evaluate(toy_datasets):
    cfg = make_config("configs/toy/pretrain.yaml", ["KNN_EVAL.LINEAR", "False", *MONITORED])
    check_training(cfg, eval_only=True)
    check_evaluation_data(cfg)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("KNN_EVAL.NUM_NEIGHBORS", 60), r"_train gives 60 images \(MONITOR.MAX_IMAGES 2048\): expected more"),
        (("MONITOR.MAX_IMAGES", 20), r"gives 20 images \(MONITOR.MAX_IMAGES 20\): expected more than the 20"),
        (("MONITOR.IMAGES", "folder:/nowhere"), "folder of images /nowhere not found"),
    ],
)
def test_too_few_images_are_refused(toy_datasets, options, message):
    cfg = make_config("configs/toy/pretrain.yaml", ["KNN_EVAL.LINEAR", "False", *map(str, (*MONITORED, *options))])
    with pytest.raises(UserError, match=message):
        check_evaluation_data(cfg)
