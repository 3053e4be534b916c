"""The page: what was collected, drawn and tabulated, put into its template."""

from datetime import datetime
from pathlib import Path

import jinja2
from plotly.offline import get_plotlyjs

from projects.RunReport import best_scores, charts, tables
from projects.RunReport.collect import NEIGHBORS, NON_FINITE, ReportedRun, progress
from projects.RunReport.thumbnails import Album

ROOM = 2_000_000  # bytes for the pictures of each run; plotly's script takes 4.8 million
MOST_ROWS = 300  # of a table
MOST_PICTURES = 12  # of one evaluation
OPEN_EVALUATIONS = 6  # more of them are closed at first
# Of a folder's own pictures, by how their names start.
KINDS = {NON_FINITE: (f"{NON_FINITE}/",), "views": ("views",), "neighbors": NEIGHBORS, "others": ("",)}


def render(runs: list[ReportedRun], pictures: list[tuple[str, Path]]) -> str:
    """The whole page as HTML, of what ``collect`` has found; bars on stderr where pictures take long."""
    metrics = {name for run in runs for name in run.series}
    evaluations = [(run, evaluation) for run in runs for evaluation in run.evaluations]
    tidy = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.PackageLoader("projects.RunReport"), autoescape=True, **tidy)
    return environment.get_template("page.html").render(
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        runs=runs,
        losses=[name for name in best_scores.LOSSES if name in metrics],
        # Those of pretraining first.
        scores=sorted(filter(best_scores.is_score, metrics), key=lambda name: ("/" in name, name)),
        best_scores=best_scores,
        charts=charts,
        found=_by_kind(pictures),
        embed=Album(ROOM * len(runs)).embed,
        progress=progress,
        evaluations=evaluations,
        most_rows=MOST_ROWS,
        most_pictures=MOST_PICTURES,
        open_evaluations=len(evaluations) <= OPEN_EVALUATIONS,
        tables=tables,
        script=get_plotlyjs(),
    )


def _by_kind(pictures: list[tuple[str, Path]]) -> dict[str, list[tuple[Path, str]]]:
    """The folders' own pictures with their captions, by what their names say they show."""
    found: dict[str, list[tuple[Path, str]]] = {kind: [] for kind in KINDS}
    for owner, path in pictures:
        name = f"{NON_FINITE}/{path.name}" if path.parent.name == NON_FINITE else path.name
        kind = next(kind for kind, starts in KINDS.items() if name.startswith(starts))
        found[kind].append((path, f"{owner}: {name}"))
    return found
