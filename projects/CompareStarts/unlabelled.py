"""Each start once more, with a teacher: its trainings learn from photographs without labels, too (projects/Teacher)."""

from collections.abc import Sequence

from projects.CompareStarts.starts import Start, Starts
from projects.CompareStarts.task import Task, facts_of
from projects.Teacher.checks import check_photographs
from projects.Teacher.keys import ARCHITECTURE
from projects.Teacher.samples import unlabelled_records
from revisit.data.sources.catalog import get_records
from revisit.errors import expect
from revisit.keys import DETECTORS, Facts, resolve_auto_values

KEY = "DATASETS.UNLABELLED"
WITH_TEACHER = " + teacher"  # ends such a start's name


def with_teachers(task: Task, starts: Starts, photographs: Sequence[str]) -> dict[str, Start]:
    """Each start, and after it the same with a teacher.

    Args:
        photographs: names of data sets; those of them that are test images, too, are warned of.

    Raises:
        UserError: the recipe is of no plain detector, or photographs are missing.
    """
    detector = _detector_of(task)
    options = ("MODEL.META_ARCHITECTURE", ARCHITECTURE, "TEACHER.DETECTOR", detector, KEY, str(tuple(photographs)))
    cfg = task.load((*task.options, *options))
    resolve_auto_values(cfg, Facts(images=task.total, records=get_records(task.data)))
    check_photographs(cfg)
    facts = tuple(facts_of(KEY, unlabelled_records(cfg), labels=False))
    both = {}
    for name, start in starts.items():
        both[name] = start
        both[name + WITH_TEACHER] = Start(start.source, (*start.options, *options), "_teacher", facts)
    return both


def _detector_of(task: Task) -> str:
    """The meta-architecture of the recipe."""
    architecture = task.load(task.options).MODEL.META_ARCHITECTURE
    is_detector = architecture in DETECTORS and not task.frozen
    kind = "classifies by frozen features" if task.frozen else f"trains a {architecture}"
    expect(
        is_detector,
        f"--unlabelled: {task.config} {kind}: expected a recipe of a detector ({' or '.join(DETECTORS)}), which gets "
        "a teacher here",
    )
    return architecture


def without_teacher(name: str) -> str:
    """The name of the same start without one."""
    return name.removesuffix(WITH_TEACHER)
