"""From a table of the paper to jobs: draw data, pretrain, convert, evaluate; each is there once, whoever needs it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from projects.PaperTables.columns import COLUMNS, FINETUNE, Evaluation
from projects.PaperTables.command_data import data_facts, missing_data
from projects.PaperTables.jobs import Job
from projects.PaperTables.paper_values import paper_table
from projects.PaperTables.rows import ROWS, Pretraining, RandomInit, Row, Source, Weights
from revisit.data.catalog import datasets_root
from revisit.errors import UserError

PROFILES = ("paper", "toy")
DRAWN = "toy_scenes.json"  # what projects/ToyScenes/make_toy_scenes.py writes last


@dataclass
class Cell:
    """A row's number in a column, one job a seed; no jobs: there is nothing to run it with."""

    row: str
    column: str
    paper: float | None
    jobs: list[Job] = field(default_factory=list)
    score: tuple[str, ...] = ()

    def values(self) -> list[float]:
        """Scores of the seeds whose evaluation is finished and was made by this very recipe."""
        return [_score(job.result, self.score) for job in self.jobs if job.done and job.owns_result]


def _score(path: Path, names: tuple[str, ...]) -> float:
    found = json.loads(path.read_text())
    for name in names:
        found = found[name]
    return float(found)


def choose(table: str, only: str | None) -> tuple[list[Row], list[str]]:
    """Rows and columns of a table, all or those that ``only``, "ROW,COLUMN", names; either may be empty.

    Raises:
        UserError: a row or column that the table does not have.
    """
    rows, columns = {row.label: row for row in ROWS[table]}, list(next(iter(paper_table(table).values())))
    label, _, column = (word.strip() for word in (only or "").partition(","))
    for name, known in ((label, rows), (column, columns)):
        if name and name not in known:
            raise UserError(f"--only {only}: {table} has no {name!r}, expected one of {', '.join(map(repr, known))}")
    return [rows[label]] if label else list(rows.values()), [column] if column else columns


def make_cells(
    rows: list[Row],
    columns: list[str],
    table: str,
    *,
    profile: str,
    seeds: list[int],
    root: Path,
    extra: tuple[str, ...] = (),
    gpus: int = 1,
) -> list[Cell]:
    """Cells of a table with their jobs, whose ``needs`` are the jobs before them.

    Args:
        root: folder of all runs of all tables of a profile.
        extra: KEY VALUE pairs for every pretraining and finetuning.
        gpus: processes of each.
    """
    paper, builder, cells = paper_table(table), Builder(profile, root, extra, gpus), []
    for row in rows:
        source = getattr(row, profile)
        for name in columns:
            evaluation = getattr(COLUMNS[name], profile)
            cell = Cell(row.label, name, paper[row.label][name])
            if source is not None and evaluation is not None:
                cell.score = evaluation.score
                cell.jobs = [builder.evaluate(source, evaluation, seed) for seed in seeds]
            cells.append(cell)
    return cells


def all_jobs(cells: list[Cell]) -> list[Job]:
    """Every job of the cells once, each behind those that it needs."""
    return with_needs([job for cell in cells for job in cell.jobs])


def with_needs(jobs: list[Job]) -> list[Job]:
    """The jobs and those that they need, each once and behind those that it needs itself."""
    found: dict[Path, Job] = {}

    def add(job: Job) -> None:
        for needed in job.needs:
            add(needed)
        found.setdefault(job.result, job)

    for job in jobs:
        add(job)
    return list(found.values())


class Builder:
    """Jobs of one profile under one folder, where the same job has the same place in every table."""

    def __init__(self, profile: str, root: Path, extra: tuple[str, ...], gpus: int):
        self._profile = profile
        self._root = root
        self._extra = extra
        self._gpus = () if gpus == 1 else ("--num-gpus", str(gpus))

    def evaluate(self, source: Source, evaluation: Evaluation, seed: int) -> Job:
        """Finetune from a backbone, or look at its frozen features."""
        folder = self._root / "evaluate" / source.name / _name_of(evaluation, self._profile) / f"seed{seed}"
        weights = None if isinstance(source, RandomInit) else self.backbone(source, seed)
        needs = (weights,) if weights else ()
        own = ("SEED", str(seed))
        if evaluation.program == FINETUNE:
            words = (FINETUNE, "--config-file", evaluation.config, *self._gpus, "--resume")
            options = (*self._extra, *evaluation.options, *own, "OUTPUT_DIR", str(folder))
            options += ("MODEL.WEIGHTS", str(weights.result)) if weights else ()
            commands = ((*words, *options), (*words, "--eval-only", *options))
        else:
            start = str(weights.result) if weights else "random"
            words = (
                evaluation.program,
                "--config-file",
                evaluation.config,
                "--weights",
                start,
                "--output",
                str(folder),
            )
            commands = ((*words, *evaluation.options, *own),)
        name = f"{source.name}, seed {seed}: {folder.parent.name}"
        return Job(name, commands, folder / evaluation.result, data_facts(commands[0]), needs)

    def backbone(self, source: Pretraining | Weights, seed: int, *, watched: bool = False) -> Job:
        """Pretrain and convert; ``watched`` leaves the recipe's own evaluations on."""
        if isinstance(source, Weights):
            folder, needs = self._root / "weights", ()
            checkpoint, trained = datasets_root() / "weights" / source.file, ()
            output = folder / source.name / "backbone.pth"
        else:
            folder = self._root / "pretrain" / source.name / f"seed{seed}"
            output, checkpoint = folder / "backbone.pth", folder / "model_final.pth"
            data = self._data(source)
            needs = (data,) if data else ()
            options = (*source.options, *source.length, *self._extra, "SEED", str(seed), "OUTPUT_DIR", str(folder))
            if data:
                options += ("DATASETS.TRAIN", f"('folder:{data.result.parent / source.toy_data[1]}',)")
            # The table has its own evaluations.
            options += () if watched or self._profile == "paper" else ("KNN_EVAL.BANK", "", "KNN_EVAL.LINEAR", "False")
            trained = ((FINETUNE, "--config-file", source.config, *self._gpus, "--resume", *options),)
        convert = ("tools/convert_to_d2.py", str(checkpoint), str(output))
        facts = data_facts(trained[0]) if trained else ()
        return Job(f"{source.name}, seed {seed}: pretraining", (*trained, convert), output, facts, needs)

    def _data(self, source: Pretraining) -> Job | None:
        if not source.toy_data:
            return None
        arguments, _ = source.toy_data
        folder = self._root / "data" / "_".join(word.strip("-") for word in arguments) / "toy_scenes"
        command = ("projects/ToyScenes/make_toy_scenes.py", "--output", str(folder), "--workers", "1", *arguments)
        return Job(f"ToyScenes {' '.join(arguments)}", (command,), folder / DRAWN)


def _name_of(evaluation: Evaluation, profile: str) -> str:
    """The folder of an evaluation: the first column that is read from it."""

    def made_by(other: Evaluation | None) -> bool:
        return other is not None and (other.config, other.options) == (evaluation.config, evaluation.options)

    return next(name for name, column in COLUMNS.items() if made_by(getattr(column, profile))).replace(" ", "_")


def missing_inputs(jobs: list[Job]) -> dict[Path, str]:
    """By the job's result what it would not find on this machine: data sets, checkpoints of others."""
    missing = {}
    for job in jobs:
        found = []
        for command in job.commands:
            if command[0] == "tools/convert_to_d2.py" and len(job.commands) == 1 and not Path(command[1]).is_file():
                found.append(f"{command[1]}, a checkpoint of others")
            elif "--config-file" in command and not any(needed.result.name == DRAWN for needed in job.needs):
                found += missing_data(command)
        if found:
            missing[job.result] = ", ".join(dict.fromkeys(found))
    return missing
