"""Two detectors, each trained on half of the labelled images, each of which looks at the other half."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from projects.CompareStarts.labelled_parts import HELD_OUT
from projects.CompareStarts.task import facts_of
from projects.CompareStarts.trainings import FIXED
from projects.Labels.labels import Labels
from revisit.errors import expect
from revisit.jobs.commands import Job, run_jobs
from revisit.plugins import TRAIN, find_config

SEED = 1  # of the order in which images are halved


def halves_of(name: str, labels: Labels) -> list[tuple[str, str]]:
    """Names of what a detector learns from and of what it looks at. Raises UserError for fewer than four images."""
    count = len(set(labels.images.tolist()))
    expect(count >= 4, f"{name} has {count} images with boxes: detectors of halves expect four or more")
    middle = count // 2
    one, other = (f"{HELD_OUT}:{name}:{start}:{end}:{SEED}" for start, end in ((0, middle), (middle, count)))
    return [(one, other), (other, one)]


def half_jobs(name: str, labels: Labels, config: str, options: Sequence[str], root: Path) -> list[Job]:
    """The trainings, whose folders will have the detections. ``options`` are KEY VALUE pairs over the recipe."""
    fixed = {key: str(value) for key, value in FIXED.items()}
    facts = tuple(facts_of(name, labels.records))
    jobs = []
    for number, halves in enumerate(halves_of(name, labels), start=1):
        folder = root.resolve() / f"half{number}"
        learned, looked_at = (str((half,)) for half in halves)
        places = {"DATASETS.TRAIN": learned, "DATASETS.TEST": looked_at, "OUTPUT_DIR": str(folder)}
        pairs = chain(*(fixed | places).items())
        command = (TRAIN, "--config-file", find_config(config), "--resume", *pairs, *options)
        jobs.append(Job(f"detector {number} of 2", (command,), folder / "evaluation.json", facts))
    return jobs


def train_halves(jobs: Sequence[Job]) -> list[Path]:
    """Train what is not trained yet, one after the other; the runs' folders.

    Progress goes to stdout; an interrupted call continues.
    """
    for job in jobs:
        job.claim()
    run_jobs(list(jobs), 1)
    return [job.result.parent for job in jobs]
