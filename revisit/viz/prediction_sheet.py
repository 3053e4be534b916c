"""Sheets of pictures to judge a finetuned model by eye: input, truth and prediction side by side, one row an image."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from revisit.data.labels import VOID
from revisit.viz.curves import headless_pyplot

from detectron2.utils.visualizer import Visualizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAINT, MASK_PAINT = 0.6, 0.4  # opacity of a class over the image, and of an object's mask
PANEL = 420  # px, the longer side of an image on a sheet
NARROWEST = 240  # px, of a column, which a title must fit
GAP, LINE, MARGIN = 10, 20, 16  # px: between panels, a line of text, around the sheet
LABEL = 15  # px, height of a box's label
BAR_WIDTH, BAR_ROOM = 14, 76  # px, of the colour bar of depth, without and with its numbers
DPI = 100
GREY = "0.35"
DEPTH_COLORS = "plasma"  # has no black, which means: missing

Color = tuple[int, int, int]


class Detections(NamedTuple):
    """Objects in an image; true ones have no scores."""

    boxes: np.ndarray  # (N, 4) float: x0, y0, x1, y1 in px
    classes: np.ndarray  # (N,) int
    scores: np.ndarray | None = None  # (N,) float
    masks: np.ndarray | None = None  # (N, H, W) bool


class Row(NamedTuple):
    """One image on a sheet."""

    caption: str
    panels: list[np.ndarray]  # input, truth and perhaps prediction; (h, w, 3) uint8 RGB, all of one size
    legend: dict[int, tuple[str, Color]] = {}  # name and RGB colour of the classes that occur, by id
    depth_range: tuple[float, float] | None = None  # metres at the two ends of the colour bar


def detection_row(
    caption: str, image: np.ndarray, names: list[str], truth: Detections, prediction: Detections | None = None
) -> Row:
    """A row of an (H, W, 3) uint8 RGB image and of its objects, in their classes' colours."""
    found = [truth] if prediction is None else [truth, prediction]
    return Row(caption, [fit(image), *(draw_objects(image, objects, names) for objects in found)])


def segmentation_row(
    caption: str,
    image: np.ndarray,
    names: list[str],
    colors: np.ndarray,
    truth: np.ndarray,
    prediction: np.ndarray | None = None,
) -> Row:
    """A row of an (H, W, 3) uint8 RGB image and of its classes.

    Args:
        colors: (N, 3) uint8 RGB, one for each of ``names``.
        truth, prediction: (H, W) ids, VOID where a pixel has no class.
    """
    maps = [truth] if prediction is None else [truth, prediction]
    legend = {
        int(c): ("void (unpainted)", (255, 255, 255)) if c == VOID else (names[c], tuple(colors[c].tolist()))
        for c in np.unique(np.stack(maps))
    }
    return Row(caption, [fit(image), *(fit(paint_classes(image, labels, colors)) for labels in maps)], legend)


def depth_row(caption: str, image: np.ndarray, truth: np.ndarray, prediction: np.ndarray | None = None) -> Row:
    """A row of an (H, W, 3) uint8 RGB image and of its depth, (H, W) metres, both on the scale of the truth's range.

    A truth of 0 is missing.
    """
    known = truth[truth != 0]
    if not known.size:
        known = np.zeros(1) if prediction is None else prediction
    low, high = float(known.min()), float(known.max())
    depth_range = low, max(high, low + 0.1)
    panels = [fit(image), fit(color_depth(truth, depth_range, missing=truth == 0))]
    if prediction is not None:
        panels.append(fit(color_depth(prediction, depth_range)))
    return Row(caption, panels, depth_range=depth_range)


def class_colors(names: list[str]) -> np.ndarray:
    """(N, 3) uint8 RGB, the same for the same place in the list; a class called background is black."""
    from matplotlib import colormaps

    pairs = np.array(colormaps["tab20"].colors).reshape(10, 2, 3)[[0, 1, 2, 3, 4, 5, 6, 8, 9]]  # without the greys
    palette = [*pairs[:, 0], *pairs[:, 1], *colormaps["tab20b"].colors, *colormaps["tab20c"].colors]
    colors = [(0, 0, 0) if name == "background" else palette[n % len(palette)] for n, name in enumerate(names)]
    return np.round(255 * np.array(colors)).astype(np.uint8).reshape(-1, 3)


def fit(image: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 image with its longer side PANEL px."""
    scale = PANEL / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def paint_classes(image: np.ndarray, labels: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 image with every pixel tinted in the colour of its class, VOID left as it is."""
    painted, classified = image.copy(), labels != VOID
    mixed = (1 - PAINT) * image[classified] + PAINT * colors[labels[classified]]
    painted[classified] = np.round(mixed).astype(np.uint8)
    return painted


def color_depth(depth: np.ndarray, depth_range: tuple[float, float], missing: np.ndarray | None = None) -> np.ndarray:
    """(H, W) metres -> (H, W, 3) uint8 RGB: blue at the near end, yellow at the far end and beyond, missing black."""
    from matplotlib import colormaps

    low, high = depth_range
    colored = colormaps[DEPTH_COLORS](np.clip((depth - low) / (high - low), 0, 1), bytes=True)[..., :3].copy()
    if missing is not None:
        colored[missing] = 0
    return colored


def draw_objects(image: np.ndarray, objects: Detections, names: list[str]) -> np.ndarray:
    """The fitted image with boxes, masks, names and scores; the surest label has the first choice of place."""
    colors = class_colors(names) / 255
    panel = fit(image)
    height, width = panel.shape[:2]
    canvas = Visualizer(panel)
    boxes = objects.boxes * (width / image.shape[1])
    labels: list[tuple[float, float, float]] = []  # left, right and top of those that are drawn
    for n in range(len(boxes)) if objects.scores is None else np.argsort(-objects.scores, kind="stable"):
        name, color = names[objects.classes[n]], colors[objects.classes[n]]
        text = name if objects.scores is None else f"{name} {objects.scores[n]:.2f}"
        if objects.masks is not None:
            mask = cv2.resize(objects.masks[n].astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
            canvas.draw_binary_mask(mask, color=tuple(color), alpha=MASK_PAINT)
        canvas.draw_box(boxes[n], alpha=0.9, edge_color=tuple(color))
        left, right, top = _label_place(boxes[n], len(text), labels, height, width)
        labels.append((left, right, top))
        canvas.draw_text(text, (left, top), font_size=8, color=tuple((1 + color) / 2), horizontal_alignment="left")
    if not len(boxes):
        canvas.draw_text("no box", (width / 2, height / 2), font_size=10, color="white")
    return canvas.get_output().get_image()


def _label_place(
    box: np.ndarray, letters: int, taken: list[tuple[float, float, float]], height: int, width: int
) -> tuple[float, float, float]:
    """Left, right and top of a label: at the top of its box, inside the image, and lower where others are."""
    size = min(6.4 * letters, width - 4)
    left = min(max(box[0], 2), width - 2 - size)
    tops = np.arange(min(max(box[1], 2), height - LABEL), height - LABEL + 1, LABEL)
    free = (y for y in tops if all(abs(y - t) >= LABEL or left >= r or left + size <= x for x, r, t in taken))
    return left, left + size, next(free, tops[0])


class _Layout(NamedTuple):
    """Places on a sheet, in px from its upper left corner."""

    width: int
    height: int
    column: int  # width
    lefts: list[int]  # of the columns
    tops: list[int]  # of the rows, then of the legend
    entries_per_line: int  # of the legend


def save_sheet(path: Path, rows: list[Row], headers: list[str], title: str, subtitle: str = "") -> None:
    """Write a PNG: the rows under their columns' headers, then the legend of the classes that occur in any of them."""
    plt = headless_pyplot()
    legend = sorted({c: entry for row in rows for c, entry in row.legend.items()}.items())
    layout = _lay_out(rows, len(headers), [name for _, (name, _) in legend])
    width, height = layout.width, layout.height
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(_paste(rows, layout), extent=(0, width, height, 0), interpolation="nearest", aspect="auto")
    axes.axis("off")

    room = width - 2 * MARGIN
    _write(axes, (MARGIN, MARGIN), title, room, va="top", fontsize=12, weight="bold")
    _write(axes, (MARGIN, MARGIN + LINE + 4), subtitle, room, va="top", fontsize=9, color=GREY)
    for left, header in zip(layout.lefts, headers, strict=True):
        axes.text(left + layout.column / 2, layout.tops[0] - 5, header, ha="center", va="bottom", fontsize=10)
    for row, top in zip(rows, layout.tops, strict=False):
        bottom = top + row.panels[0].shape[0]
        _write(axes, (MARGIN, bottom + 4), row.caption, room, va="top", fontsize=8, color=GREY)
        if row.depth_range:
            place = (layout.lefts[-1] + layout.column + GAP) / width, 1 - bottom / height
            size = BAR_WIDTH / width, (bottom - top) / height
            scale = plt.cm.ScalarMappable(plt.Normalize(*row.depth_range), DEPTH_COLORS)
            bar = figure.colorbar(scale, cax=figure.add_axes((*place, *size)))
            bar.ax.tick_params(labelsize=8)
            bar.ax.set_ylabel("metres", fontsize=8)
    for n, (_, (name, color)) in enumerate(legend):
        line, place = divmod(n, layout.entries_per_line)
        entry = room // layout.entries_per_line
        x, y = MARGIN + place * entry, layout.tops[-1] + line * LINE
        swatch = plt.Rectangle((x, y), 18, 13, facecolor=np.array(color) / 255, edgecolor=GREY, linewidth=0.6)
        axes.add_patch(swatch)
        _write(axes, (x + 24, y + 6.5), name, entry - 30, va="center", fontsize=9)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _lay_out(rows: list[Row], num_columns: int, legend: list[str]) -> _Layout:
    column = max(NARROWEST, *(row.panels[0].shape[1] for row in rows))
    lefts = [MARGIN + n * (column + GAP) for n in range(num_columns)]
    width = lefts[-1] + column + MARGIN + (BAR_ROOM if any(row.depth_range for row in rows) else 0)
    tops = np.cumsum([MARGIN + 3 * LINE + 4, *(row.panels[0].shape[0] + LINE + GAP for row in rows)]).tolist()
    per_line = max(1, (width - 2 * MARGIN) // max([60, *(34 + 8 * len(name) for name in legend)]))
    height = tops[-1] + LINE * math.ceil(len(legend) / per_line) + MARGIN
    return _Layout(width, height, column, lefts, tops, per_line)


def _paste(rows: list[Row], layout: _Layout) -> np.ndarray:
    """The sheet without its text, (height, width, 3) uint8; panels in the middle of their columns."""
    page = np.full((layout.height, layout.width, 3), 255, np.uint8)
    for row, top in zip(rows, layout.tops, strict=False):
        for left, panel in zip(layout.lefts, row.panels, strict=True):
            height, width = panel.shape[:2]
            start = left + (layout.column - width) // 2
            page[top : top + height, start : start + width] = panel
    return page


def _write(axes: Axes, place: tuple[float, float], text: str, room: float, **style: object) -> None:
    """Write a line; of one wider than ``room`` px only the end: of a path, what tells it from others."""
    line = axes.text(*place, text, **style)
    while line.get_window_extent().width > room:
        text = text[1 + len(text) // 50 :]
        line.set_text(f"…{text}")
