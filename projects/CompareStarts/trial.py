"""One training of a comparison: a start in a task, with so many labels and a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from projects.CompareStarts.starts import Start
from projects.CompareStarts.task import Task
from projects.Paper.cells import JobBuilder
from projects.Paper.paper_tables import Evaluation
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.named_weights import weights_file
from revisit.data.sources.catalog import get_records
from revisit.errors import translated
from revisit.jobs.commands import Job
from revisit.keys import Facts, resolve_auto_values
from revisit.network.network import Network
from revisit.plugins import TRAIN

from detectron2.config import CfgNode
from detectron2.modeling import build_model

LINEAR = "projects/FrozenEvaluations/linear.py"
# The last network is the one that is scored: what a recipe evaluates on its way would cost time, and keep another.
LAST_ALONE = ("TEST.EVAL_PERIOD", "0", "TEST.KEEP_BEST", "False")


@dataclass(frozen=True)
class Trial:
    """What a score of a comparison is of.

    Args:
        title: what tables call the start.
        labels: how many labelled images it learns from.
        seed: of these images and of the training.
    """

    task: Task
    title: str
    start: Start
    labels: int
    seed: int

    def network(self, weights: Path | None) -> tuple[nn.Module, CfgNode]:
        """The network on the CPU as the training begins with it, and its config; without weights drawn from the seed.

        Raises:
            UserError: a file that is missing, is not converted, or is of another architecture.
        """
        file = weights_file(str(weights)) if weights else ""  # a name would bring its own network: no comparison
        cfg = self.task.load(
            (*self.task.options, *self.start.options, "MODEL.WEIGHTS", str(file), "MODEL.DEVICE", "cpu")
        )
        resolve_auto_values(cfg, Facts(records=get_records(self.task.data)))
        if self.task.frozen:
            return nn.ModuleDict({"backbone": Network.of_config(cfg).network}), cfg
        torch.manual_seed(self.seed)
        with translated("building the network"):
            model = build_model(cfg)
        if weights:
            RevisitCheckpointer(model, cfg).load(str(weights))
        return model, cfg

    def job(self, root: Path, gpus: int = 1, *, length: Sequence[str] = (), suffix: str = "") -> Job:
        """The job that trains and scores; ``length`` are KEY VALUE pairs of another length of training, whose folder
        ends in ``suffix``."""
        task = self.task
        start = self.start
        options = (*task.options_for(self.labels, self.seed), *start.options, *length)
        if task.frozen:
            options += ("LINEAR.CACHE", str(root / "features" / start.source.name / f"seed{self.seed}"))
        else:
            options = (*LAST_ALONE, *options)
        program = LINEAR if task.frozen else TRAIN
        folder = f"{self.labels}_labels{start.suffix}{suffix}"
        evaluation = Evaluation(program, task.config, task.score, options, folder=folder)
        job = JobBuilder("", root, gpus=gpus, full=True).evaluate(start.source, evaluation, self.seed)
        name = f"{self.title}, {self.labels:,} labels, seed {self.seed}"
        return replace(job, name=name, facts=(*job.facts, *task.facts, *start.facts))
