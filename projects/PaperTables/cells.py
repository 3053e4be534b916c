"""From a table of the paper to jobs: draw data, pretrain, convert, evaluate; each is there once, whoever needs it.

And what a job's command lines say before anything runs: the data that they read, and how long they train.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from projects.PaperTables.jobs import TRAIN, Job
from projects.PaperTables.paper_tables import (
    COLUMNS,
    Evaluation,
    GivenBackbone,
    OthersWeights,
    PretrainingRun,
    Row,
    Source,
    columns_of,
    paper_values,
)
from revisit.data.catalog import datasets_root, get_records
from revisit.engine.schedule import resolve_schedule
from revisit.engine.setup import count_images, make_config
from revisit.errors import UserError, expect

from detectron2.config import CfgNode


@dataclass(frozen=True)
class Cell:
    """A row's number in a column, one job per seed; no jobs: there is nothing to run it with."""

    row: str
    column: str
    paper: float | None
    jobs: list[Job]
    score: tuple[str, ...]  # where the number stands in a result

    def values(self) -> list[float]:
        """Scores of the seeds whose evaluation is finished and was made by this very recipe."""
        results = (json.loads(job.result.read_text()) for job in self.jobs if job.done and job.owns_result)
        return [float(functools.reduce(operator.getitem, self.score, result)) for result in results]


def make_cells(
    table: str, rows: dict[str, Row], builder: JobBuilder, *, seeds: Sequence[int], only: Sequence[str]
) -> list[Cell]:
    """Cells of a table, row by row, with their jobs, whose ``needs`` are the jobs before them.

    Args:
        rows: the paper's by label, or others to be judged in the table's columns.
        only: "ROW,COLUMN" each, either may be empty: the rows and columns that are named; all, where none is.

    Raises:
        UserError: a row or column that the table does not have.
    """
    paper = paper_values(table)
    wanted = [words.partition(",")[::2] for words in only]
    chosen_rows = _chosen([row.strip() for row, _ in wanted], list(rows), table)
    chosen_columns = _chosen([column.strip() for _, column in wanted], columns_of(table, builder.profile), table)
    cells = []
    for label, name in itertools.product(chosen_rows, chosen_columns):
        source, evaluation = rows[label][builder.profile], getattr(COLUMNS[name], builder.profile)
        jobs = [builder.evaluate(source, evaluation, seed) for seed in seeds] if source and evaluation else []
        cells.append(Cell(label, name, paper.get(label, {}).get(name), jobs, evaluation.score if evaluation else ()))
    return cells


def _chosen(names: list[str], known: list[str], table: str) -> list[str]:
    for name in filter(None, names):
        expect(name in known, f"--only: {table} has no {name!r}, expected one of {', '.join(map(repr, known))}")
    return [name for name in known if name in names] or known


@dataclass(frozen=True)
class JobBuilder:
    """Jobs of one profile under one folder, where the same job has the same place in every table.

    Args:
        root: folder of all runs of all tables of the profile.
        extra: KEY VALUE pairs for every pretraining and finetuning; what a row or column sets itself wins.
        gpus: processes of each.
        full: toy trainings as long as their configs say, not the short ones of a quick table.
    """

    profile: str
    root: Path
    extra: tuple[str, ...] = ()
    gpus: int = 1
    full: bool = False

    def evaluate(self, source: Source, evaluation: Evaluation, seed: int) -> Job:
        """Finetune from a backbone, or look at its frozen features."""
        folder = self.root / "evaluate" / source.name / self._folder_of(evaluation) / f"seed{seed}"
        needs, weights, facts = (), None, ()
        if isinstance(source, GivenBackbone):
            if weights := source.file(seed):
                facts = (f"{weights.name}: sha256 {hashlib.sha256(weights.read_bytes()).hexdigest()}",)
        else:
            needs = (self.backbone(source, seed),)
            weights = needs[0].result
        length = () if self.full else evaluation.length
        if evaluation.program == TRAIN:
            train = self._training(evaluation.config)
            options = (*length, *self.extra, *evaluation.options, "SEED", str(seed), "OUTPUT_DIR", str(folder))
            options += ("MODEL.WEIGHTS", str(weights)) if weights else ()
            commands = ((*train, *options), (*train, "--eval-only", *options))
        else:
            place = ("--weights", str(weights or "random"), "--output", str(folder))
            options = (*evaluation.options, *length, "SEED", str(seed))
            commands = ((evaluation.program, "--config-file", evaluation.config, *place, *options),)
        name = f"{source.name}, seed {seed}: {folder.parent.name}"
        return Job(name, commands, folder / evaluation.result, (*data_facts(commands[0]), *facts), needs)

    def backbone(self, source: PretrainingRun | OthersWeights, seed: int, *, watched: bool = False) -> Job:
        """Pretrain and convert; ``watched`` leaves the recipe's own evaluations on."""
        if isinstance(source, OthersWeights):
            checkpoint = datasets_root() / "weights" / source.file
            output = self.root / "weights" / source.name / "backbone.pth"
            trained, needs = (), ()
        else:
            folder = self.root / "pretrain" / source.name / f"seed{seed}"
            checkpoint, output = folder / "model_final.pth", folder / "backbone.pth"
            needs = (self._drawn(source),) if source.toy_data else ()
            length = () if self.full and not needs else source.length
            options = (*length, *self.extra, *source.options, "SEED", str(seed), "OUTPUT_DIR", str(folder))
            if needs:
                options += ("DATASETS.TRAIN", f"('folder:{needs[0].result.parent / source.toy_data[0]}',)")
            # The table has its own evaluations.
            options += () if watched or self.profile == "paper" else ("KNN_EVAL.BANK", "", "KNN_EVAL.LINEAR", "False")
            trained = ((*self._training(source.config), *options),)
        convert = ("tools/convert_to_d2.py", str(checkpoint), str(output))
        facts = data_facts(trained[0]) if trained else ()
        return Job(f"{source.name}, seed {seed}: pretraining", (*trained, convert), output, facts, needs)

    def _training(self, config: str) -> tuple[str, ...]:
        processes = () if self.gpus == 1 else ("--num-gpus", str(self.gpus))
        return (TRAIN, "--config-file", config, *processes, "--resume")

    def _drawn(self, source: PretrainingRun) -> Job:
        arguments = source.toy_data[1:]
        folder = self.root / "data" / "_".join(word.strip("-") for word in arguments) / "toy_scenes"
        command = ("projects/ToyScenes/make_toy_scenes.py", "--output", str(folder), "--workers", "1", *arguments)
        # The file is what make_toy_scenes.py writes last.
        return Job(f"ToyScenes {' '.join(arguments)}", (command,), folder / "toy_scenes.json")

    def _folder_of(self, evaluation: Evaluation) -> str:
        """The first column that is read from an evaluation; others may be, by another score."""
        forms = ((name, getattr(column, self.profile)) for name, column in COLUMNS.items())
        recipe = (evaluation.config, evaluation.options)
        return next(name for name, form in forms if form and (form.config, form.options) == recipe).replace(" ", "_")


def missing_inputs(job: Job) -> str:
    """What the job would not find on this machine: data sets, checkpoints of others; "" if nothing is missing."""
    missing, drawn = [], tuple(f"folder:{needed.result.parent}/" for needed in job.needs)
    for command in job.commands:
        if command[0] == "tools/convert_to_d2.py" and len(job.commands) == 1 and not Path(command[1]).is_file():
            missing.append(f"{command[1]}, a checkpoint of others")
        elif "--config-file" in command:
            missing += [name for name in _data_sets(command) if _size(name) is None and not name.startswith(drawn)]
            folder = _config(command).get("LABEL_PROPAGATION", {}).get("DATA")
            if folder and not (datasets_root() / folder).is_dir():
                missing.append(str(datasets_root() / folder))
    return ", ".join(dict.fromkeys(missing))


def data_facts(command: tuple[str, ...]) -> tuple[str, ...]:
    """How many images the command's data sets have, those of them that are on disk and have a fixed name."""
    sizes = {name: _size(name) for name in _data_sets(command) if ":" not in name}
    return tuple(f"{name}: {size} images" for name, size in sizes.items() if size is not None)


def cost_of(job: Job) -> str:
    """The training's iterations, ``92,400 iterations of 256 images``, or what else the job does, in words.

    Data sets that are not on disk count with their published sizes.
    """
    command = job.commands[0]
    if command[0] != TRAIN:
        return {"-c": "a plot"}.get(command[0], "frozen features" if "--config-file" in command else command[0])
    options = _options(command)
    for key in ("MODEL.WEIGHTS", "OUTPUT_DIR"):  # neither is there yet
        options.pop(key, None)
    words = list(itertools.chain.from_iterable(options.items()))
    cfg = make_config(command[command.index("--config-file") + 1], words, for_here=False)
    if cfg.SOLVER.MAX_ITER <= 0:
        try:
            resolve_schedule(cfg, count_images(cfg, assume_missing=True))
        except UserError:
            return f"{cfg.SOLVER.EPOCHS} epochs"
    return f"{cfg.SOLVER.MAX_ITER:,} iterations of {cfg.SOLVER.IMS_PER_BATCH} images"


def _options(command: tuple[str, ...]) -> dict[str, str]:
    """The KEY VALUE pairs that end a command; of a key given twice the last value counts."""
    backwards = zip(command[-2::-2], command[::-2], strict=False)
    return dict(reversed(list(itertools.takewhile(lambda pair: pair[0].isupper(), backwards))))


def _data_sets(command: tuple[str, ...]) -> list[str]:
    options, data = _options(command), _config(command).get("DATASETS", {})
    parts = [options.get(f"DATASETS.{part}", data.get(part, ())) for part in ("TRAIN", "TEST")]
    names = [ast.literal_eval(part) if isinstance(part, str) else part for part in parts]
    return list(dict.fromkeys(itertools.chain.from_iterable(names)))


def _config(command: tuple[str, ...]) -> dict:
    return CfgNode.load_yaml_with_base(command[command.index("--config-file") + 1])


@functools.cache
def _size(name: str) -> int | None:
    try:
        return len(get_records(name))
    except UserError:
        return None
