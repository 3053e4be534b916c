"""Rows of a sheet to judge a finetuned model by eye: input, truth and prediction side by side, one row per image."""

from typing import NamedTuple

import cv2
import numpy as np
from matplotlib import colormaps

from projects.Pictures.tiles import PANEL, SheetRow, color_depth, fit
from revisit.data.sources.labels import VOID

from detectron2.utils.visualizer import Visualizer

PAINT, MASK_PAINT = 0.6, 0.4  # opacity of a class over the image, and of an object's mask
LABEL = 15  # px, height of a box's label


class Detections(NamedTuple):
    """Objects in an image; true ones have no scores."""

    boxes: np.ndarray  # (N, 4) float: x0, y0, x1, y1 in px
    classes: np.ndarray  # (N,) int
    scores: np.ndarray | None = None  # (N,) float
    masks: np.ndarray | None = None  # (N, H, W) bool


def segmentation_row(caption: str, image: np.ndarray, names: list[str], *maps: np.ndarray) -> SheetRow:
    """A row of an (H, W, 3) uint8 RGB image and of its classes, (H, W) ids, VOID for none: truth, then prediction."""
    colors = class_colors(names)
    legend = {
        int(c): ("void (unpainted)", (255, 255, 255)) if c == VOID else (names[c], tuple(colors[c].tolist()))
        for c in np.unique(np.stack(maps))
    }
    painted = (fit(paint_classes(image, labels, colors)) for labels in maps)
    return SheetRow([fit(image), *painted], [caption], legend)


def depth_row(caption: str, image: np.ndarray, truth: np.ndarray, *predicted: np.ndarray) -> SheetRow:
    """A row of an (H, W, 3) uint8 RGB image and of its depth, (H, W) metres, all on the scale of the truth's range.

    A truth of 0 is missing.
    """
    measured = truth[truth != 0]
    if not measured.size:
        measured = predicted[0] if predicted else np.zeros(1)
    low, high = float(measured.min()), float(measured.max())
    depth_range = low, max(high, low + 0.1)
    seen = color_depth(truth, depth_range)
    seen[truth == 0] = 0
    maps = [seen, *(color_depth(depth, depth_range) for depth in predicted)]
    return SheetRow([fit(image), *map(fit, maps)], [caption], depth_range=depth_range)


def class_colors(names: list[str]) -> np.ndarray:
    """(N, 3) uint8 RGB, the same for the same place in the list; a class called background is black."""
    pairs = np.array(colormaps["tab20"].colors).reshape(10, 2, 3)[[0, 1, 2, 3, 4, 5, 6, 8, 9]]  # without the greys
    palette = [*pairs[:, 0], *pairs[:, 1], *colormaps["tab20b"].colors, *colormaps["tab20c"].colors]
    colors = [(0, 0, 0) if name == "background" else palette[n % len(palette)] for n, name in enumerate(names)]
    return np.round(255 * np.array(colors)).astype(np.uint8).reshape(-1, 3)


def paint_classes(image: np.ndarray, labels: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 image with every pixel tinted in the (N, 3) colour of its class, VOID left as it is."""
    painted, classified = image.copy(), labels != VOID
    mixed = (1 - PAINT) * image[classified] + PAINT * colors[labels[classified]]
    painted[classified] = np.round(mixed).astype(np.uint8)
    return painted


def draw_objects(image: np.ndarray, objects: Detections, names: list[str], size: int = PANEL) -> np.ndarray:
    """The image, its longer side fitted to ``size`` px, with boxes, masks, names and scores.

    The label of the highest score is placed first.
    """
    colors = class_colors(names) / 255
    panel = fit(image, size)
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
