"""Which jobs a comparison of starts consists of, and what is refused before any of them runs."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from projects.CompareStarts.by_class import images_for
from projects.CompareStarts.starts import OnTheseImages, Start, Starts
from projects.CompareStarts.task import Task
from projects.CompareStarts.trial import Trial
from projects.FrozenEvaluations.labelled_sets import check_classes, read_set
from projects.Paper.cells import Cell, JobBuilder
from revisit.checkpoint.flags import check_flags, flags_of
from revisit.engine.data_checks import inspect_evaluation
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.jobs.commands import Job
from revisit.modeling.backbone.description import describe
from revisit.modeling.meta_arch.pretraining import method_of

from detectron2.config import CfgNode


def read_labels(words: Sequence[str], task: Task, seeds: Sequence[int]) -> list[int]:
    """Numbers of labelled images, fewest first; "all" is as many as there are, "10/class" as many as show each class on
    10 with every seed, which it prints."""
    counts = set()
    for word in words:
        number, _, per_class = word.partition("/")
        count = task.total if word == "all" else int(number)
        if per_class:
            count = images_for(task.data, count, seeds)
            print(f"{number} images a class, or all of a class that has fewer: {count:,} images")
        counts.add(count)
    return sorted(counts)


def check_labels(task: Task, labels: Sequence[int], seeds: Sequence[int]) -> None:
    """Check the fewest and the most labelled images as a training would; the others lie between them.

    Raises:
        UserError: more than there are, fewer than a batch, data that the recipe cannot learn from.
    """
    if task.frozen:
        for count, seed in [(labels[-1], seeds[0]), *((labels[0], seed) for seed in seeds)]:
            _check_features(task.load(task.options_for(count, seed)))
        return
    solvers: dict[int, CfgNode] = {}  # by labels
    for count in (labels[-1], labels[0]):
        cfg = task.resolved(count, seeds[0])
        expect(
            not cfg.SOLVER.MINUTES,
            f"SOLVER.MINUTES {cfg.SOLVER.MINUTES:g} is another length for every start: expected SOLVER.MAX_ITER, or "
            "SOLVER.EPOCHS",
        )
        inspect_evaluation(cfg)
        solvers[count] = cfg.SOLVER
    if len({solver.MAX_ITER for solver in solvers.values()}) > 1:
        (fewest, few), (most, many) = sorted(solvers.items())
        steps = f' SOLVER.STEP_EPOCHS "()" SOLVER.STEPS "{tuple(many.STEPS)}"' if many.STEP_EPOCHS else ""
        print(
            f"warning: the length of training is in epochs, which gives {most:,} labelled images {many.MAX_ITER:,} "
            f"iterations, {fewest:,} only {few.MAX_ITER:,}; to train all alike, add SOLVER.MAX_ITER "
            f"{many.MAX_ITER}{steps} to --opts",
            file=sys.stderr,
        )


def _check_features(cfg: CfgNode) -> None:
    """Raises UserError for classes of which none is learned or tested, and where no labelled image is left to choose
    lambda on."""
    train, test = (read_set(cfg, name) for name in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST))
    check_classes(train.targets, test.targets, (train.name, test.name))
    once = train.targets.ndim == 1 and len(np.unique(train.targets)) == len(train.targets)
    expect(
        cfg.LINEAR.METHOD != "logistic" or not once,
        f"--how frozen chooses lambda on some labelled images, and {len(train.targets)} show each class once: "
        "expected --labels 2/class or more",
    )


def check_starts(task: Task, starts: Starts, seeds: Sequence[int]) -> None:
    """Load every start as a training would; of what is pretrained first, check that it is of the recipe's network.

    Raises:
        UserError: a file that is missing, is not converted, or is of another architecture.
    """
    logging.getLogger("fvcore").addHandler(logging.NullHandler())  # that heads are new is nothing to print
    for title, start in starts.items():
        trial = Trial(task, title, start, task.total, seeds[0])
        if isinstance(start.source, OnTheseImages) and not start.source.start:
            network, cfg = replace(trial, start=Start(start.source)).network(None)
            description = describe(network)
            config = start.source.config
            expect(method_of(before := make_config(config, ())), f"--weights pretrain:{config} is no pretraining")
            check_flags(flags_of(before, description), cfg, description, config)
            continue
        files = {start.source.file(seed) for seed in seeds} if start.is_given else {Path(start.source.start)}
        for file in sorted(filter(None, files)):
            trial.network(file)


def preparation(starts: Starts, seeds: Sequence[int], root: Path, gpus: int = 1) -> list[Job]:
    """The pretrainings that some of the starts need."""
    builder = JobBuilder("", root, gpus=gpus, full=True)
    made = [start.source for start in starts.values() if not start.is_given]
    return [builder.backbone(source, seed) for source in made for seed in seeds]


def make_cells(
    task: Task,
    starts: Starts,
    labels: Sequence[int],
    seeds: Sequence[int],
    *,
    root: Path,
    gpus: int = 1,
) -> list[Cell]:
    """A cell for each start and number of labels, with a job for each seed.

    Of frozen features, the jobs of a start and a seed run one after the other and share the features of the test set.
    """
    cells = []
    for title, start in starts.items():
        before: dict[int, Job] = {}
        for count in labels:
            for seed in seeds:
                job = Trial(task, title, start, count, seed).job(root, gpus)
                before[seed] = replace(job, needs=(before[seed],)) if task.frozen and seed in before else job
            cells.append(Cell(title, str(count), None, [before[seed] for seed in seeds], task.score))
    return cells
