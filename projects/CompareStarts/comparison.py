"""Which jobs a comparison of starts consists of, and what is refused before any of them runs."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

import projects.FrozenEvaluations.linear  # noqa: F401  (declares LINEAR)
from projects.CompareStarts.picked import SEED, picked_name
from projects.CompareStarts.starts import OnTheseImages, Start
from projects.FrozenEvaluations.labelled_sets import check_classes, read_set
from projects.Paper.cells import Cell, JobBuilder
from projects.Paper.paper_tables import Evaluation, GivenBackbone
from projects.Reports.main_score import scores_of
from revisit.checkpoint.checkpointer import RevisitCheckpointer
from revisit.checkpoint.flags import check_flags, flags_of
from revisit.checkpoint.named_weights import weights_file
from revisit.data.sources.catalog import get_records, subset_name
from revisit.data.sources.class_names import names_of
from revisit.data.sources.records import PARTS, Records, fingerprint
from revisit.data.sources.subsets import is_labelled
from revisit.engine.command import pairs_of
from revisit.engine.data_checks import decide_by_images, inspect_evaluation
from revisit.engine.setup import make_config
from revisit.errors import expect, translated
from revisit.jobs.commands import Job
from revisit.keys import architecture_of
from revisit.modeling.backbone.description import describe
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.network.network import Network
from revisit.plugins import HOMES, TRAIN, find_config

from detectron2.config import CfgNode
from detectron2.modeling import build_model

LINEAR = "projects/FrozenEvaluations/linear.py"
# The last network is the one that is scored: what a recipe evaluates on its way would cost time, and keep another.
LAST_ALONE = ("TEST.EVAL_PERIOD", "0", "TEST.KEEP_BEST", "False")


@dataclass(frozen=True)
class Task:
    """What the starts are compared in: a recipe and its data.

    Args:
        options: KEY VALUE pairs, the same for all starts.
        data: the one data set of DATASETS.TRAIN.
        total: its labelled images.
        score: where the score stands in a result.
        facts: what tells the images and their labels from others.
        picked: a list whose first images get the labels, ``{seed}`` in its name is the seed; "": they are drawn.
    """

    config: str
    options: tuple[str, ...]
    frozen: bool
    data: str
    total: int
    score: tuple[str, ...]
    facts: tuple[str, ...]
    picked: str = ""

    def train_set(self, labels: int, seed: int) -> str:
        """The name of the images to learn from, the same for all starts."""
        if labels == self.total:
            return self.data
        if self.picked:
            return picked_name(self.data, labels, self.picked.replace(SEED, str(seed)))
        return subset_name(self.data, labels, seed)

    def options_for(self, labels: int, seed: int) -> tuple[str, ...]:
        return (*self.options, "DATASETS.TRAIN", str((self.train_set(labels, seed),)))

    def load(self, options: Sequence[str]) -> CfgNode:
        return make_config(self.config, options)

    @property
    def cost(self) -> tuple[str, str]:
        """What the seconds of a training are called, and their name in metrics.json."""
        device = self.load(self.options).MODEL.DEVICE
        return ("CPU-seconds", "cpu_seconds") if device == "cpu" else ("seconds of the GPU", "wall_seconds")


def read_task(config: str, options: Sequence[str], *, frozen: bool, score: str = "") -> Task:
    """Read the recipe and its labelled images.

    Args:
        frozen: classify by the features of the frozen backbone, instead of finetuning it.
        score: its name in a result, ``bbox/AP50``; "" is what such a run is about.

    Raises:
        UserError: data that are not there, a recipe of another kind, a score that it does not have.
    """
    file = Path(find_config(config)).resolve()
    by_features = any(file.is_relative_to(home / "projects") for home in HOMES)
    expect(frozen or not by_features, f"{config} classifies by frozen features: add --how frozen")
    if frozen:  # lambda is chosen on a part of the labelled images, not on further ones
        options = (*options, "LINEAR.VALIDATION", "")
    task = Task(_portable_name(file), tuple(options), frozen, "", 0, (), ())
    cfg = task.load(task.options)
    if cfg.MODEL.WEIGHTS and "MODEL.WEIGHTS" not in pairs_of(task.options):
        task = replace(task, options=(*task.options, "MODEL.WEIGHTS", ""))  # not the recipe's: each start has its own
        cfg = task.load(task.options)
    _check_recipe(cfg, task.config)
    (train,), (test,) = cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    records = {name: get_records(name) for name in (train, test)}
    tested = sum(map(is_labelled, records[test]))
    expect(tested, f"DATASETS.TEST {test} has no labelled image: expected truth to score against")
    offered = _scores_of_features(cfg, records[train]) if frozen else tuple(score.name for score in scores_of(cfg))
    score = _choose_score(score, offered, architecture_of(cfg), of_classes=not frozen)
    facts = tuple(fact for name, of_set in records.items() for fact in facts_of(name, of_set))
    total = sum(map(is_labelled, records[train]))
    return replace(task, data=train, total=total, score=tuple(score.split("/")), facts=facts)


def _portable_name(file: Path) -> str:
    """A recipe of ours as it lies below the checkout or the package, which no other machine's path tells apart."""
    for home in HOMES:
        if file.is_relative_to(home):
            return str(file.relative_to(home))
    return str(file)


def _check_recipe(cfg: CfgNode, config: str) -> None:
    """Raises UserError for a recipe that does not learn from one labelled set, is not scored on one, or names its
    start itself."""
    weights, train, test = cfg.MODEL.WEIGHTS, cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    expect(not method_of(cfg), f"{config} is a recipe of pretraining: expected one that learns from labels")
    expect(weights == "", f"MODEL.WEIGHTS is {weights!r}, also of a random start: expected '', and files in --weights")
    expect(len(train) == 1, f"DATASETS.TRAIN is {tuple(train)}: expected one data set, of which the subsets are drawn")
    expect(len(test) == 1, f"DATASETS.TEST is {tuple(test)}: expected one data set to score")


def _scores_of_features(cfg: CfgNode, records: Records) -> tuple[str, ...]:
    """The scores of a linear classifier of frozen features, the main one first."""
    if "labels" in records[0]:
        return ("mAP",)
    return ("top1", "top5") if cfg.LINEAR.METHOD == "sgd" else ("top1",)


def _choose_score(score: str, offered: tuple[str, ...], architecture: str, *, of_classes: bool) -> str:
    """The score that was asked for, or the first that is offered; of none that is known, any may be asked for.

    ``of_classes``: a score may be of one class, whose name stands after a dash.

    Raises:
        UserError: neither asked for nor known, or not offered.
    """
    if not offered:
        expect(score, f"{architecture} has no known main score: give --score NAME")
        return score
    score = score or offered[0]
    of_class = of_classes and "-" in score
    expect(of_class or score in offered, f"--score {score}: expected one of {', '.join(offered)}")
    return score


def facts_of(name: str, records: Records, *, labels: bool = True) -> list[str]:
    """What tells the images and ``labels`` of a data set from others, a line each; a copy has other times."""
    classes = names_of(name) if labels else ()
    (prints,) = fingerprint(records, labels=labels, classes=classes)
    del prints["times"]
    return [f"{PARTS.get(part, 'number')} of {name}: {str(value)[:16]}" for part, value in prints.items()]


def read_labels(words: Sequence[str], task: Task) -> list[int]:
    """Numbers of labelled images, fewest first; "all" is as many as there are."""
    return sorted({task.total if word == "all" else int(word) for word in words})


def check_labels(task: Task, labels: Sequence[int], seeds: Sequence[int]) -> None:
    """Check the fewest and the most labelled images as a training would; the others lie between them.

    Raises:
        UserError: more than there are, fewer than a batch, data that the recipe cannot learn from.
    """
    solvers: dict[int, CfgNode] = {}  # by labels
    for count, seed in [(labels[-1], seeds[0]), *((labels[0], seed) for seed in (seeds if task.frozen else seeds[:1]))]:
        cfg = task.load(task.options_for(count, seed))
        in_time = f"SOLVER.MINUTES {cfg.SOLVER.MINUTES:g} is another length for every start"
        expect(task.frozen or not cfg.SOLVER.MINUTES, f"{in_time}: expected SOLVER.MAX_ITER, or SOLVER.EPOCHS")
        if task.frozen:
            train, test = (read_set(cfg, name) for name in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST))
            check_classes(train.targets, test.targets, (train.name, test.name))
            continue
        decide_by_images(cfg)
        inspect_evaluation(cfg)
        solvers[count] = cfg.SOLVER
    if len({solver.MAX_ITER for solver in solvers.values()}) > 1:
        (fewest, few), (most, many) = sorted(solvers.items())
        steps = f' SOLVER.STEP_EPOCHS "()" SOLVER.STEPS "{tuple(many.STEPS)}"' if many.STEP_EPOCHS else ""
        lengths = f"{most:,} labelled images {many.MAX_ITER:,} iterations, {fewest:,} only {few.MAX_ITER:,}"
        remedy = f"to train all alike, add SOLVER.MAX_ITER {many.MAX_ITER}{steps} to --opts"
        print(f"warning: the length of training is in epochs, which gives {lengths}; {remedy}", file=sys.stderr)


def check_starts(task: Task, starts: Mapping[str, Start], seeds: Sequence[int]) -> None:
    """Load every start as a training would; of what is pretrained first, check that it is of the recipe's network.

    Raises:
        UserError: a file that is missing, is not converted, or is of another architecture.
    """
    logging.getLogger("fvcore").addHandler(logging.NullHandler())  # that heads are new is nothing to print
    for start in starts.values():
        if isinstance(start.source, OnTheseImages) and not start.source.start:
            network, cfg = loaded_network(task, None, ())
            description, config = describe(network), start.source.config
            expect(method_of(before := make_config(config, ())), f"--weights pretrain:{config} is no pretraining")
            check_flags(flags_of(before, description), cfg, description, config)
            continue
        given = isinstance(start.source, GivenBackbone)
        files = {start.source.file(seed) for seed in seeds} if given else {Path(start.source.start)}
        for file in sorted(filter(None, files)):
            loaded_network(task, file, start.options)


def preparation(starts: Mapping[str, Start], seeds: Sequence[int], root: Path, gpus: int = 1) -> list[Job]:
    """The pretrainings that some of the starts need."""
    builder = JobBuilder("", root, gpus=gpus, full=True)
    return [
        builder.backbone(start.source, seed)
        for start in starts.values()
        for seed in seeds
        if not isinstance(start.source, GivenBackbone)
    ]


def weights_of(start: Start, seed: int, root: Path) -> Path | None:
    """The file of a start's weights; None of random ones."""
    if isinstance(start.source, GivenBackbone):
        return start.source.file(seed)
    return preparation({"": start}, [seed], root)[0].result


def loaded_network(
    task: Task, weights: Path | None, options: Sequence[str], seed: int = 0
) -> tuple[nn.Module, CfgNode]:
    """The task's network on the CPU as a training begins with it, and its config; without weights drawn from the seed.

    Raises:
        UserError: a file that is missing, is not converted, or is of another architecture.
    """
    file = weights_file(str(weights)) if weights else ""  # a name would bring its own network, which is no comparison
    cfg = task.load((*task.options, *options, "MODEL.WEIGHTS", str(file), "MODEL.DEVICE", "cpu"))
    if task.frozen:
        return nn.ModuleDict({"backbone": Network.of_config(cfg).network}), cfg
    torch.manual_seed(seed)
    with translated("building the network"):
        model = build_model(cfg)
    if weights:
        RevisitCheckpointer(model, cfg).load(str(weights))
    return model, cfg


def make_cells(
    task: Task,
    starts: Mapping[str, Start],
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
                job = make_job(task, title, start, count, seed, root=root, gpus=gpus)
                before[seed] = replace(job, needs=(before[seed],)) if task.frozen and seed in before else job
            cells.append(Cell(title, str(count), None, [before[seed] for seed in seeds], task.score))
    return cells


def make_job(
    task: Task,
    title: str,
    start: Start,
    count: int,
    seed: int,
    *,
    root: Path,
    gpus: int = 1,
    length: Sequence[str] = (),
    suffix: str = "",
) -> Job:
    """The job that learns from ``count`` labelled images; ``length`` are KEY VALUE pairs of another length of training,
    whose folder ends in ``suffix``."""
    options = (*task.options_for(count, seed), *start.options, *length)
    if not task.frozen:
        options = (*LAST_ALONE, *options)
    else:
        options += ("LINEAR.CACHE", str(root / "features" / start.source.name / f"seed{seed}"))
    program = LINEAR if task.frozen else TRAIN
    evaluation = Evaluation(program, task.config, task.score, options, folder=f"{count}_labels{start.suffix}{suffix}")
    job = JobBuilder("", root, gpus=gpus, full=True).evaluate(start.source, evaluation, seed)
    return replace(job, name=f"{title}, {count:,} labels, seed {seed}", facts=(*job.facts, *task.facts, *start.facts))
