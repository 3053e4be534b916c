"""model_best.pth is the network of the best evaluation, however often the run was stopped on the way."""

import json
import logging
from math import isnan, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import assert_same, load, run, run_config, train

from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.engine.best_checkpoint import Best, BestCheckpoint
from revisit.engine.config_checks import check_training
from revisit.engine.finetune_trainer import FinetuneTrainer
from revisit.engine.pretrain_trainer import PretrainTrainer
from revisit.engine.setup import make_config
from revisit.engine.solver import resolve_schedule
from revisit.errors import UserError
from revisit.evaluation.main_score import find_score, is_better

from detectron2.engine import HookBase
from detectron2.utils.events import get_event_storage

LAST = 7
SCORES = {0: 5.0, 1: 10.0, 3: 30.0, 5: nan, LAST: 30.0}  # by iteration; 0 is before the first step
OPTIONS = ("SOLVER.MAX_ITER", LAST + 1, "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 0, "SEED", 3)
OPTIONS += ("TEST.EVAL_PERIOD", 2, "TEST.KEEP_BEST", True, "DATASETS.TEST", ("toy_objects_heldout",))
OPTIONS += ("KNN_EVAL.BANK", "toy_objects_train")


@pytest.fixture
def scores(monkeypatch) -> dict[int, float]:
    """What evaluations are to find, by iteration."""
    found = dict(SCORES)

    def test(cls, cfg, model, evaluators=None):
        return {"knn_top1": found[min(get_event_storage().iter, LAST)]}

    monkeypatch.setattr(PretrainTrainer, "test", classmethod(test))
    return found


def record(output: Path) -> dict:
    return json.loads((output / "best.json").read_text())


def test_the_first_of_the_best_evaluations_is_kept_and_no_run_resumes_from_it(toy_datasets, tmp_path, scores):
    train(tmp_path, *OPTIONS)
    assert record(tmp_path) == {"score": "knn_top1", "value": 30.0, "iteration": 3, "last_evaluated": LAST, "waited": 2}
    best = load(tmp_path / "model_best.pth")
    assert_same(best["model"], load(tmp_path / "model_0000003.pth")["model"])
    assert best["iteration"] == 3 and best["best"]["value"] == 30
    assert (tmp_path / "last_checkpoint").read_text() == f"model_{LAST:07d}.pth"


@pytest.mark.parametrize(("better", "expected"), [({LAST: 31.0}, LAST), ({1: 31.0}, 1), ({3: nan, LAST: nan}, 1)])
def test_the_end_is_an_evaluation_like_others(toy_datasets, tmp_path, scores, better, expected):
    scores |= better
    train(tmp_path, *OPTIONS)
    best = load(tmp_path / "model_best.pth")
    assert record(tmp_path)["iteration"] == best["iteration"] == expected
    assert_same(best["model"], load(tmp_path / f"model_{expected:07d}.pth")["model"])


class Killed(BaseException):
    """As by the kernel: nothing of the run catches it."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the killed run's open files
@pytest.mark.parametrize("when", [1, 3, 5, LAST])
@pytest.mark.parametrize(("owner", "name"), [(BestCheckpoint, "_consider"), (Best, "write")])
def test_a_run_killed_before_an_evaluation_or_its_record_chooses_the_same(
    toy_datasets, tmp_path, scores, monkeypatch, when, owner, name
):
    train(tmp_path / "whole", *OPTIONS)

    original = getattr(owner, name)

    def kill(self, *args: object) -> None:
        if get_event_storage().iter >= when:
            raise Killed
        original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            train(tmp_path / "parts", *OPTIONS)
    resumed = train(tmp_path / "parts", *OPTIONS, resume=True)
    assert resumed.start_iter == when + 1
    assert record(tmp_path / "parts") == record(tmp_path / "whole")
    assert_same(*(load(tmp_path / name / "model_best.pth") for name in ("whole", "parts")))


PATIENT = (*OPTIONS, "TEST.PATIENCE", 1)


def final_score(output: Path) -> float:
    return json.loads((output / "evaluation.json").read_text())["knn_top1"]


def test_a_run_out_of_patience_has_the_scores_of_its_last_network_until_it_takes_another_step(
    toy_datasets, tmp_path, scores
):
    scores[3] = 9.0
    train(tmp_path, *PATIENT)
    assert final_score(tmp_path) == 9
    scores[3] = 8.0  # of an evaluation that would be made again
    train(tmp_path, *PATIENT, resume=True)
    assert final_score(tmp_path) == 9
    (tmp_path / "evaluation.json").unlink()  # as by a run that an older version ended
    train(tmp_path, *PATIENT, resume=True)
    assert final_score(tmp_path) == 8

    class Killing(HookBase):
        def before_step(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *OPTIONS, resume=True, hook=Killing())
    assert not (tmp_path / "evaluation.json").exists()


def test_a_run_out_of_patience_ends_with_its_result_and_resumes_to_nothing(toy_datasets, tmp_path, scores, caplog):
    scores[3] = 9.0  # worse than iteration 1
    with caplog.at_level(logging.INFO):
        ended = train(tmp_path, *PATIENT)
    assert "training has taken knn_top1 from 5.00 to 9.00 %" in caplog.text
    assert ended.iter == 3 and "no better knn_top1 than 10.00 in 1 evaluations: model_best.pth" in caplog.text
    final, best = load(tmp_path / "model_final.pth"), load(tmp_path / "model_best.pth")
    assert (final["iteration"], best["iteration"]) == (3, 1)
    assert_same(final["model"], load(tmp_path / "model_0000003.pth")["model"])
    with caplog.at_level(logging.INFO):
        again = train(tmp_path, *PATIENT, resume=True)
    assert "nothing to do: no better knn_top1" in caplog.text and again.start_iter == 4
    assert load(tmp_path / "model_final.pth")["iteration"] == 3
    train(tmp_path, *OPTIONS, resume=True)  # without patience it continues
    assert load(tmp_path / "model_final.pth")["iteration"] == LAST and record(tmp_path)["iteration"] == LAST


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the killed run's open files
@pytest.mark.parametrize("name", ["_consider", "why_it_ended"])
def test_a_run_killed_where_it_would_have_ended_ends_when_it_resumes(
    toy_datasets, tmp_path, scores, monkeypatch, caplog, name
):
    scores[3] = 9.0
    original = getattr(BestCheckpoint, name)

    def kill(self, *args: object) -> object:
        if get_event_storage().iter >= 3:
            raise Killed
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(BestCheckpoint, name, kill)
        with pytest.raises(Killed):
            train(tmp_path, *PATIENT)
    with caplog.at_level(logging.INFO):
        resumed = train(tmp_path, *PATIENT, resume=True)
    assert resumed.start_iter == 4 and "no better knn_top1 than 10.00 in 1 evaluations" in caplog.text
    assert final_score(tmp_path) == 9
    assert record(tmp_path) == {"score": "knn_top1", "value": 10.0, "iteration": 1, "last_evaluated": 3, "waited": 1}


def test_a_best_network_has_the_score_on_record(toy_datasets, tmp_path):
    options = (
        f"OUTPUT_DIR {tmp_path} SEED 5 SOLVER.IMS_PER_BATCH 4 SOLVER.MAX_ITER 3 TEST.EVAL_PERIOD 1 "
        "MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8 MODEL.DEVICE cpu TEST.KEEP_BEST True "
        "INPUT.CROP.SIZE [65,65] DATALOADER.NUM_WORKERS 0"
    )
    cfg = make_config("configs/toy/depth.yaml", options.split())
    resolve_schedule(cfg, 60)
    found = []

    class Observed(FinetuneTrainer):
        @classmethod
        def test(cls, *args: object, **options: object) -> dict:
            found.append(super().test(*args, **options)["depth"]["rmse"])
            return {"depth": {"rmse": found[-1]}}

    run(cfg, trainer_class=Observed)
    best = record(tmp_path)
    assert len(found) == 3 and best["value"] == min(found) == found[best["iteration"]]
    cfg.MODEL.WEIGHTS = str(tmp_path / "model_best.pth")
    assert FinetuneTrainer.evaluate(cfg, resume=False)["depth"]["rmse"] == best["value"]


def test_a_full_disk_leaves_the_record_as_it_was(toy_datasets, tmp_path, scores, monkeypatch, caplog):
    save = RevisitCheckpointer.save

    def full(self, name: str, **facts: object) -> None:
        if name == "model_best" and facts["iteration"] == 3:
            raise OSError("No space left on device")
        save(self, name, **facts)

    monkeypatch.setattr(RevisitCheckpointer, "save", full)
    with caplog.at_level(logging.ERROR):
        train(tmp_path, *OPTIONS)
    assert "NO BEST CHECKPOINT: model_best.pth could not be written" in caplog.text
    assert record(tmp_path)["iteration"] == LAST  # as good as iteration 3


def test_a_best_checkpoint_that_is_missing_is_said_on_resume(toy_datasets, tmp_path, scores):
    train(tmp_path, *OPTIONS)
    for name in ("model_final", "model_0000007", "model_best"):
        (tmp_path / f"{name}.pth").unlink()
    with pytest.raises(UserError, match="model_best.pth is missing, which .*best.json has as the best .knn_top1 30.00"):
        train(tmp_path, *OPTIONS, resume=True)
    (tmp_path / "best.json").write_text("{}")
    with pytest.raises(UserError, match="best.json is no record of a best checkpoint: restore it, or remove"):
        train(tmp_path, *OPTIONS, resume=True)
    (tmp_path / "best.json").unlink()
    train(tmp_path, *OPTIONS, resume=True)
    assert record(tmp_path)["iteration"] == LAST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("TEST.KEEP_BEST", False, "TEST.PATIENCE", 3), "TEST.PATIENCE is 3: expected TEST.KEEP_BEST True"),
        (("TEST.EVAL_PERIOD", 0), "nothing is evaluated before the end: set TEST.EVAL_EPOCHS 1"),
        (("MODEL.META_ARCHITECTURE", "PanopticFPN", "KNN_EVAL.BANK", ""), "PanopticFPN has no known main score"),
    ],
)
def test_what_has_no_best_evaluation_is_refused(tmp_path, options, message):
    cfg = run_config(tmp_path, *OPTIONS)
    cfg.defrost()
    cfg.merge_from_list(list(options))
    with pytest.raises(UserError, match=message):
        check_training(cfg)


def test_the_score_is_that_of_the_first_test_set():
    cfg = make_config("configs/toy/detection.yaml", ["DATASETS.TEST", "('a','b')"])
    assert find_score(cfg, {"b/bbox/AP": 1.0, "a/bbox/AP": 2.0}) == 2
    with pytest.raises(UserError, match="no bbox/AP in the evaluation of a: found b/bbox/AP"):
        find_score(cfg, {"b/bbox/AP": 1.0})


@given(st.floats(), st.floats())
def test_an_error_is_better_for_being_lower_and_any_value_than_an_undefined_one(one, other):
    for score, sign in (("depth/rmse", -1), ("depth/absrel", -1), ("depth/delta1", 1), ("bbox/AP", 1)):
        if isnan(one):
            assert not is_better(score, one, other)
        else:
            assert is_better(score, one, other) == (isnan(other) or sign * one > sign * other)
