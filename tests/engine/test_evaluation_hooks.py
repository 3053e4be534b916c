"""What follows evaluations, the best network, curves without labels, scores below the start, is the same however often
the run was stopped between them or in their midst."""

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import nan
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import launch_forks
from runs import assert_numbers_are_explained, assert_same, load, run, run_config, train, train_for_module
from tiny import tiny_config
from torch import distributed
from torch.distributed import distributed_c10d
from trees import refusal, refused

from projects.FrozenEvaluations.while_pretraining import LinearClassifier
from projects.Reports.start_scores import StartScores
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.metrics_file import read_metrics
from revisit.checkpoint.run_folder import checkpoints_of_run
from revisit.compat.private_names import process_timeout
from revisit.engine.config_checks import check_evaluation
from revisit.engine.data_checks import inspect_evaluation
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.evaluation.classifiers import NearestNeighbors
from revisit.evaluation.registry import is_scored_as, scored_by
from revisit.keys import Facts, resolve_auto_values

from detectron2.utils import comm
from detectron2.utils.env import seed_all_rng
from detectron2.utils.events import get_event_storage

LAST = 7
OPTIONS = ("SOLVER.MAX_ITER", LAST + 1, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0)
OPTIONS += ("VIEWS.NUM_SMALL", 0, "TEST.EVAL_PERIOD", 2, "KNN_EVAL.IMAGE_SIZE", 32, "KNN_EVAL.NUM_NEIGHBORS", 5)
KNN = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train")
MONITORED = ("MONITOR.IMAGES", "toy_scenes_train", "MONITOR.MAX_IMAGES", 30)
EVALUATED = [0, 1, 3, 5, LAST]  # iterations; 0 is before the first step


@pytest.fixture(scope="module")
def whole(toy_root, tmp_path_factory) -> Path:
    """A run of 8 iterations with all of its checkpoints, judged with labels and without."""
    return train_for_module(toy_root, tmp_path_factory.mktemp("whole"), *OPTIONS, *KNN, *MONITORED)


def hooks_of(output: Path) -> dict:
    return load(output / "model_final.pth")["trainer"]["hooks"]


def record(output: Path) -> dict:
    return json.loads((output / "best.json").read_text())


def final_score(output: Path) -> float:
    return json.loads((output / "evaluation.json").read_text())["knn_top1"]


def test_evaluations_are_written_and_explained(whole):
    metrics = read_metrics(whole / "metrics.json")
    assert [iteration for iteration, _ in metrics["neighbor_stability"]] == EVALUATED[2:]
    for name in ("rankme", "alignment", "uniformity", "knn_top1"):
        assert [iteration for iteration, _ in metrics[name]] == EVALUATED
    assert final_score(whole) == metrics["knn_top1"][-1][1]
    assert all(0 < value <= 100 for _, value in metrics["neighbor_stability"])
    assert_numbers_are_explained(whole)


@pytest.mark.parametrize("iteration", [1, 2])  # with an evaluation or without
def test_a_resumed_runs_evaluations_equal_the_whole_runs(toy_datasets, whole, tmp_path, iteration):
    shutil.copy(whole / f"model_{iteration:07d}.pth", tmp_path)
    train(tmp_path, *OPTIONS, *KNN, *MONITORED, resume=True)
    assert_same(*(load(folder / "model_final.pth") for folder in (whole, tmp_path)))
    before, after = (read_metrics(folder / "metrics.json") for folder in (whole, tmp_path))
    for name in ("rankme", "neighbor_stability", "knn_top1"):
        assert after[name] == [point for point in before[name] if point[0] > iteration]


def test_evaluations_change_neither_training_nor_each_other(toy_datasets, whole, tmp_path):
    train(tmp_path / "none", *OPTIONS, "TEST.EVAL_PERIOD", 0)
    train(tmp_path / "unlabelled", *OPTIONS, *MONITORED)
    for name in ("none", "unlabelled"):
        assert_same(*(load(folder / "model_final.pth")["model"] for folder in (whole, tmp_path / name)))
    assert_same(*(hooks_of(folder)["LabelFreeHistory"] for folder in (whole, tmp_path / "unlabelled")))
    metrics = read_metrics(tmp_path / "unlabelled/metrics.json")
    assert metrics["rankme"] == read_metrics(whole / "metrics.json")["rankme"] and "knn_top1" not in metrics
    assert not (tmp_path / "none/evaluation.json").exists()


def test_a_failed_evaluation_names_network_and_command(toy_datasets, tmp_path, monkeypatch):
    def test(cls, cfg, model, evaluators=None):
        raise UserError("a.png is unreadable")

    monkeypatch.setattr(PretrainTrainer, "test", classmethod(test))
    line, network = refusal(train, tmp_path, *OPTIONS), tmp_path / "model_not_evaluated.pth"
    assert line.startswith("a.png is unreadable; ") and f"--eval-only --weights {network}" in line and network.is_file()


def test_a_failed_evaluation_saves_its_network(toy_datasets, tmp_path, monkeypatch):
    before_the_first_step = iter([{}])

    def test(cls, cfg, model, evaluators=None):
        for results in before_the_first_step:
            return results
        raise ZeroDivisionError

    monkeypatch.setattr(PretrainTrainer, "test", classmethod(test))
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, *OPTIONS, *MONITORED, "SOLVER.CHECKPOINT_PERIOD", 100)
    assert load(tmp_path / "model_not_evaluated.pth")["iteration"] == 1
    with pytest.raises(ZeroDivisionError):  # no run resumes from it, and its evaluation comes again
        train(tmp_path, *OPTIONS, *MONITORED, resume=True)


# The best network.

SCORES = {0: 5.0, 1: 10.0, 3: 30.0, 5: nan, LAST: 30.0}
KEEPING = (*OPTIONS, *KNN, "SEED", 3, "TEST.KEEP_BEST", True)
PATIENT = (*KEEPING, "TEST.PATIENCE", 1)


class Killed(BaseException):
    """As by the kernel: nothing of the run catches it."""


@contextmanager
def evaluations(scores: dict[int, float | None]) -> Iterator[None]:
    """They find these scores, by iteration; None kills the run in their midst."""

    def test(cls, cfg, model, evaluators=None):
        if (score := scores[get_event_storage().iter]) is None:
            raise Killed
        return {"knn_top1": score}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainTrainer, "test", classmethod(test))
        yield


@pytest.fixture
def scores() -> Iterator[dict[int, float | None]]:
    planned = dict(SCORES)
    with evaluations(planned):
        yield planned


@pytest.mark.parametrize(
    ("others", "best", "waited"),
    [({}, 3, 2), ({LAST: 31.0}, LAST, 0), ({1: 31.0}, 1, 3), ({3: nan, LAST: nan}, 1, 3)],
)
def test_the_first_best_network_is_kept_not_resumed(toy_datasets, tmp_path, scores, others, best, waited):
    scores |= others
    train(tmp_path, *KEEPING)
    assert record(tmp_path) == {"score": "knn_top1", "value": scores[best], "iteration": best, "waited": waited}
    kept = load(tmp_path / "model_best.pth")
    assert_same(kept["model"], load(tmp_path / f"model_{best:07d}.pth")["model"])
    assert kept["iteration"] == best and kept["best"]["value"] == scores[best]
    assert checkpoints_of_run(tmp_path)[0].stem == "model_final"


@contextmanager
def killed_in_writing(iteration: int, *names: str) -> Iterator[None]:
    """The run is, by the first of the checkpoints of these names in the iteration, before it is on the disk."""
    save = RevisitCheckpointer.save

    def killed(checkpointer: RevisitCheckpointer, name: str, **facts: object) -> None:
        if name in names and facts["iteration"] == iteration:
            raise Killed
        save(checkpointer, name, **facts)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RevisitCheckpointer, "save", killed)
        yield


@pytest.fixture(scope="module")
def chosen(toy_root, tmp_path_factory) -> Path:
    """A run whose evaluations found SCORES."""
    with evaluations(SCORES):
        return train_for_module(toy_root, tmp_path_factory.mktemp("chosen"), *KEEPING)


@pytest.mark.parametrize(
    ("when", "names", "period"),
    [
        *((1, (), 1), (5, (), 3), (LAST, (), 100)),  # in the evaluation
        *((1, ("model_best",), 1), (3, ("model_best",), 3)),
        *((3, ("model_0000003",), 1), (LAST, ("model_final",), 3)),
    ],
)
def test_a_run_killed_while_evaluating_chooses_the_same(toy_datasets, chosen, tmp_path, scores, when, names, period):
    options = (*KEEPING, "SOLVER.CHECKPOINT_PERIOD", period)
    scores[when] = scores[when] if names else None
    with killed_in_writing(when, *names):
        train(tmp_path, *options)
    scores |= SCORES
    assert train(tmp_path, *options, resume=True).start_iter == when // period * period
    assert record(tmp_path) == record(chosen) and final_score(tmp_path) == final_score(chosen)
    for name in ("model_best", "model_final"):
        assert_same(*(load(folder / f"{name}.pth") for folder in (chosen, tmp_path)))


def test_a_run_out_of_patience_ends_for_good(toy_datasets, tmp_path, scores, caplog):
    scores[3] = 9.0  # worse than iteration 1
    with caplog.at_level(logging.INFO):
        ended = train(tmp_path, *PATIENT)
    assert "training has taken knn_top1 from 5.00 to 9.00 %" in caplog.text
    assert ended.iter == 3 and "no better knn_top1 than 10.00 in 1 evaluations: model_best.pth" in caplog.text
    assert final_score(tmp_path) == 9
    final, best = load(tmp_path / "model_final.pth"), load(tmp_path / "model_best.pth")
    assert (final["iteration"], best["iteration"]) == (3, 1)
    assert_same(final["model"], load(tmp_path / "model_0000003.pth")["model"])
    with caplog.at_level(logging.INFO):
        again = train(tmp_path, *PATIENT, resume=True)
    assert "nothing to do: no better knn_top1" in caplog.text and again.start_iter == 4
    assert load(tmp_path / "model_final.pth")["iteration"] == 3 and final_score(tmp_path) == 9
    train(tmp_path, *KEEPING, resume=True)  # without patience it continues
    assert load(tmp_path / "model_final.pth")["iteration"] == LAST and record(tmp_path)["iteration"] == LAST


def test_patience_ends_a_run_one_iteration_early(toy_datasets, tmp_path, scores):
    scores |= {3: 31.0, 5: 9.0}
    assert train(tmp_path, *PATIENT, "SOLVER.MAX_ITER", LAST).iter == 5


def test_a_continued_run_drops_its_earlier_results(toy_datasets, tmp_path, scores):
    train(tmp_path, *KEEPING, "SOLVER.MAX_ITER", 2)
    assert final_score(tmp_path) == 10
    scores[3] = None
    with pytest.raises(Killed):
        train(tmp_path, *KEEPING, resume=True)
    assert not (tmp_path / "evaluation.json").exists()


def test_a_foreign_best_checkpoint_is_warned_of(toy_datasets, chosen, tmp_path, scores, caplog):
    output = shutil.copytree(chosen, tmp_path / "run")
    for name in ("model_final", f"model_{LAST:07d}"):
        (output / f"{name}.pth").unlink()
    shutil.copy(output / "model_0000002.pth", output / "model_best.pth")
    with caplog.at_level(logging.WARNING):
        train(output, *KEEPING, resume=True)
    assert "model_best.pth is not of iteration 3, the best so far (knn_top1 30.00)" in caplog.text
    assert record(output)["iteration"] == load(output / "model_best.pth")["iteration"] == LAST


def test_a_run_that_is_shortened_to_what_it_has_done_has_no_result_and_says_so(toy_datasets, chosen, tmp_path, caplog):
    output = shutil.copytree(chosen, tmp_path / "run")
    (output / "model_final.pth").unlink()
    with caplog.at_level(logging.INFO):
        train(output, *KEEPING, resume=True)
    assert "nothing to do: the run has finished" in caplog.text
    assert "has no model_final.pth, as the run was to be longer: its last checkpoint is the result" in caplog.text


def test_a_best_network_by_another_evaluation_is_forgotten(toy_datasets, chosen, tmp_path, scores, caplog):
    output = shutil.copytree(chosen, tmp_path / "run")
    for name in ("model_final", f"model_{LAST:07d}"):
        (output / f"{name}.pth").unlink()
    with caplog.at_level(logging.WARNING):
        train(output, *KEEPING, "KNN_EVAL.NUM_NEIGHBORS", 3, resume=True)
    assert "the evaluation is another than before: the best is chosen among those from here on" in caplog.text
    assert record(output)["iteration"] == load(output / "model_best.pth")["iteration"] == LAST


@pytest.mark.parametrize(
    ("pairs", "is_same"),
    [
        (("TEST.PATIENCE", 3, "TEST.EVAL_PERIOD", 7), True),
        (("MODEL.RETINANET.SCORE_THRESH_TEST", 0.5), True),  # which this network does not read
        (("TEST.DETECTIONS_PER_IMAGE", 1), False),
        (("INPUT.MIN_SIZE_TEST", 48), False),
        (("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.5), False),
        (("DATASETS.TEST", ("toy_voc_test", "toy_voc_val")), False),
    ],
)
def test_scores_of_a_detector_compare_while_it_is_tested_alike(pairs, is_same):
    cfg = make_config("configs/toy/detection.yaml", ())
    now = make_config("configs/toy/detection.yaml", pairs)
    before = scored_by(cfg)
    assert is_scored_as(now, before) == is_same and is_scored_as(now, None)
    of_earlier_versions = {"test": before["test"]}
    assert is_scored_as(now, of_earlier_versions) == ("DATASETS.TEST" not in pairs)


def test_a_best_network_has_the_score_on_record(toy_datasets, tmp_path):
    options = (
        f"OUTPUT_DIR {tmp_path} SEED 5 SOLVER.IMS_PER_BATCH 4 SOLVER.MAX_ITER 3 TEST.EVAL_PERIOD 1 "
        "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu TEST.KEEP_BEST True "
        "INPUT.CROP.SIZE [65,65] DATALOADER.NUM_WORKERS 0"
    )
    cfg = make_config("configs/toy/depth.yaml", options.split())
    resolve_auto_values(cfg, Facts(images=60))
    run(cfg, trainer_class=FinetuneTrainer)
    errors = [value for _, value in read_metrics(tmp_path / "metrics.json")["depth/rmse"]]
    best = record(tmp_path)
    assert len(errors) == 3 and best["value"] == min(errors) == errors[best["iteration"]]
    cfg.MODEL.WEIGHTS = str(tmp_path / "model_best.pth")
    assert FinetuneTrainer.evaluate(cfg, resume=False)["depth"]["rmse"] == best["value"]


def test_a_full_disk_leaves_the_record_unchanged(toy_datasets, tmp_path, scores, monkeypatch, caplog):
    save = RevisitCheckpointer.save

    def full(self, name: str, **facts: object) -> None:
        if name == "model_best" and facts["iteration"] == 3:
            raise OSError("No space left on device")
        save(self, name, **facts)

    monkeypatch.setattr(RevisitCheckpointer, "save", full)
    with caplog.at_level(logging.ERROR):
        train(tmp_path, *KEEPING)
    assert "NO BEST CHECKPOINT" in caplog.text and record(tmp_path)["iteration"] == LAST  # as good as iteration 3


# Without labels.


def test_other_monitored_images_start_a_new_comparison(toy_datasets, whole, tmp_path, caplog):
    shutil.copy(whole / "model_0000002.pth", tmp_path)
    with caplog.at_level(logging.INFO):
        train(tmp_path, *OPTIONS, *KNN, *MONITORED, "MONITOR.MAX_IMAGES", 20, resume=True)
    assert "MONITOR.IMAGES are others than before" in caplog.text
    assert "is another than at the first step" in caplog.text and "training has taken" not in caplog.text
    assert [iteration for iteration, _ in read_metrics(tmp_path / "metrics.json")["neighbor_stability"]] == [5, LAST]


UNLABELLED = (*MONITORED, "DATASETS.TEST", "()", "KNN_EVAL.BANK", "", "KNN_EVAL.LINEAR", "False")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("KNN_EVAL.NUM_NEIGHBORS", "60"), "KNN_EVAL.NUM_NEIGHBORS 60: lower that, or .* MONITOR.IMAGES ''"),
        (("MONITOR.MAX_IMAGES", "20"), "MONITOR.MAX_IMAGES"),
        (("MONITOR.IMAGES", "folder:/nowhere"), "/nowhere"),
    ],
)
def test_a_monitor_alone_needs_enough_images(toy_datasets, options, key):
    cfg = make_config("configs/toy/pretrain.yaml", UNLABELLED)
    check_evaluation(cfg, eval_only=True)
    inspect_evaluation(cfg)
    cfg.merge_from_list(list(options))
    refused(key, inspect_evaluation, cfg)


# The start.


def test_iteration_0_has_the_scores_of_initial_weights(toy_datasets, whole, tmp_path):
    cfg = run_config(tmp_path, *OPTIONS, *KNN, *MONITORED)
    seed_all_rng(cfg.SEED)  # as tools/train_net.py does
    PretrainTrainer.evaluate(cfg, resume=False)
    random = json.loads((tmp_path / "evaluation.json").read_text())
    assert read_metrics(whole / "metrics.json")["knn_top1"][0][1] == random["knn_top1"]
    assert hooks_of(whole)["StartScores"]["start"] == random
    assert (whole / "neighbours_0000000.png").is_file()


@pytest.mark.parametrize(
    ("now", "done", "warnings", "change"),
    [
        ({"knn_top1": 26.9, "linear_top1": 45.0}, 30, ["knn_top1"], ""),
        ({"knn_top1": 26.9, "linear_top1": 45.0}, 60, ["knn_top1"], "knn_top1 from 30.00 to 26.90 %"),
        ({"knn_top1": 36.9, "linear_top1": 45.0}, 60, [], "knn_top1 from 30.00 to 36.90 %"),
        ({"knn_top1": 36.9, "linear_top1": 45.0}, 90, [], ""),
        ({"knn_top1": 26.9, "linear_top1": 40.0}, 100, ["knn_top1", "linear_top1"], "knn_top1 from 30.00 to 26.90 %"),
        ({"knn_top1": 30.0, "linear_top1": 60.0}, 100, [], "knn_top1 from 30.00 to 30.00 %, linear_top1 from 41.00"),
    ],
)
def test_scores_below_the_start_are_warned_of(caplog, now, done, warnings, change):
    cfg = tiny_config(*KNN, "KNN_EVAL.LINEAR", True)
    hook = StartScores([NearestNeighbors(cfg), LinearClassifier(cfg)], period=30)
    hook.load_state_dict(hook.state_dict() | {"start": {"knn_top1": 30.0, "linear_top1": 41.0}})
    hook.trainer = SimpleNamespace(
        cfg=cfg, is_last_step=done == 100, iter=done - 1, max_iter=100, is_evaluated=True, results=now
    )
    with caplog.at_level(logging.INFO):
        hook.after_step()
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.split()[0] for message in messages] == warnings
    when = "half time: training" if done == 60 else "training"
    assert (f"{when} has taken {change}" in caplog.text) == bool(change)
    assert ("What helped small runs most" in caplog.text) == bool(change and warnings)


class SlowOnMain(PretrainTrainer):
    @classmethod
    def scores(cls, *_: object) -> dict:
        time.sleep(2 * comm.is_main_process())
        return {}


def evaluate_on_main_alone() -> bool:
    comm.synchronize()
    distributed_c10d._set_pg_timeout(timedelta(seconds=0.5), distributed.group.WORLD)
    SlowOnMain.test(None, None)  # as before the first step, after a step, at the end and when a run is timed
    return process_timeout() == timedelta(seconds=0.5)


def test_processes_wait_for_an_evaluation_of_the_main_one_longer_than_for_a_step():
    assert launch_forks(evaluate_on_main_alone, 2) == [True, True]
