"""What a detector's run shows after its evaluation: predictions next to truth, per class, the worst images first."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from projects.Pictures.prediction_sheet import draw_marked, texts_of
from projects.Pictures.tiles import Color, SheetRow, save_sheet
from projects.Reports import charts
from projects.Reports.collect import ReportedRun, files_below
from projects.Reports.matching import Curve, JudgedImage, best_threshold, confusion, curve, judge
from projects.Reports.text_tables import ABSENT, TextTable
from revisit.boxes.boxes import Boxes
from revisit.boxes.predictions_file import OF_PREDICTIONS, PREDICTIONS, evaluated_set, read_results
from revisit.data.images.deep_images import format_of
from revisit.data.images.image_bytes import WINDOW
from revisit.data.images.pixel_format import PixelFormat
from revisit.data.images.reader import part_in_words, picture_of
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import sample
from revisit.errors import UserError, first_line, printable, translated

# Colours that people who see no red or no green tell apart, too (Okabe and Ito).
FOUND, MISSED, WRONG = (0, 158, 115), (86, 180, 233), (213, 94, 0)
COLORS: dict[str, Color] = {"found": FOUND, "missed": MISSED, "wrong": WRONG}
WORST, SPREAD = 6, 4  # images that are drawn
LARGE, SIDE = 4000, 1024  # px of a side, above which windows are drawn, each of so many px
MOST_NAMED = 12  # objects of an image, beyond which those that were found have no label
MOST_CLASSES = 20  # of a table of confusions, and of curves


class Review(NamedTuple):
    """Of one run."""

    data_set: str
    problem: str = ""  # in words, why there is nothing else
    count: int = 0  # images
    threshold: float = 0.0  # score
    classes: TextTable | None = None
    confusion: TextTable | None = None
    curves: Sequence[tuple[str, Curve]] = ()  # by class
    pictures: Sequence[tuple[Path, str]] = ()  # with captions


def review_of(run: ReportedRun, folder: Path) -> Review | None:
    """What the predictions of a run's last evaluation are worth; None of a run without any.

    Args:
        folder: for the pictures.
    """
    files = files_below(run.folder, PREDICTIONS, OF_PREDICTIONS, of=run.folder)
    if len(files) < 2:
        return None
    name = "its test set"
    try:
        with translated("reading inference/", content=True):
            scored = evaluated_set(run.folder / OF_PREDICTIONS)
            name, names = scored.name, list(scored.classes.values())
            records = get_records(name, class_names=names)
            if scored.changed_labels(records):
                name += ", whose labels have changed since the run was evaluated"
            found = read_results(run.folder / PREDICTIONS, [record["image_id"] for record in records], scored.classes)
        images = list(map(judge, records, found))
        return _review(images, name, names, format_of(run.config, records), folder)
    except UserError as error:
        return Review(name, problem=first_line(error))


def _review(images: list[JudgedImage], name: str, names: list[str], pixels: PixelFormat, folder: Path) -> Review:
    threshold = best_threshold(images)
    table = confusion(images, threshold, len(names))
    curves = {n: found for n in range(len(names)) if (found := curve(images, n))}
    return Review(
        name,
        count=len(images),
        threshold=threshold,
        classes=_of_classes(table, names, curves),
        confusion=_of_confusion(table, names) if 1 < len(names) <= MOST_CLASSES else None,
        curves=[(names[n], found) for n, found in list(curves.items())[:MOST_CLASSES]],
        pictures=_draw(images, names, threshold, pixels, folder),
    )


def reviews_of(runs: Iterable[tuple[int, ReportedRun]], folder: Path) -> list[tuple[int, ReportedRun, Review]]:
    """A review of each run that has predictions, with the run and its number. Whose images are in the page is printed,
    because a run of others names them."""
    reviews = [(number, run, review_of(run, folder)) for number, run in runs]
    for _, run, review in reviews:
        if review and review.pictures:
            print(printable(f"{run.name}: the page shows images of {review.data_set}"), flush=True)
    return [(number, run, review) for number, run, review in reviews if review]


def lines_of(curves: Sequence[tuple[str, Curve]]) -> list[dict]:
    """Plotly's traces of precision over recall, both in percent."""
    lines = []
    for number, (name, found) in enumerate(curves):
        points = charts.thinned([(100 * x, 100 * y) for x, y in zip(found.recall, found.precision, strict=True)])
        x, y = zip(*points, strict=True) if points else ((), ())
        line = {**charts.line_of(number), "width": 1.8}
        lines.append({"x": x, "y": y, "name": charts.escaped(name), "mode": "lines", "line": line})
    return lines


def _of_classes(table: np.ndarray, names: list[str], curves: dict[int, Curve]) -> TextTable:
    """Counts and shares of each class at the threshold, and its AP at any."""
    found, true, predicted = table.diagonal(), table.sum(axis=1), table.sum(axis=0)
    headers = ["class", "true boxes", "found", "missed", "wrong", "recall, %", "precision, %", "AP50, %"]
    rows = []
    for n, name in enumerate(names):
        shares = [_percent(found[n] / total) if total else ABSENT for total in (true[n], predicted[n])]
        precision = _percent(curves[n].average_precision()) if n in curves else ABSENT
        counts = (true[n], found[n], true[n] - found[n], predicted[n] - found[n])
        rows.append([name, *map(str, counts), *shares, precision])
    return TextTable("By class", headers, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _of_confusion(table: np.ndarray, names: list[str]) -> TextTable:
    rows = [[name, *map(str, counts)] for name, counts in zip([*names, "nothing there"], table.tolist(), strict=True)]
    rows[-1][-1] = ABSENT
    return TextTable("Confusion matrix: truth in rows, predictions in columns", ["", *names, "nothing"], rows)


class Look(NamedTuple):
    """An image to draw, or a window of a scan that is too large to be seen at once."""

    image: JudgedImage
    errors: int  # boxes
    found: int
    window: Sequence[int] = ()  # left, top, right, bottom, px; (): all of it


def looks_of(image: JudgedImage, threshold: float) -> list[Look]:
    """The image, or all windows of one of more than LARGE px a side, row by row: a box is counted where its centre
    is."""
    height, width = (image.record.get(side, 0) for side in ("height", "width"))
    missed = image.missed(threshold)
    if max(height, width) <= LARGE:
        return [Look(image, image.errors(threshold), int((~missed).sum()))]
    columns, rows = -(-width // SIDE), -(-height // SIDE)
    hits = image.truth.xyxy[~missed]
    errors = np.concatenate([image.truth.xyxy[missed], image.predicted.xyxy[image.wrong(threshold)]])

    def counts(xyxy: np.ndarray) -> np.ndarray:
        cells = ((xyxy[:, :2] + xyxy[:, 2:]) / 2 // SIDE).clip(0, (columns - 1, rows - 1)).astype(int)
        return np.bincount(cells @ (1, columns), minlength=rows * columns)

    corners = [(left, top) for top in range(0, height, SIDE) for left in range(0, width, SIDE)]
    windows = [(left, top, min(left + SIDE, width), min(top + SIDE, height)) for left, top in corners]
    return list(map(partial(Look, image), counts(errors).tolist(), counts(hits).tolist(), windows))


def _draw(
    images: list[JudgedImage], names: list[str], threshold: float, pixels: PixelFormat, folder: Path
) -> list[tuple[Path, str]]:
    """The images with most errors, of windows those with most found, and some that are spread over the rest."""
    looks = [look for image in images for look in looks_of(image, threshold)]
    ranked = sorted(looks, key=lambda look: -look.errors)
    worst, rest = ranked[:WORST], ranked[WORST:]
    best = sorted((look for look in rest if look.window and look.found), key=lambda look: -look.found)[:SPREAD]
    groups = (
        ("worst", "most errors first", worst),
        ("best", "most found first", best),
        ("others", "others, from more errors to fewer", sample(rest, SPREAD)),
    )
    pictures = []
    for group, caption, chosen in groups:
        if chosen:
            path = folder / f"{len(list(folder.iterdir()))}_{group}.png"
            rows = [_row(look, names, threshold, pixels) for look in chosen]
            headers = ["truth", f"predicted, scores of at least {threshold:.2f}"]
            save_sheet(path, rows, headers, subtitle=pixels.caption(""))
            pictures.append((path, caption))
    return pictures


def _row(look: Look, names: list[str], threshold: float, pixels: PixelFormat) -> SheetRow:
    """Truth, found or missed, next to the predictions from the threshold on, found or wrong."""
    image, window = look.image, look.window
    record = {**image.record, WINDOW: window} if window else dict(image.record)
    picture = picture_of(record, pixels, like_pil=True)
    missed, wrong = image.missed(threshold), image.wrong(threshold)
    there, shown = _reach_into(window, image.truth), _reach_into(window, image.predicted)
    shown &= image.predicted.scores >= threshold
    tiles = [
        _tile(picture, _moved(image.truth[there], window), names, missed[there], MISSED),
        _tile(picture, _moved(image.predicted[shown], window), names, wrong[shown], WRONG),
    ]
    name = part_in_words(record | {"file_name": Path(record["file_name"]).name})
    caption = f"{name}: {(~missed[there]).sum()} found, {missed[there].sum()} missed, {wrong[shown].sum()} wrong"
    return SheetRow(tiles, [caption], dict(enumerate(COLORS.items())))


def _reach_into(window: Sequence[int], objects: Boxes) -> np.ndarray:
    """(N,) bool, of a window, or of all of an image."""
    left, top, right, bottom = window or (-np.inf, -np.inf, np.inf, np.inf)
    return ((objects.xyxy[:, :2] < (right, bottom)) & (objects.xyxy[:, 2:] > (left, top))).all(axis=1)


def _moved(objects: Boxes, window: Sequence[int]) -> Boxes:
    """With boxes in px of a window, in which they end."""
    if not window:
        return objects
    left, top, right, bottom = window
    xyxy = objects.xyxy.clip((left, top) * 2, (right, bottom) * 2) - (left, top) * 2
    return replace(objects, xyxy=xyxy)


def _tile(picture: np.ndarray, objects: Boxes, names: list[str], is_error: np.ndarray, color: Color) -> np.ndarray:
    """Objects in the colour of what was found, or of the error; of many only errors have a label."""
    texts = texts_of(objects, names)
    if len(texts) > MOST_NAMED:
        texts = [text if error else "" for text, error in zip(texts, is_error, strict=True)]
    colors = np.where(is_error[:, None], color, FOUND)
    return draw_marked(picture, objects, texts, colors)
