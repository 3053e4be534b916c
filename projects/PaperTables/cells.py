"""From the paper's tables to jobs: draw data, pretrain, convert, evaluate; each is there once, whoever needs it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from projects.PaperTables.jobs import Job, data_facts
from projects.PaperTables.paper_tables import (
    COLUMNS,
    TRAIN,
    Evaluation,
    GivenBackbone,
    OthersWeights,
    PretrainingRun,
    Row,
    Snapshot,
    Source,
    columns_of,
    paper_values,
)
from projects.PaperTables.snapshots import checkpoint_file, snapshot_file
from revisit.checkpoint.run_folder import BEST
from revisit.data.sources.catalog import datasets_root
from revisit.engine.run_length import evaluates_on_the_way
from revisit.engine.setup import make_config
from revisit.errors import expect

from detectron2.evaluation.testing import flatten_results_dict

NO_EVALUATION = ("KNN_EVAL.BANK", "", "KNN_EVAL.LINEAR", "False", "DATASETS.TEST", "()", "TEST.EVAL_EPOCHS", "0")


@dataclass(frozen=True)
class Cell:
    """A row's number in a column, one job per seed; no jobs: there is nothing to run it with."""

    row: str
    column: str
    paper: float | None
    jobs: list[Job]
    score: tuple[str, ...]  # where the number stands in a result
    network: str = ""  # of a finetuning, whose: of the last iteration (final), or of the best evaluation (best)

    def values(self) -> list[float]:
        """Scores of the seeds whose evaluation is finished and was made by this very recipe."""
        return [read_score(job.result, "/".join(self.score)) for job in self.jobs if job.done and job.owns_result]


def read_score(file: Path, name: str) -> float:
    """A score of a file of results by its flattened name, NaN where it is null. Raises UserError where it is absent."""
    results = flatten_results_dict(json.loads(file.read_text()))
    values = {key: math.nan if value is None else value for key, value in results.items()}
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    scores = ", ".join(key for key in numbers if "-" not in key)  # a dash stands before a class's name
    expect(name in numbers, f"no score {name} in {file}: expected one of {scores}, or of a class")
    return numbers[name]


def make_cells(
    table: str, rows: dict[str, Row], builder: JobBuilder, *, seeds: Sequence[int], only: Sequence[str]
) -> list[Cell]:
    """Cells of a table, row by row, with their jobs, whose ``needs`` are the jobs before them.

    Args:
        rows: the paper's by label, or others to be judged in the table's columns.
        only: "ROW,COLUMN" each, either may be empty: the rows and columns that are named; all, where none is.
    """
    paper = paper_values(table)
    wanted = [words.partition(",")[::2] for words in only]
    chosen_rows = _chosen([row.strip() for row, _ in wanted], list(rows), table)
    chosen_columns = _chosen([column.strip() for _, column in wanted], columns_of(table, builder.profile), table)
    cells = []
    for label, name in itertools.product(chosen_rows, chosen_columns):
        source, evaluation = rows[label][builder.profile], getattr(COLUMNS[name], builder.profile)
        jobs = [builder.evaluate(source, evaluation, seed) for seed in seeds] if source and evaluation else []
        network = builder.select if evaluation and evaluation.program == TRAIN else ""
        score = evaluation.score if evaluation else ()
        cells.append(Cell(label, name, paper.get(label, {}).get(name), jobs, score, network))
    return cells


def _chosen(names: list[str], known: list[str], table: str) -> list[str]:
    for name in filter(None, names):
        expect(name in known, f"--only: {table} has no {name!r}, expected one of {', '.join(map(repr, known))}")
    return [name for name in known if name in names] or known


@dataclass(frozen=True)
class JobBuilder:
    """Jobs of one profile under one folder, where the same job has the same place in every table."""

    profile: str
    root: Path
    extra: tuple[str, ...] = ()  # KEY VALUE pairs for every training; what a row or column sets itself wins
    gpus: int = 1  # processes of each training
    full: bool = False  # toy trainings as long as their configs say, not the short ones of a quick table
    select: str = "final"  # of a finetuning, judge the final network, or that of the best evaluation on the way

    def evaluate(self, source: Source, evaluation: Evaluation, seed: int) -> Job:
        """Finetune from a backbone, or look at its frozen features."""
        chosen = "_best" * (self.select == "best" and evaluation.program == TRAIN)
        folder = self.root / "evaluate" / source.name / f"{self._folder_of(evaluation)}{chosen}" / f"seed{seed}"
        needs, weights, facts = (), None, ()
        if isinstance(source, GivenBackbone):
            weights, facts = source.file(seed), tuple(filter(None, [source.digest(seed)]))
        elif isinstance(source, Snapshot):
            needs = (self.snapshots(source.run, source.parts, seed),)
            weights = snapshot_file(needs[0].result.parent, source.part)
        else:
            needs = (self.backbone(source, seed),)
            weights = needs[0].result
        length = () if self.full else evaluation.length
        if evaluation.program == TRAIN:
            train = self._training(evaluation.config)
            options = (*length, *self.extra, *evaluation.options, "SEED", str(seed))
            start = ("MODEL.WEIGHTS", str(weights)) if weights else ()
            commands = ((*train, *options, "OUTPUT_DIR", str(folder), *start),)
            if chosen:  # its training's own evaluation, of the final network, is not the result
                evaluates = evaluates_on_the_way(make_config(evaluation.config, options, for_here=False))
                problem = f"{evaluation.config} evaluates nothing before its end"
                expect(evaluates, f"--select best: {problem}; add --opts TEST.EVAL_EPOCHS 1")
                options, training = (*options, "TEST.KEEP_BEST", "True"), folder / "training"
                best = ("OUTPUT_DIR", str(folder), "MODEL.WEIGHTS", str(training / f"{BEST}.pth"))
                commands = (
                    (*train, *options, "OUTPUT_DIR", str(training), *start),
                    (*train[:-1], "--eval-only", *options, *best),  # without --resume
                )
        else:
            place = ("--weights", str(weights or "random"), "--output", str(folder))
            options = (*evaluation.options, *length, "SEED", str(seed))
            commands = ((evaluation.program, "--config-file", evaluation.config, *place, *options),)
        name = f"{source.name}, seed {seed}: {folder.parent.name}"
        return Job(name, commands, folder / evaluation.result, (*data_facts(commands[0]), *facts), needs)

    def backbone(self, source: PretrainingRun | OthersWeights, seed: int) -> Job:
        """Pretrain and convert."""
        if isinstance(source, OthersWeights):
            checkpoint = datasets_root() / "weights" / source.file
            output = self.root / "weights" / source.name / "backbone.pth"
            trained, needs = (), ()
        else:
            folder = self.root / "pretrain" / source.name / f"seed{seed}"
            checkpoint, output = folder / "model_final.pth", folder / "backbone.pth"
            needs = (self.drawn(source),) if source.toy_data else ()
            length = () if self.full and not needs else source.length
            options = (*length, *self.extra, *source.options, "SEED", str(seed), "OUTPUT_DIR", str(folder))
            options += ("DATASETS.TRAIN", f"('{self.images_of(needs[0], source)}',)") if needs else ()
            options += NO_EVALUATION if self.profile != "paper" else ()  # the table has its own
            trained = ((*self._training(source.config), *options),)
        convert = ("tools/convert_to_d2.py", str(checkpoint), str(output))
        facts = data_facts(trained[0]) if trained else ()
        return Job(f"{source.name}, seed {seed}: pretraining", (*trained, convert), output, facts, needs)

    def snapshots(self, source: PretrainingRun, parts: int, seed: int) -> Job:
        """Convert the checkpoints of a run after each of so many equal parts of its training, but for the last."""
        trained = self.backbone(source, seed)
        folder = self.root / "snapshots" / source.name / f"seed{seed}"
        choose = ("projects/PaperTables/snapshots.py", str(trained.result.parent), str(folder), "--parts", str(parts))
        files = [(checkpoint_file(folder, part), snapshot_file(folder, part)) for part in range(1, parts)]
        convert = [("tools/convert_to_d2.py", str(checkpoint), str(backbone)) for checkpoint, backbone in files]
        return Job(f"{source.name}, seed {seed}: snapshots", (choose, *convert), files[-1][1], needs=(trained,))

    def _training(self, config: str) -> tuple[str, ...]:
        processes = () if self.gpus == 1 else ("--num-gpus", str(self.gpus))
        return (TRAIN, "--config-file", config, *processes, "--resume")

    def drawn(self, source: PretrainingRun) -> Job:
        """Draw the run's own ToyScenes, into toy_scenes/ beside the job's files: the folder has to be empty."""
        arguments = source.toy_data[1:]
        folder = self.root / "data" / "_".join(word.strip("-") for word in arguments)
        output, record = folder / "toy_scenes", "toy_scenes.json"  # the record is written last
        draw = ("projects/ToyScenes/make_toy_scenes.py", "--output", str(output), "--workers", "1", *arguments)
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
