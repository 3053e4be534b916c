"""What a run is about: which task, and which of its scores says how well it went."""

from typing import NamedTuple

from projects.Reports.collect import NumberedRuns, Point, ReportedRun
from projects.Reports.main_score import pretraining_scores, scores_of_network
from revisit.checkpoint.metrics_file import is_number
from revisit.keys import DETECTORS
from revisit.modeling.meta_arch.pretraining import methods
from revisit.plugins import load_plugins

from detectron2.evaluation.testing import flatten_results_dict


class RunKind(NamedTuple):
    """A task."""

    title: str
    architectures: tuple[str, ...] = ()  # of MODEL.META_ARCHITECTURE
    scores: tuple[str, ...] = ()  # what its runs are about; the name of a data set may come before, or follow


def _main_score(architecture: str) -> str:
    return scores_of_network(architecture)[0].name


load_plugins()  # which bring methods and scores
KINDS = (
    RunKind(
        "Pretraining",
        tuple(method.__name__ for method in methods()),
        tuple(score.name for score in pretraining_scores()),
    ),
    RunKind("Detection", DETECTORS, (_main_score("GeneralizedRCNN"), "segm/AP")),
    RunKind("Segmentation", ("SemanticSegmentor",), (_main_score("SemanticSegmentor"),)),
    RunKind("Depth", ("DepthEstimator",), (_main_score("DepthEstimator"),)),
)
STUDY = RunKind("Studies")  # of projects/: what they are is in their results
OF_TRAINING = ("metrics.json", "dry_run.json", "evaluation.json")  # files of runs that are no studies
OTHER = RunKind("Other runs")


def by_kind(runs: list[ReportedRun]) -> dict[RunKind, NumberedRuns]:
    """The runs of every kind that there is, each with a number of its own; those with curves have the first ones."""
    members: dict[RunKind, NumberedRuns] = {kind: [] for kind in (*KINDS, OTHER, STUDY)}
    with_curves_first = sorted(runs, key=lambda run: not run.series)
    for number, run in enumerate(with_curves_first):
        members[_kind_of(run)].append((number, run))
    return {kind: of_kind for kind, of_kind in members.items() if of_kind}


def main_scores(kind: RunKind, runs: list[ReportedRun]) -> list[str]:
    """Names of the scores that runs of this kind are about, those that some run has."""
    names = dict.fromkeys(name for run in runs for name in (*run.series, *_evaluated(run)))
    shown = []
    for score in kind.scores:
        shown += [name for name in names if f"/{name}".endswith(f"/{score}") or name.startswith(f"{score}/")]
    return shown


def points_of(run: ReportedRun, score: str) -> list[Point]:
    """A score's values over the run, or the one of its --eval-only, whose iteration is not known: -1."""
    if points := run.series.get(score):
        return points
    evaluated = _evaluated(run)
    return [(-1, evaluated[score])] if score in evaluated else []


def study_of(run: ReportedRun) -> dict[str, object]:
    """The plain values of a study's results.json: ``protocol``, which says what it is, ``weights``, numbers."""
    results = _content_of("results.json", run)
    return {key: value for key, value in results.items() if isinstance(value, str | int | float)}


def _kind_of(run: ReportedRun) -> RunKind:
    if not any((run.folder / name).is_file() for name in OF_TRAINING):
        return STUDY
    architecture = run.config.get("MODEL.META_ARCHITECTURE")
    by_name = (kind for kind in KINDS if architecture in kind.architectures)
    by_score = (kind for kind in KINDS if main_scores(kind, [run]))
    return next(by_name, None) or next(by_score, OTHER)


def _evaluated(run: ReportedRun) -> dict[str, float]:
    """The numbers of a run's evaluation.json, by their names in metrics.json."""
    values = flatten_results_dict(_content_of("evaluation.json", run))
    return {name: value for name, value in values.items() if is_number(value)}


def _content_of(name: str, run: ReportedRun) -> dict:
    """What a run's own file of results says; nothing, where it has none or one that cannot be read."""
    for evaluation in run.evaluations:
        if evaluation.name == name:
            return evaluation.content if isinstance(evaluation.content, dict) else {}
    return {}
