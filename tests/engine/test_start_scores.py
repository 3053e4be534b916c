"""What training made of the network that it began with: said at every evaluation that is worse, and at the end."""

import json
import logging
import shutil

import pytest
from runs import assert_same, load, run_config, train, train_for_module

from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.start_scores import StartScores
from revisit.viz.curves import read_metrics

from detectron2.utils.env import seed_all_rng

KNN = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 32)
OPTIONS = (*KNN, "SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0)
OPTIONS += ("TEST.EVAL_PERIOD", 2)


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory):
    return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS)


def test_the_scores_of_iteration_0_are_those_of_the_weights_that_it_began_with(toy_datasets, whole, tmp_path):
    cfg = run_config(tmp_path, *OPTIONS)
    seed_all_rng(cfg.SEED)  # as tools/train_net.py does
    PretrainTrainer.evaluate(cfg, resume=False)
    random = json.loads((tmp_path / "evaluation.json").read_text())
    scores = read_metrics(whole / "metrics.json")["knn_top1"]
    assert [iteration for iteration, _ in scores] == [0, 1, 4] and scores[0][1] == random["knn_top1"]
    assert load(whole / "model_final.pth")["trainer"]["hooks"]["StartScores"]["start"] == random
    assert (whole / "neighbours_0000000.png").is_file()


def test_a_resumed_run_compares_with_its_first_step(toy_datasets, whole, tmp_path):
    shutil.copy(whole / "model_0000002.pth", tmp_path)
    train(tmp_path, *OPTIONS, resume=True)
    ends = [load(folder / "model_final.pth") for folder in (whole, tmp_path)]
    assert_same(*(end["trainer"]["hooks"]["StartScores"] for end in ends))
    assert_same(*(end["model"] for end in ends))
    assert [iteration for iteration, _ in read_metrics(tmp_path / "metrics.json")["knn_top1"]] == [4]


def test_a_run_that_is_evaluated_in_another_way_is_compared_with_nothing(toy_datasets, whole, tmp_path, caplog):
    shutil.copy(whole / "model_0000002.pth", tmp_path)
    with caplog.at_level(logging.INFO):
        train(tmp_path, *OPTIONS, "KNN_EVAL.NUM_NEIGHBORS", 3, resume=True)
    assert "KNN_EVAL is another than at the first step" in caplog.text and "training has taken" not in caplog.text


def test_the_first_evaluation_changes_no_training(toy_datasets, whole, tmp_path):
    train(tmp_path, *OPTIONS, "KNN_EVAL.BANK", "", "DATASETS.TEST", (), "TEST.EVAL_PERIOD", 0)
    assert_same(*(load(folder / "model_final.pth")["model"] for folder in (whole, tmp_path)))


def test_without_anything_to_evaluate_nothing_is_said_of_the_start(toy_datasets, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        train(tmp_path, "SOLVER.MAX_ITER", 1)
    assert "before the first step" not in caplog.text


@pytest.mark.parametrize(
    ("now", "is_last", "warned", "end"),
    [
        ({"knn_top1": 30.0, "linear_top1": 41.5}, False, [], ""),
        ({"knn_top1": 26.9, "linear_top1": 45.0}, False, ["knn_top1 is 26.90 %, below the 30.00 %"], ""),
        (
            {"knn_top1": 26.9, "linear_top1": 40.0},
            True,
            ["knn_top1 is 26.90 %, below the 30.00 %", "linear_top1 is 40.00 %, below the 41.00 %"],
            "knn_top1 from 30.00 to 26.90 %, linear_top1 from 41.00 to 40.00 %",
        ),
        ({"knn_top1": 50.0, "linear_top1": 60.0}, True, [], "knn_top1 from 30.00 to 50.00 %, linear_top1 from 41.00"),
    ],
)
def test_scores_below_the_start_are_warned_of_and_the_end_says_what_changed(
    toy_datasets, tmp_path, caplog, now, is_last, warned, end
):
    hook = StartScores(run_config(tmp_path, *OPTIONS))
    hook.load_state_dict(hook.state_dict() | {"start": {"knn_top1": 30.0, "linear_top1": 41.0}})
    hook.trainer = type("Trainer", (), {"max_iter": 4})()
    with caplog.at_level(logging.INFO):
        hook._consider(now, 3 if is_last else 1)
    messages = [record.getMessage() for record in caplog.records]
    assert [any(line.startswith(start) for line in messages) for start in warned] == [True] * len(warned)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == len(warned)
    assert (f"training has taken {end}" in caplog.text) == bool(end)
