"""Rows of a sheet to judge a finetuned model by eye: input, truth and prediction side by side, one row per image."""

from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from projects.Pictures.fonts import font_of, own_font
from projects.Pictures.tiles import BLACK, PANEL, SheetRow, color_depth, fit, outline
from revisit.boxes.boxes import Boxes
from revisit.data.sources.labels import VOID
from revisit.errors import printable

if TYPE_CHECKING:
    from matplotlib.text import Text

PAINT, MASK_PAINT = 0.6, 0.4  # opacity of a class over the image, and of an object's mask
LABEL, LETTER = 15, 6.4  # px: height of a box's label, and the width of a letter in it
GREYS = 7  # their place among the ten pairs of tab20
STRONG, THIN = 4, 2  # of OpenCV, which draws a px more
# Okabe and Ito's, which colour-blind people tell apart: the best boxes in those that differ most, and their lines.
RANKS = (
    ((240, 228, 66), STRONG),
    ((86, 180, 233), STRONG),
    ((213, 94, 0), STRONG),
    ((0, 158, 115), THIN),
    ((204, 121, 167), THIN),
    ((230, 159, 0), THIN),
    ((0, 114, 178), THIN),
    ((255, 255, 255), THIN),
)


def segmentation_row(caption: str, image: np.ndarray, names: list[str], *maps: np.ndarray) -> SheetRow:
    """A row of an (H, W, 3) uint8 RGB image and of its classes, (H, W) ids, VOID for none: truth, then prediction."""
    colors = class_colors(names)
    legend = {}
    for c in np.unique(np.stack(maps)).tolist():
        if c == VOID:
            legend[c] = ("void (unpainted)", (255, 255, 255))
        else:
            legend[c] = (names[c], tuple(colors[c].tolist()))
    painted = [paint_classes(image, labels, colors) for labels in maps]
    tiles = [fit(picture) for picture in (image, *painted)]
    return SheetRow(tiles, [caption], legend)


def depth_row(caption: str, image: np.ndarray, truth: np.ndarray, *predicted: np.ndarray) -> SheetRow:
    """A row of an (H, W, 3) uint8 RGB image and of its depth, (H, W) metres, all on the scale of the truth's range.

    A truth of 0 is missing.
    """
    measured = truth[truth != 0]
    if not measured.size:
        measured = predicted[0] if predicted else np.zeros(1)
    low = float(measured.min())
    high = float(measured.max())
    depth_range = low, max(high, low + 0.1)
    seen = color_depth(truth, depth_range)
    seen[truth == 0] = 0
    coloured = [color_depth(depth, depth_range) for depth in predicted]
    tiles = [fit(picture) for picture in (image, seen, *coloured)]
    return SheetRow(tiles, [caption], depth_range=depth_range)


def class_colors(names: list[str]) -> np.ndarray:
    """(N, 3) uint8 RGB, the same for the same place in the list; a class called background is black."""
    from matplotlib import colormaps  # not at start-up

    pairs = np.array(colormaps["tab20"].colors).reshape(10, 2, 3)
    strong, pale = np.delete(pairs, GREYS, axis=0).swapaxes(0, 1)
    palette = [*strong, *pale, *colormaps["tab20b"].colors, *colormaps["tab20c"].colors]
    colors = []
    for n, name in enumerate(names):
        color = (0, 0, 0) if name == "background" else palette[n % len(palette)]
        colors.append(color)
    in_bytes = np.round(255 * np.array(colors)).astype(np.uint8)
    return in_bytes.reshape(-1, 3)


def paint_classes(image: np.ndarray, labels: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 image with every pixel tinted in the (N, 3) colour of its class, VOID left as it is."""
    painted = image.copy()
    classified = labels != VOID
    paint = colors[labels[classified]]
    mixed = (1 - PAINT) * image[classified] + PAINT * paint
    painted[classified] = np.round(mixed).astype(np.uint8)
    return painted


def draw_objects(image: np.ndarray, objects: Boxes, names: list[str], size: int = PANEL) -> np.ndarray:
    """The image, its longer side fitted to ``size`` px, with boxes, masks, names and scores, each class in its colour.

    The label of the highest score is placed first.
    """
    return draw_marked(image, objects, texts_of(objects, names), class_colors(names)[objects.classes], size)


def draw_ranked(image: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The image, its longer side fitted to PANEL px, with outlines of (N, 4) xyxy boxes, best first.

    As many are drawn as RANKS has colours, the worst first, so that no line hides that of a better box.
    """
    panel = fit(image).copy()
    height, width = panel.shape[:2]
    last = np.array([width, height] * 2) - 1
    places = boxes * (width / image.shape[1])
    for box, (color, line) in reversed(list(zip(places, RANKS, strict=False))):
        inside = box.clip(line, last - line)
        outline(panel, inside, BLACK, line + line // 2)
        outline(panel, inside, color, line)
    return panel


def texts_of(objects: Boxes, names: list[str]) -> list[str]:
    """The label of each object: its class, and its score where it has one."""
    texts = [names[number] for number in objects.classes]
    if objects.scores is None:
        return texts
    return [f"{text} {score:.2f}" for text, score in zip(texts, objects.scores, strict=True)]


def draw_marked(
    image: np.ndarray, objects: Boxes, texts: list[str], colors: np.ndarray, size: int = PANEL
) -> np.ndarray:
    """As ``draw_objects``, each object with its text, of which "" has no label, and its colour, (N, 3) of 0..255."""
    from detectron2.utils.visualizer import Visualizer  # which imports matplotlib: not at start-up

    panel = fit(image, size)
    height, width = panel.shape[:2]
    canvas = Visualizer(panel)
    boxes = objects.xyxy * (width / image.shape[1])
    taken: list[_Place] = []
    for n in objects.best_first():
        color = colors[n] / 255
        if objects.masks is not None:
            mask = objects.masks[n].astype(np.uint8)
            mask = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST)
            canvas.draw_binary_mask(mask, color=tuple(color), alpha=MASK_PAINT)
        canvas.draw_box(boxes[n], alpha=0.9, edge_color=tuple(color))
        if not texts[n]:
            continue
        text = shortened(printable(texts[n]), width)
        place = _label_place(boxes[n], len(text), taken, height, width)
        taken.append(place)
        lighter = tuple((1 + color) / 2)
        text = text.replace("$", "\\$")  # a pair of which matplotlib takes for a formula
        canvas.draw_text(text, (place.left, place.top), font_size=8, color=lighter, horizontal_alignment="left")
        _use_font(canvas.output.ax.texts[-1], font_of(text))
    if not len(boxes):
        canvas.draw_text("no box", (width / 2, height / 2), font_size=10, color="white")
    return canvas.get_output().get_image()


def _use_font(text: "Text", font: str) -> None:
    """Of another file than matplotlib's own, which text has already."""
    from matplotlib.font_manager import FontProperties

    if font != own_font():
        text.set_fontproperties(FontProperties(fname=font, size=text.get_fontsize()))


def shortened(text: str, width: int) -> str:
    """A label that fits into an image of so many px, with its last word, a score, where there is one."""
    most = max(2, int((width - 4) / LETTER))
    if len(text) <= most:
        return text
    _, _, last = text.rpartition(" ")
    end = f"… {last}" if len(last) + 4 <= most and last != text else "…"
    return f"{text[: most - len(end)]}{end}"


class _Place(NamedTuple):
    """Where a label lies, px."""

    left: float
    right: float
    top: float

    def overlaps(self, other: "_Place") -> bool:
        same_rows = abs(self.top - other.top) < LABEL
        same_columns = self.left < other.right and self.right > other.left
        return same_rows and same_columns


def _label_place(box: np.ndarray, letters: int, taken: list[_Place], height: int, width: int) -> _Place:
    """At the top of its box, inside the image, and lower where others are."""
    size = min(LETTER * letters, width - 4)
    left = min(max(box[0], 2), width - 2 - size)
    lowest = height - LABEL
    highest = min(max(box[1], 2), lowest)
    tops = np.arange(highest, lowest + 1, LABEL)
    places = [_Place(left, left + size, top) for top in tops]
    for place in places:
        if not any(map(place.overlaps, taken)):
            return place
    return places[0]
