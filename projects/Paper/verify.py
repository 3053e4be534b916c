"""From a user's file to a verdict for each published score: hash, conversion, evaluation, range."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from projects.Paper.cells import JobBuilder, read_score
from projects.Paper.paper_tables import GivenBackbone
from projects.Paper.published import TIMM_DIFFERENCE, PublishedFile, PublishedScore, check_hash
from projects.Weights.zoo_options import zoo_options
from revisit.engine.environment import describe_environment
from revisit.engine.setup import make_config
from revisit.errors import UserError, expect
from revisit.files import write_whole
from revisit.jobs.commands import Job, missing_inputs, run_jobs
from revisit.markdown import markdown_table
from revisit.plugins import TRAIN


@dataclass(frozen=True)
class Verdict:
    """A measured score and the published one."""

    score: PublishedScore
    value: float
    seconds: float  # of this call: 0 where the evaluation was done before

    @property
    def agrees(self) -> bool:
        return self.score.low <= self.value <= self.score.high

    def __str__(self) -> str:
        """``VOC_SVM_mAP 85.7, published 85.9, range 85.4 to 86.4: agrees``."""
        score = self.score
        word = "agrees" if self.agrees else "disagrees"
        return f"{score.column} {self.value:.4g}, published {score.value}, range {score.low} to {score.high}: {word}"


class Verification:
    """A published file and the user's copy of it, judged in some of its columns; results lie below ``root``.

    Raises:
        UserError: the copy is another file, or of another layout, or a column is not published for it.
    """

    def __init__(
        self, published: PublishedFile, file: Path, columns: Sequence[str], *, root: Path, seed: int, gpus: int
    ):
        published_columns = [score.column for score in published.scores]
        for column in columns:
            expect(
                column in published_columns,
                f"--only {column}: {published.name} was not published with it, expected of "
                f"{', '.join(published_columns)}",
            )
        self.published = published
        self.file = file
        self._root = root
        self._seed = seed
        self._scores = [score for score in published.scores if score.column in (columns or published_columns)]
        self._builder = JobBuilder("", root, gpus=gpus, full=True)
        self.sha256 = check_hash(file, published)
        self._backbone = root / "weights/backbone.pth"
        if not all(score.is_trained for score in self._scores):
            self._convert()

    def jobs(self) -> dict[str, Job]:
        """By column."""
        return {score.column: self._job(score) for score in self._scores}

    def missing(self) -> str:
        """What the jobs would not find on this machine, in words; "" if nothing is missing."""
        return ", ".join(filter(None, dict.fromkeys(map(missing_inputs, self.jobs().values()))))

    def run(self) -> list[Verdict]:
        """Evaluate what is not done yet, column by column, and print each verdict."""
        verdicts = []
        for score in self._scores:
            job = self._job(score)
            job.claim()
            began = time.perf_counter()
            if not job.done:
                run_jobs([job], 1)
            value = read_score(job.result, "/".join(score.evaluation.score))
            verdicts.append(Verdict(score, value, time.perf_counter() - began))
            print(verdicts[-1], flush=True)
        return verdicts

    def write(self, verdicts: Sequence[Verdict]) -> None:
        """Write verify.json and verify.md under the root."""
        environment = describe_environment()
        rows = [
            {
                "column": verdict.score.column,
                "value": verdict.value,
                "published": verdict.score.value,
                "printed": verdict.score.printed,
                "range": [verdict.score.low, verdict.score.high],
                "agrees": verdict.agrees,
                "seconds": round(verdict.seconds, 1),
            }
            for verdict in verdicts
        ]
        facts = {
            "file": self.published.name,
            "title": self.published.title,
            "sha256": self.sha256,
            "licence": self.published.licence,
            "seed": self._seed,
            "scores": rows,
            "environment": environment,
        }
        write_whole(self._root / "verify.json", json.dumps(facts, indent=2))
        lines = [
            [
                self.published.title,
                verdict.score.column,
                f"{verdict.value:.4g}",
                f"{verdict.score.value} ({verdict.score.printed})",
                f"{verdict.score.low} to {verdict.score.high}",
                "agrees" if verdict.agrees else "**disagrees**",
                f"{verdict.seconds:.0f} s",
            ]
            for verdict in verdicts
        ]
        table = markdown_table(["weights", "column", "ours", "published", "range", "verdict", "took"], lines)
        write_whole(
            self._root / "verify.md",
            f"{table}\n\nSeed {self._seed}, commit {environment['commit']}, torch {environment['torch']}, Detectron2 "
            f"{environment['detectron2']}.\n",
        )

    def _convert(self) -> None:
        command = ("tools/convert_to_d2.py", str(self.file), str(self._backbone), *self.published.layout)
        job = Job("conversion", (command,), self._backbone, (f"weights: sha256 {self.sha256}",))
        job.claim()
        try:
            run_jobs([job], 1)
        except UserError as error:
            raise UserError(f"{self.file} is not of the layout of {self.published.name}: {job.last_line}") from error

    def _job(self, score: PublishedScore) -> Job:
        if score.evaluation is TIMM_DIFFERENCE:
            folder = self._root / "evaluate" / score.column
            words = ("--weights", str(self._backbone), "--original", str(self.file), "--output", str(folder))
            return Job(score.column, ((score.evaluation.program, *words),), folder / "results.json")
        if score.is_trained:
            return self._evaluation_alone(score)
        words = (Path(score.evaluation.config).stem, *score.evaluation.options)
        folder = "_".join(words).replace("/", "-")  # several scores are read from one evaluation
        return self._builder.evaluate(
            GivenBackbone(str(self._backbone)), replace(score.evaluation, folder=folder), self._seed
        )

    def _evaluation_alone(self, score: PublishedScore) -> Job:
        config = score.evaluation.config
        folder = self._root / "evaluate" / score.column
        pixels = zoo_options(self.file, make_config(config, (), for_here=False))
        command = (
            TRAIN,
            "--config-file",
            config,
            "--eval-only",
            *pixels,
            *score.evaluation.options,
            "MODEL.WEIGHTS",
            str(self.file),
            "OUTPUT_DIR",
            str(folder),
        )
        return Job(score.column, (command,), folder / score.evaluation.result, (f"weights: sha256 {self.sha256}",))
