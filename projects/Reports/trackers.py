"""Services that track runs, as Detectron2's EventWriters."""

import json
import logging
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from projects.Pictures.pretraining_sheets import save_view_sheet
from revisit.checkpoint.run_folder import NEIGHBOURS, RUN_IDS, VIEWS
from revisit.engine.same_experiment import plain_config
from revisit.engine.writers import WRITER_REGISTRY
from revisit.errors import UserError, first_line, translated, without_secrets
from revisit.files import plain_name, write_whole
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.plugins import require_package

from detectron2.config import CfgNode
from detectron2.utils.events import EventWriter, get_event_storage

WINDOW = 20  # iterations over which losses are smoothed, as in TensorBoard

logger = logging.getLogger(__name__)


class RunTracker(EventWriter):
    """One service, whose run has the config, scalars and pictures: of a pretraining's views, and of its neighbours.

    If the service fails during a training, one error is logged and nothing more is sent.

    Raises:
        UserError: its package is not installed, or it does not start.
    """

    PACKAGE = ""

    def __init__(self, cfg: CfgNode):
        self._folder = Path(cfg.OUTPUT_DIR)
        self._sent = -1  # the last iteration whose scalars were sent
        self._failed = False
        self._pictures = set(self._folder.glob(NEIGHBOURS))  # of an earlier part of this run
        self.package = require_package(
            self.PACKAGE, f"WRITERS names {self.PACKAGE}, which is not installed: run pip install {self.PACKAGE}"
        )
        record = self._folder / RUN_IDS
        ids = read_ids(record) if record.exists() else {}
        try:
            ids[self.PACKAGE] = self.open(cfg, ids.get(self.PACKAGE))
        except Exception as error:  # of the service's own kinds
            raise UserError(
                f"WRITERS {self.PACKAGE} cannot start a run ({first_line(error)}): expected its own settings, such as "
                "WANDB_MODE=offline or MLFLOW_TRACKING_URI, or no such writer"
            ) from error
        write_whole(record, json.dumps(ids))
        if method_of(cfg) and not (self._folder / VIEWS).exists():
            save_view_sheet(cfg, self._folder / VIEWS)

    def open(self, cfg: CfgNode, run_id: str | None) -> str:
        """Start a run with the config, or continue the one of ``run_id``; returns its id."""

    def send(self, scalars: dict[str, float], iteration: int) -> None:
        """Send new scalars, unless the service reads what TensorBoard gets."""

    def send_picture(self, path: Path, iteration: int) -> None: ...

    def write(self) -> None:
        if self._failed:
            return
        try:
            self._send_scalars()
            self._send_pictures()
        except Exception as error:  # of the service's own kinds; a training of days must not end by them
            logger.error(f"{self.PACKAGE} fails ({first_line(error)}) and gets nothing from here on. The run continues")
            self._failed = True

    def _send_scalars(self) -> None:
        by_iteration = defaultdict(dict)
        for name, (value, iteration) in get_event_storage().latest_with_smoothing_hint(WINDOW).items():
            if iteration > self._sent:
                by_iteration[iteration][name] = float(value)
        for iteration, scalars in sorted(by_iteration.items()):
            self.send(scalars, iteration)
            self._sent = iteration

    def _send_pictures(self) -> None:
        pictures = {*self._folder.glob(NEIGHBOURS), *self._folder.glob(VIEWS)}
        for path in sorted(pictures - self._pictures):
            self.send_picture(path, get_event_storage().iter)
        self._pictures |= pictures


def read_ids(record: Path) -> dict[str, str]:
    """By service, the run that goes on. A service makes a name of a folder of it, so it is a plain one.

    Raises UserError for a file that holds something else: it may come from a store.
    """
    with translated(f"reading {record}", content=True):
        ids = dict(json.loads(record.read_text()))
    return {service: plain_name(run_id, str(record)) for service, run_id in ids.items()}


@contextmanager
def command_without_secrets() -> Iterator[None]:
    """While the block runs, whoever asks for the command line sees URLs without secrets."""
    before, sys.argv = sys.argv, list(map(without_secrets, sys.argv))
    try:
        yield
    finally:
        sys.argv = before


class WandbTracker(RunTracker):
    """Weights & Biases, by its own settings: WANDB_PROJECT, WANDB_MODE and others. It reads TensorBoard's scalars."""

    PACKAGE = "wandb"

    def open(self, cfg: CfgNode, run_id: str | None) -> str:
        options = {"dir": cfg.OUTPUT_DIR, "name": self._folder.name, "config": plain_config(cfg)}
        self.package.tensorboard.unpatch()  # of an earlier run of this process
        # sync_tensorboard=True would wait 10 s at the end for a second folder of events, to find out what both share.
        self.package.tensorboard.patch(save=False, root_logdir=cfg.OUTPUT_DIR)
        with command_without_secrets():  # it sends the command line, too
            self._run = self.package.init(id=run_id, resume="allow", **options)
        return self._run.id

    def send_picture(self, path: Path, iteration: int) -> None:
        picture = self.package.Image(str(path))
        self._run.log({path.stem.split("_")[0]: picture, "global_step": iteration})  # as TensorBoard counts

    def close(self) -> None:
        self._run.finish()


class MlflowTracker(RunTracker):
    """MLflow, by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME; without the first a database in OUTPUT_DIR."""

    PACKAGE = "mlflow"

    def open(self, cfg: CfgNode, run_id: str | None) -> str:
        folder, place = self._folder.resolve(), None
        if not self.package.is_tracking_uri_set():
            self.package.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
            place = (folder / "mlflow_files").as_uri()
        if run_id is not None:
            return self.package.start_run(run_id).info.run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "revisit"
        if self.package.get_experiment_by_name(name) is None:
            self.package.create_experiment(name, place)
        self.package.set_experiment(name)
        run = self.package.start_run(run_name=folder.name)
        self.package.log_params(plain_config(cfg))
        return run.info.run_id

    def send(self, scalars: dict[str, float], iteration: int) -> None:
        plain = {re.sub(r"[^\w\-./ ]", "_", name): value for name, value in scalars.items()}
        self.package.log_metrics(plain, step=iteration)

    def send_picture(self, path: Path, iteration: int) -> None:
        self.package.log_artifact(str(path))

    def close(self) -> None:
        self.package.end_run()


@WRITER_REGISTRY.register()
def wandb(cfg: CfgNode) -> WandbTracker:
    """WRITERS ("wandb",)."""
    return WandbTracker(cfg)


@WRITER_REGISTRY.register()
def mlflow(cfg: CfgNode) -> MlflowTracker:
    """WRITERS ("mlflow",)."""
    return MlflowTracker(cfg)
