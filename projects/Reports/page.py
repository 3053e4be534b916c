"""The page: what was collected, drawn and tabulated, put into its template."""

import tempfile
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from plotly.offline import get_plotlyjs

from projects.Pictures.pages import data_uri, template
from projects.Reports import charts, detections, kinds
from projects.Reports import text_tables as tables
from projects.Reports.collect import NEIGHBORS, NON_FINITE, ReportedRun
from revisit.data.images.opening import open_image
from revisit.errors import first_line
from revisit.progress import progress

ROOM = 2_000_000  # bytes for the pictures of each run; plotly's script takes 4.8 million
MOST_ROWS = 300  # of a table
MOST_PICTURES = 12  # of one evaluation
OPEN_EVALUATIONS = 6  # more of them are closed at first
WIDEST, TALLEST = 1200, 4000  # px
# Of a folder's own pictures, by how their names start.
KINDS = {NON_FINITE: (f"{NON_FINITE}/",), "views": ("views",), "neighbors": NEIGHBORS, "others": ("",)}


def render(runs: list[ReportedRun], pictures: list[tuple[str, Path]]) -> str:
    """The whole page as HTML, of what ``collect`` has found; bars on stderr where pictures take long."""
    evaluations = [(run, evaluation) for run in runs for evaluation in run.evaluations]
    with tempfile.TemporaryDirectory() as folder:
        reviews = detections.reviews_of(enumerate(progress("reviewing", "run", runs)), Path(folder))
        return template("Reports", "page.html").render(
            made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            runs=runs,
            charts=charts,
            charts_of=detections.lines_of,
            kinds=kinds,
            found=_by_kind(pictures),
            embed=Album(ROOM * len(runs)).embed,
            progress=progress,
            reviews=reviews,
            evaluations=evaluations,
            most_rows=MOST_ROWS,
            most_pictures=MOST_PICTURES,
            open_evaluations=len(evaluations) <= OPEN_EVALUATIONS,
            tables=tables,
            script=get_plotlyjs(),
        )


def _by_kind(pictures: list[tuple[str, Path]]) -> dict[str, list[tuple[Path, str]]]:
    """The folders' own pictures with their captions, by what their names say they show."""
    by_kind: dict[str, list[tuple[Path, str]]] = {kind: [] for kind in KINDS}
    for owner, path in pictures:
        name = f"{NON_FINITE}/{path.name}" if path.parent.name == NON_FINITE else path.name
        kind = next(kind for kind, starts in KINDS.items() if name.startswith(starts))
        by_kind[kind].append((path, f"{owner}: {name}"))
    return by_kind


class Thumbnail(NamedTuple):
    """A picture for an img element, or why there is none."""

    caption: str
    source: str = ""  # a data: URI
    width: int = 0  # px
    height: int = 0  # px
    problem: str = ""


class Album:
    """Embeds pictures as long as there is room on the page, in bytes."""

    def __init__(self, room: int):
        self._room = room

    def embed(self, path: Path, caption: str) -> Thumbnail:
        """A picture, downscaled; of an animation the frame in the middle."""
        try:
            with open_image(path) as image:
                frames = getattr(image, "n_frames", 1)
                if frames > 1:
                    image.seek(frames // 2)
                    caption = f"{caption}, frame {frames // 2 + 1} of {frames}"
                small = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
        except Exception as error:  # decoders raise whatever damaged bytes trip
            return Thumbnail(caption, problem=f"cannot be read: {first_line(error)}")
        small.thumbnail((WIDEST, TALLEST))
        encoded = data_uri(small)
        if len(encoded) > self._room:
            return Thumbnail(caption, problem="left out, to keep this page small")
        self._room -= len(encoded)
        return Thumbnail(caption, encoded, *small.size)
