"""Services that track runs, as Detectron2's EventWriters: WRITERS ("wandb", "mlflow"), beside TensorBoard."""

import json
import logging
import re
import time
from collections import defaultdict
from pathlib import Path
from types import ModuleType

from revisit.checkpoint.run_folder import NEIGHBOURS, RUN_IDS, VIEWS
from revisit.engine.same_experiment import plain_config
from revisit.errors import UserError, expect, first_line
from revisit.files import written_whole
from revisit.imports import require_package
from revisit.keys import declare, each, one_of
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.viz.pretraining_sheets import save_view_sheet

from detectron2.config import CfgNode
from detectron2.utils.events import EventWriter, get_event_storage

_WINDOW = 20  # iterations over which losses are smoothed, as in TensorBoard

logger = logging.getLogger(__name__)


declare(
    "WRITERS",
    (),
    "Services that track runs beside TensorBoard, by their own settings (docs/training.md).",
    each(one_of("wandb", "mlflow")),
    may_change=True,
)


class RunTracker(EventWriter):
    """Sends a run's new scalars and pictures to a service; a service that fails is reported once, and the run
    continues.

    Subclasses open a run, by the id of an earlier part of it where there is one, and send.
    """

    PACKAGE = ""

    def __init__(self, cfg: CfgNode):
        self._folder, self._sent, self._failed = Path(cfg.OUTPUT_DIR), -1, False
        self._pictures = set(self._folder.glob(NEIGHBOURS))  # of an earlier part of this run
        self.package = _require(self.PACKAGE)
        ids = _read_ids(self._folder)
        try:
            ids[self.PACKAGE] = self.open(cfg, ids.get(self.PACKAGE))
        except Exception as error:  # of the service's own kinds
            message = f"WRITERS {self.PACKAGE} cannot start a run ({first_line(error)}): expected its own settings, "
            raise UserError(f"{message}such as WANDB_MODE=offline or MLFLOW_TRACKING_URI, or no such writer") from error
        with written_whole(self._folder / RUN_IDS) as temporary:
            temporary.write_text(json.dumps(ids))

    def open(self, cfg: CfgNode, run_id: str | None) -> str:
        """Start a run with the config, or go on with the one of ``run_id``; returns its id."""
        raise NotImplementedError

    def send(self, scalars: dict[str, float], iteration: int) -> None:
        raise NotImplementedError

    def send_picture(self, path: Path, iteration: int) -> None:
        raise NotImplementedError

    def write(self) -> None:
        if self._failed:
            return
        storage, by_iteration = get_event_storage(), defaultdict(dict)
        for name, (value, iteration) in storage.latest_with_smoothing_hint(_WINDOW).items():
            if iteration > self._sent:
                by_iteration[iteration][name] = float(value)
        pictures = sorted(set([*self._folder.glob(NEIGHBOURS), *self._folder.glob(VIEWS)]) - self._pictures)
        try:
            for iteration, scalars in sorted(by_iteration.items()):
                self.send(scalars, iteration)
            for path in pictures:
                self.send_picture(path, storage.iter)
        except Exception as error:  # of the service's own kinds; a training of days must not end by them
            logger.error(f"{self.PACKAGE} fails ({first_line(error)}) and gets nothing from here on. The run continues")
            self._failed = True
        self._sent = max([self._sent, *by_iteration])
        self._pictures.update(pictures)


class WandbTracker(RunTracker):
    """Weights & Biases, by its own settings: WANDB_PROJECT, WANDB_MODE and others."""

    PACKAGE = "wandb"

    def open(self, cfg: CfgNode, run_id: str | None) -> str:
        options = {"dir": cfg.OUTPUT_DIR, "name": Path(cfg.OUTPUT_DIR).name, "config": plain_config(cfg)}
        self._run = self.package.init(id=run_id, resume="allow", **options)
        self._run.define_metric("*", step_metric="iteration")  # a resumed run repeats iterations
        return self._run.id

    def send(self, scalars: dict[str, float], iteration: int) -> None:
        self._run.log({**scalars, "iteration": iteration})

    def send_picture(self, path: Path, iteration: int) -> None:
        self._run.log({path.stem.split("_")[0]: self.package.Image(str(path)), "iteration": iteration})

    def close(self) -> None:
        self._run.finish()


class MlflowTracker(RunTracker):
    """MLflow, by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME; without the first a database in OUTPUT_DIR."""

    PACKAGE = "mlflow"

    def open(self, cfg: CfgNode, run_id: str | None) -> str:
        folder, store = self._folder.resolve(), {}
        if not self.package.is_tracking_uri_set():
            self.package.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
            store = {"artifact_location": (folder / "mlflow_files").as_uri()}
        self._client = self.package.MlflowClient()
        if run_id is None:
            name = self.package.environment_variables.MLFLOW_EXPERIMENT_NAME.get() or "revisit"
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name, **store)
            run_id = self._client.create_run(experiment, run_name=folder.name).info.run_id
            entities = self.package.entities
            params = [entities.Param(key, str(value)[:500]) for key, value in plain_config(cfg).items()]
            for start in range(0, len(params), 100):  # as many as it takes at a time
                self._client.log_batch(run_id, params=params[start : start + 100])
        self._run_id = run_id
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def send(self, scalars: dict[str, float], iteration: int) -> None:
        now, metric = int(time.time() * 1000), self.package.entities.Metric
        names = {name: re.sub(r"[^\w\-./ ]", "_", name) for name in scalars}
        self._client.log_batch(
            self._run_id, [metric(names[name], value, now, iteration) for name, value in scalars.items()]
        )

    def send_picture(self, path: Path, iteration: int) -> None:
        self._client.log_artifact(self._run_id, str(path))

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


TRACKERS = {tracker.PACKAGE: tracker for tracker in (WandbTracker, MlflowTracker)}


def build_trackers(cfg: CfgNode) -> list[RunTracker]:
    """Those of WRITERS, on the main process; of a pretraining with a sheet of its views.

    Raises:
        UserError: a package that is not installed, or a service that does not start.
    """
    for name in cfg.WRITERS:
        _require(name)
    if cfg.WRITERS and method_of(cfg) and not (Path(cfg.OUTPUT_DIR) / VIEWS).exists():
        save_view_sheet(cfg, Path(cfg.OUTPUT_DIR) / VIEWS)
    return [TRACKERS[name](cfg) for name in cfg.WRITERS]


def _read_ids(folder: Path) -> dict[str, str]:
    try:
        ids = json.loads((folder / RUN_IDS).read_text())
    except (OSError, ValueError):
        return {}
    return ids if isinstance(ids, dict) else {}


def _require(package: str) -> ModuleType:
    expect(package in TRACKERS, f"WRITERS names {package!r}: expected some of {', '.join(TRACKERS)}")
    return require_package(package, f"WRITERS names {package}, which is not installed: run pip install {package}")
