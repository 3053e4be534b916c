"""The page: what was collected, drawn and tabulated, put into its template."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from projects.RunReport import tables
from projects.RunReport.best_scores import LOSSES, Summary, summarize
from projects.RunReport.charts import KNOWN, color_of, dash_of, make_groups
from projects.RunReport.collect import NEIGHBORS, Collected, Evaluation, Run
from projects.RunReport.thumbnails import Album, Embedded

ROOM = 2_000_000  # bytes for the pictures of each run; plotly's script takes 4.8 million
MOST_PICTURES = 12  # of one evaluation
OPEN_EVALUATIONS = 6  # more of them are closed at first
VIEWS = "views"
NON_FINITE = "non_finite"
TITLES = {panel.metric: panel.title for panels in KNOWN.values() for panel in panels}


@dataclass(frozen=True)
class ShownEvaluation:
    """An evaluation, ready for the page."""

    run: Run
    name: str
    readable: bool
    tables: list[tables.Table]
    texts: list[tuple[str, str]]  # name and content of a table that is text already
    pictures: list[Embedded]
    left_out: int


def render(collected: Collected, progress: Callable[[Iterable, str], Iterable] = lambda items, what: items) -> str:
    """The whole page as HTML.

    Args:
        progress: wraps what takes long, with a word for it.
    """
    runs = collected.runs
    album = Album(ROOM * max(1, len(runs)))
    evaluations = [(run, evaluation) for run in runs for evaluation in run.evaluations]
    pictures = _sorted_out(collected, album, progress)
    summaries = [summarize(run) for run in runs]
    environment = Environment(
        loader=PackageLoader("projects.RunReport"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["decimals"] = _decimals
    return environment.get_template("page.html").render(
        title=_title(runs),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=runs,
        summaries=summaries,
        losses=[name for name in LOSSES if any(name in summary.losses for summary in summaries)],
        scores=_score_names(summaries),
        titles=TITLES,
        groups=make_groups(runs),
        color_of=color_of,
        dash_of=dash_of,
        what=_what,
        views=pictures["views"],
        neighbors=pictures["neighbors"],
        non_finite=pictures["non_finite"],
        others=pictures["others"],
        evaluations=[_show(run, evaluation, album) for run, evaluation in progress(evaluations, "evaluation")],
        open_evaluations=len(evaluations) <= OPEN_EVALUATIONS,
        settings=tables.settings(runs),
        environments=tables.environments(runs),
        absent=tables.ABSENT,
        script=get_plotlyjs(),
    )


def _title(runs: list[Run]) -> str:
    names = [run.name for run in runs]
    if len(names) > 3:
        return f"{len(names)} runs"
    return f"Runs {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"Run {names[0]}"


def _what(run: Run) -> str:
    """What a run trains, and on what."""
    architecture = run.config.get("MODEL.META_ARCHITECTURE")
    data = run.config.get("DATASETS.TRAIN")
    if not architecture:
        return tables.ABSENT
    return f"{architecture}, {', '.join(map(str, data))}" if isinstance(data, list) and data else str(architecture)


def _decimals(value: float | None, places: int) -> str:
    """Numbers of a column, which stand below each other."""
    return tables.ABSENT if value is None else f"{value:,.{places}f}"


def _score_names(summaries: list[Summary]) -> list[str]:
    """Scores that some run has, those of pretraining first."""
    names = dict.fromkeys(name for summary in summaries for name in summary.scores)
    return sorted(names, key=lambda name: ("/" in name, name))


def _sorted_out(
    collected: Collected, album: Album, progress: Callable[[Iterable, str], Iterable]
) -> dict[str, list[Embedded]]:
    """The folders' own pictures by what they show, which their names tell."""
    found: dict[str, list[Embedded]] = {"views": [], "neighbors": [], "non_finite": [], "others": []}
    for owner, path in progress(collected.pictures, "picture"):
        below = f"{NON_FINITE}/" if path.parent.name == NON_FINITE else ""
        if below:
            kind = "non_finite"
        elif path.stem.startswith(VIEWS):
            kind = "views"
        else:
            kind = "neighbors" if path.stem.startswith(NEIGHBORS) else "others"
        found[kind].append(album.embed(path, f"{owner}: {below}{path.name}"))
    return found


def _show(run: Run, evaluation: Evaluation, album: Album) -> ShownEvaluation:
    shown = evaluation.pictures[:MOST_PICTURES]
    return ShownEvaluation(
        run=run,
        name=evaluation.name,
        readable=evaluation.content is not None,
        tables=tables.of_evaluation(evaluation),
        texts=[(path.name, _read(path)) for path in evaluation.tables if path.suffix == ".md"],
        pictures=[album.embed(path, path.name) for path in shown],
        left_out=len(evaluation.pictures) - len(shown),
    )


def _read(path: Path) -> str:
    return path.read_text(errors="replace").strip()
