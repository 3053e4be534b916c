"""What starts are compared in: a recipe that learns from labels, and its data."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import projects.FrozenEvaluations.linear  # noqa: F401  (declares LINEAR)
from projects.CompareStarts.by_class import BY_CLASS
from projects.CompareStarts.labelled_parts import PICKED
from projects.Paper.paper_tables import Words
from projects.Reports.main_score import direction, scores_of
from revisit.data.sources.catalog import get_records, subset_name
from revisit.data.sources.class_names import names_of
from revisit.data.sources.records import PARTS, Records, fingerprint
from revisit.data.sources.subsets import is_labelled
from revisit.engine.command import pairs_of
from revisit.engine.data_checks import decide_by_images
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.files import file_digest
from revisit.keys import architecture_of
from revisit.modeling.meta_arch.pretraining import method_of
from revisit.plugins import HOMES, find_config

from detectron2.config import CfgNode

SEED = "{seed}"  # in the name of a list


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
        by_class: whether they are drawn as many of each class as there can be.
    """

    config: str
    options: Words
    frozen: bool
    data: str
    total: int
    score: Words
    facts: Words
    picked: str = ""
    by_class: bool = False

    def train_set(self, labels: int, seed: int) -> str:
        """The name of the images to learn from, the same for all starts."""
        if labels == self.total:
            return self.data
        if self.picked:
            return f"{PICKED}:{self.data}:{labels}:{self.picked.replace(SEED, str(seed))}"
        if self.by_class:
            return f"{BY_CLASS}:{self.data}:{labels}:{seed}"
        return subset_name(self.data, labels, seed)

    def options_for(self, labels: int, seed: int) -> Words:
        return (*self.options, "DATASETS.TRAIN", str((self.train_set(labels, seed),)))

    def load(self, options: Sequence[str]) -> CfgNode:
        return make_config(self.config, options)

    def resolved(self, labels: int, seed: int) -> CfgNode:
        """The recipe with its length and rate for so many labelled images. Raises UserError for data it cannot use."""
        cfg = self.load(self.options_for(labels, seed))
        decide_by_images(cfg)
        return cfg

    @property
    def score_name(self) -> str:
        """Such as ``bbox/AP50``."""
        return "/".join(self.score)

    @property
    def sign(self) -> int:
        """-1 where a lower score is better, else 1."""
        return direction(self.score_name) or 1

    def goodness(self, score: float) -> float:
        """The higher the better; an undefined score is the worst."""
        return -math.inf if math.isnan(score) else self.sign * score

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
    expect(
        frozen or not any(file.is_relative_to(home / "projects") for home in HOMES),
        f"{config} classifies by frozen features: add --how frozen",
    )
    options = tuple(options)
    if frozen:  # lambda is chosen on a part of the labelled images, not on further ones
        options += ("LINEAR.VALIDATION", "")
    name = _portable_name(file)
    cfg = make_config(name, options)
    if cfg.MODEL.WEIGHTS and "MODEL.WEIGHTS" not in pairs_of(options):
        options += ("MODEL.WEIGHTS", "")  # not the recipe's: each start has its own
        cfg = make_config(name, options)
    _check_recipe(cfg, name)
    (train,), (test,) = cfg.DATASETS.TRAIN, cfg.DATASETS.TEST
    records = {part: get_records(part) for part in (train, test)}
    expect(
        sum(map(is_labelled, records[test])),
        f"DATASETS.TEST {test} has no labelled image: expected truth to score against",
    )
    offered = _scores_of_features(cfg, records[train]) if frozen else tuple(score.name for score in scores_of(cfg))
    score = _choose_score(score, offered, architecture_of(cfg), of_classes=not frozen)
    facts = tuple(fact for part, of_set in records.items() for fact in facts_of(part, of_set))
    total = sum(map(is_labelled, records[train]))
    return Task(name, options, frozen, train, total, tuple(score.split("/")), facts)


def _portable_name(file: Path) -> str:
    """A recipe of ours as it lies below the checkout or the package, which no other machine's path tells apart."""
    for home in HOMES:
        if file.is_relative_to(home):
            return str(file.relative_to(home))
    return str(file)


def _check_recipe(cfg: CfgNode, config: str) -> None:
    """Raises UserError for a recipe that does not learn from one labelled set, is not scored on one, or names its
    start itself."""
    weights = cfg.MODEL.WEIGHTS
    train = cfg.DATASETS.TRAIN
    test = cfg.DATASETS.TEST
    expect(not method_of(cfg), f"{config} is a recipe of pretraining: expected one that learns from labels")
    expect(weights == "", f"MODEL.WEIGHTS is {weights!r}, also of a random start: expected '', and files in --weights")
    expect(len(train) == 1, f"DATASETS.TRAIN is {tuple(train)}: expected one data set, of which the subsets are drawn")
    expect(len(test) == 1, f"DATASETS.TEST is {tuple(test)}: expected one data set to score")


def _scores_of_features(cfg: CfgNode, records: Records) -> Words:
    """The scores of a linear classifier of frozen features, the main one first."""
    if "labels" in records[0]:
        return ("mAP",)
    return ("top1", "top5") if cfg.LINEAR.METHOD == "sgd" else ("top1",)


def _choose_score(score: str, offered: Words, architecture: str, *, of_classes: bool) -> str:
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


def with_pick(task: Task, file: str, seeds: Sequence[int]) -> Task:
    """The task whose labels the first images of a list get; ``{seed}`` in its name is the seed.

    Raises:
        UserError: no such list.
    """
    place = os.path.abspath(os.path.expanduser(file.removeprefix("list:")))
    facts = []
    for path in sorted({place.replace(SEED, str(seed)) for seed in seeds}):
        expect(os.path.isfile(path), f"--labelled {path}: no such list; tools/select_images.py makes one, selected.txt")
        facts.append(f"{path}: {file_digest(path)[:16]}")
    return replace(task, picked=place, facts=(*task.facts, *facts))
