"""From the paper's tables to jobs: draw data, pretrain, convert, evaluate; each is there once, whoever needs it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from projects.Paper.paper_tables import (
    COLUMNS,
    Evaluation,
    GivenBackbone,
    OthersWeights,
    PretrainingRun,
    Row,
    Snapshot,
    Source,
    Words,
    columns_of,
    paper_values,
)
from projects.Paper.snapshots import checkpoint_file, snapshot_file
from revisit.checkpoint import RANDOM
from revisit.checkpoint.run_folder import BEST
from revisit.data.sources.catalog import datasets_root
from revisit.engine.run_length import evaluates_on_the_way
from revisit.engine.setup import make_config
from revisit.errors import expect
from revisit.jobs.commands import Job, data_facts
from revisit.plugins import TRAIN

from detectron2.evaluation.testing import flatten_results_dict

NO_EVALUATION = ("KNN_EVAL.BANK", "", "KNN_EVAL.LINEAR", "False", "DATASETS.TEST", "()", "TEST.EVAL_EPOCHS", "0")


@dataclass(frozen=True)
class Cell:
    """A row's number in a column, one job per seed; no jobs: there is nothing to run it with."""

    row: str
    column: str
    paper: float | None
    jobs: list[Job]
    score: Words  # where the number stands in a result
    network: str = ""  # of a finetuning, whose: of the last iteration (final), or of the best evaluation (best)

    def values(self) -> list[float]:
        """Scores of the seeds whose evaluation is finished and was made by this very recipe."""
        return [read_score(job.result, "/".join(self.score)) for job in self.jobs if job.done and job.owns_result]


def read_score(file: Path, name: str) -> float:
    """A score of a file of results by its flattened name, NaN where it is null. Raises UserError where it is absent."""
    results = flatten_results_dict(json.loads(file.read_text()))
    values = {key: value for key, value in results.items() if isinstance(value, int | float | None)}
    numbers = {key: math.nan if value is None else float(value) for key, value in values.items()}
    of_all_classes = [key for key in numbers if "-" not in key]  # a dash stands before a class's name
    expect(name in numbers, f"no score {name} in {file}: expected one of {', '.join(of_all_classes)}, or of a class")
    return numbers[name]


def make_cells(
    table: str, rows: dict[str, Row], builder: JobBuilder, *, seeds: Sequence[int], only: Sequence[str]
) -> list[Cell]:
    """Cells of a table, row by row, with their jobs, whose ``needs`` are the jobs before them.

    Args:
        rows: the paper's by label, or others to be judged in the table's columns.
        only: "ROW,COLUMN" each, of which either may be empty: that cell, row or column; nothing: all cells.
    """
    paper = paper_values(table)
    cells = []
    for label, name in _chosen(only, list(rows), columns_of(table, builder.profile), table):
        source = rows[label][builder.profile]
        evaluation = getattr(COLUMNS[name], builder.profile)
        published = paper.get(label, {}).get(name)
        if not evaluation:
            cells.append(Cell(label, name, published, [], ()))
            continue
        jobs = [builder.evaluate(source, evaluation, seed) for seed in seeds] if source else []
        network = builder.select if evaluation.program == TRAIN else ""
        cells.append(Cell(label, name, published, jobs, evaluation.score, network))
    return cells


def _chosen(only: Sequence[str], rows: list[str], columns: list[str], table: str) -> list[tuple[str, str]]:
    wanted = set() if only else {*itertools.product(rows, columns)}
    for words in only:
        row, _, column = map(str.strip, words.partition(","))
        for name, known in ((row, rows), (column, columns)):
            expect(
                name in ("", *known), f"--only: {table} has no {name!r}, expected one of {', '.join(map(repr, known))}"
            )
        wanted.update(itertools.product([row] if row else rows, [column] if column else columns))
    return [cell for cell in itertools.product(rows, columns) if cell in wanted]


@dataclass(frozen=True)
class JobBuilder:
    """Jobs of one profile under one folder, where the same job has the same place in every table."""

    profile: str
    root: Path
    extra: Words = ()  # KEY VALUE pairs for every training; what a row or column sets itself wins
    gpus: int = 1  # processes of each training
    full: bool = False  # toy trainings as long as their configs say, not the short ones of a quick table
    select: str = "final"  # of a finetuning, judge the final network, or that of the best evaluation on the way

    def evaluate(self, source: Source, evaluation: Evaluation, seed: int) -> Job:
        """Finetune from a backbone, or look at its frozen features."""
        trains = evaluation.program == TRAIN
        selects_best = trains and self.select == "best"
        recipe = f"{self._folder_of(evaluation)}{'_best' if selects_best else ''}"
        folder = self.root / "evaluate" / source.name / recipe / f"seed{seed}"
        needs, weights, facts = self._start_of(source, seed)
        commands_of = self._finetuning if trains else self._frozen
        commands = commands_of(evaluation, weights, seed, folder)
        return Job(
            f"{source.name}, seed {seed}: {recipe}",
            commands,
            folder / evaluation.result,
            (*data_facts(commands[0]), *facts),
            needs,
        )

    def _start_of(self, source: Source, seed: int) -> tuple[tuple[Job, ...], Path | None, Words]:
        """The jobs that make a source's weights, the weights (None: random), and what tells them from others."""
        if isinstance(source, GivenBackbone):
            digest = source.digest(seed)
            return (), source.file(seed), (digest,) if digest else ()
        if isinstance(source, Snapshot):
            snapshots = self.snapshots(source.run, source.parts, seed)
            return (snapshots,), snapshot_file(snapshots.result.parent, source.part), ()
        backbone = self.backbone(source, seed)
        return (backbone,), backbone.result, source.facts if isinstance(source, PretrainingRun) else ()

    def _length_of(self, evaluation: Evaluation) -> Words:
        return () if self.full else evaluation.length

    def _finetuning(self, evaluation: Evaluation, weights: Path | None, seed: int, folder: Path) -> tuple[Words, ...]:
        """The command that trains into a folder. Where the best network is judged, it trains into a folder below, whose
        own evaluation is that of the final network, and another one evaluates the best."""
        options = (*self._length_of(evaluation), *self.extra, *evaluation.options, "SEED", str(seed))
        start = ("MODEL.WEIGHTS", str(weights)) if weights else ()
        *without_resume, resume = self._training(evaluation.config)
        if self.select != "best":
            return ((*without_resume, resume, *options, "OUTPUT_DIR", str(folder), *start),)
        expect(
            evaluates_on_the_way(make_config(evaluation.config, options, for_here=False)),
            f"--how best: {evaluation.config} evaluates nothing before its end; add --opts TEST.EVAL_EPOCHS 1",
        )
        training = folder / "training"
        options += ("TEST.KEEP_BEST", "True")
        train = (*without_resume, resume, *options, "OUTPUT_DIR", str(training), *start)
        best = ("OUTPUT_DIR", str(folder), "MODEL.WEIGHTS", str(training / f"{BEST}.pth"))
        return train, (*without_resume, "--eval-only", *options, *best)

    def _frozen(self, evaluation: Evaluation, weights: Path | None, seed: int, folder: Path) -> tuple[Words, ...]:
        """The command that looks at frozen features."""
        place = ("--weights", str(weights or RANDOM), "--output", str(folder))
        options = (*evaluation.options, *self._length_of(evaluation), "SEED", str(seed))
        return ((evaluation.program, "--config-file", evaluation.config, *place, *options),)

    def backbone(self, source: PretrainingRun | OthersWeights, seed: int) -> Job:
        """Pretrain and convert."""
        if isinstance(source, OthersWeights):
            checkpoint = datasets_root() / "weights" / source.file
            output = self.root / "weights" / source.name / "backbone.pth"
            trained = ()
            needs = ()
            facts = ()
        else:
            folder = self.root / "pretrain" / source.name / f"seed{seed}"
            checkpoint = folder / "model_final.pth"
            output = folder / "backbone.pth"
            needs = (self.drawn(source),) if source.toy_data else ()
            length = () if self.full and not needs else source.length
            options = (*length, *self.extra, *source.options, "SEED", str(seed), "OUTPUT_DIR", str(folder))
            options += ("DATASETS.TRAIN", f"('{self.images_of(needs[0], source)}',)") if needs else ()
            options += NO_EVALUATION if self.profile != "paper" else ()  # the table has its own
            trained = ((*self._training(source.config), *options),)
            facts = (*data_facts(trained[0]), *source.facts)
        convert = ("tools/convert_to_d2.py", str(checkpoint), str(output))
        return Job(f"{source.name}, seed {seed}: pretraining", (*trained, convert), output, facts, needs)

    def snapshots(self, source: PretrainingRun, parts: int, seed: int) -> Job:
        """Convert the checkpoints of a run after each of so many equal parts of its training, but for the last."""
        trained = self.backbone(source, seed)
        folder = self.root / "snapshots" / source.name / f"seed{seed}"
        choose = ("projects/Paper/snapshots.py", str(trained.result.parent), str(folder), "--count", str(parts))
        files = [(checkpoint_file(folder, part), snapshot_file(folder, part)) for part in range(1, parts)]
        convert = [("tools/convert_to_d2.py", str(checkpoint), str(backbone)) for checkpoint, backbone in files]
        return Job(f"{source.name}, seed {seed}: snapshots", (choose, *convert), files[-1][1], needs=(trained,))

    def _training(self, config: str) -> Words:
        processes = () if self.gpus == 1 else ("--num-gpus", str(self.gpus))
        return (TRAIN, "--config-file", config, *processes, "--resume")

    def drawn(self, source: PretrainingRun) -> Job:
        """Draw the run's own ToyScenes, into toy_scenes/ next to the job's files: the folder has to be empty."""
        arguments = source.toy_data[1:]
        name = "_".join(word.strip("-") for word in arguments)
        folder = self.root / "data" / name.replace("count_", "num-images_")  # as version 0.1 named it
        output, record = folder / "toy_scenes", "toy_scenes.json"  # the record is written last
        draw = ("projects/ToyScenes/make_toy_scenes.py", "--output", str(output), "--processes", "1", *arguments)
        copy = ("-c", f"import shutil; shutil.copy({str(output / record)!r}, {str(folder / record)!r})")
        return Job(f"ToyScenes {' '.join(arguments)}", (draw, copy), folder / record)

    @staticmethod
    def images_of(drawn: Job, source: PretrainingRun) -> str:
        """The name, for DATASETS.TRAIN, of the images that were drawn for a run."""
        return f"folder:{drawn.result.parent / 'toy_scenes' / source.toy_data[0]}"

    def _folder_of(self, evaluation: Evaluation) -> str:
        """The first column that is read from an evaluation; others may be, by another score."""
        if evaluation.folder:
            return evaluation.folder
        forms = ((name, getattr(column, self.profile)) for name, column in COLUMNS.items())
        recipe = (evaluation.config, evaluation.options)
        return next(name for name, form in forms if form and (form.config, form.options) == recipe).replace(" ", "_")
