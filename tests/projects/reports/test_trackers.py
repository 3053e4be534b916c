"""Runs in wandb and mlflow themselves, offline: scalars, config, pictures, one run however often it is resumed."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import run_config, train
from trees import refused

from projects.Reports.trackers import MlflowTracker
from revisit.checkpoint.metrics_file import read_metrics
from revisit.engine.writers import WRITER_REGISTRY

KNN = ("DATASETS.TEST", ("toy_objects_heldout",), "KNN_EVAL.BANK", "toy_objects_train", "KNN_EVAL.IMAGE_SIZE", 32)
OPTIONS = ("SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.CHECKPOINTS_KEPT", 0, "TEST.EVAL_PERIOD", 2)
OPTIONS += KNN

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield
    if "mlflow" in sys.modules:
        sys.modules["mlflow"].set_tracking_uri(None)  # or the next run is written where this one was


def test_a_service_that_is_not_installed_is_refused(toy_datasets, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    refused("pip install wandb", WRITER_REGISTRY.get("wandb"), run_config(tmp_path))


def trained_and_resumed(folder: Path, service: str, forget: Callable[[], None] = lambda: None) -> str:
    """The id of a run that is resumed in the middle, the same before and after."""
    train(folder, *OPTIONS, "WRITERS", (service,))
    ids = json.loads((folder / "tracked_runs.json").read_text())
    (folder / "model_final.pth").unlink()
    (folder / "model_0000003.pth").unlink()
    forget()
    train(folder, *OPTIONS, "WRITERS", (service,), resume=True)
    assert json.loads((folder / "tracked_runs.json").read_text()) == ids
    return ids[service]


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_all_metrics_and_resumes_its_run(toy_datasets, tmp_path):
    import mlflow

    run_id = trained_and_resumed(tmp_path, "mlflow", forget=lambda: mlflow.set_tracking_uri(None))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.params["SOLVER.MAX_ITER"] == "4"
    scores = dict(read_metrics(tmp_path / "metrics.json")["knn_top1"])
    logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "knn_top1")}
    assert logged.keys() == scores.keys() and all(logged[n] == pytest.approx(scores[n]) for n in scores)
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"views.png", "neighbours_0000000.png", "neighbours_0000003.png"} <= names


@needs_wandb
@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_all_metrics_and_resumes_its_run(toy_datasets, tmp_path):
    run_id = trained_and_resumed(tmp_path, "wandb")
    files = list(tmp_path.glob(f"wandb/offline-run-*-{run_id}/run-*.wandb"))
    assert len(files) == 2  # of one id
    logged = b"".join(file.read_bytes() for file in files)
    assert all(name in logged for name in (b"knn_top1", b"loss_inst", b"SOLVER.MAX_ITER"))
    pictures = {path.name.split("_")[0] for path in tmp_path.glob("wandb/offline-run-*/files/media/images/*")}
    assert pictures == {"views", "neighbours"}


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_service_that_fails_ends_no_run(toy_datasets, tmp_path, monkeypatch, caplog):
    def fail(self, *args: object) -> None:
        raise RuntimeError("the server has gone")

    monkeypatch.setattr(MlflowTracker, "send", fail)
    with caplog.at_level(logging.ERROR):
        train(tmp_path, *OPTIONS, "WRITERS", ("mlflow",))
    assert caplog.text.count("mlflow fails (the server has gone) and gets nothing from here on") == 1
    assert (tmp_path / "model_final.pth").is_file()
