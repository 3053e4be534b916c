"""DAVIS: its videos, JPEGImages/480p/NAME/00000.jpg and Annotations/480p/NAME/00000.png, and its scores J and F.

The scores (Perazzi et al., 2016; projects/FrozenEvaluations/propagation.md: Protocol) are means over objects, not
over sequences; the first frame, which is given, and the last one do not count.
"""

import re
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from projects.Pictures.label_maps import voc_colours
from projects.Pictures.tiles import fit
from revisit.data.sources.labels import VOID, check_size, read_labels
from revisit.data.sources.split_files import read_split
from revisit.errors import expect
from revisit.files import write_whole, written_whole
from revisit.markdown import csv_table

OPACITY = 0.6  # of an object over the frame
LEAST_FRAMES = 3  # the first is given and the last does not count
BOUNDARY_SHARE = 0.008  # of the image's diagonal: how far apart two boundaries may be and still agree
GLOBAL_COLUMNS = ("J&F-Mean", "J-Mean", "J-Recall", "J-Decay", "F-Mean", "F-Recall", "F-Decay")


class Sequence(NamedTuple):
    """A video: frames and masks of the same names, in order."""

    name: str
    frames: list[Path]
    masks: list[Path]


def find_sequences(root: Path, resolution: str, split: str, names: tuple[str, ...] = ()) -> list[Sequence]:
    """The videos ``names``, or those of ImageSets/2017/SPLIT.txt. Raises UserError where a file is missing."""
    split_file = root / "ImageSets" / "2017" / f"{split}.txt"
    sequences = []
    for name in names or read_split(split_file):
        frames_folder = root / "JPEGImages" / resolution / name
        masks_folder = root / "Annotations" / resolution / name
        frames = sorted(frames_folder.glob("*.jpg"), key=in_order)
        masks = sorted(masks_folder.glob("*.png"), key=in_order)
        expect(
            len(frames) >= LEAST_FRAMES,
            f"{frames_folder} has {len(frames)} frames (*.jpg): expected {LEAST_FRAMES} or more",
        )
        of_frames = {path.stem for path in frames}
        of_masks = {path.stem for path in masks}
        lone = sorted(of_frames ^ of_masks)
        expect(not lone, f"only one of {frames_folder} and {masks_folder} has {', '.join(lone)}: expected both")
        sequences.append(Sequence(name, frames, masks))
    return sequences


def in_order(path: Path) -> tuple[list[str | int], str]:
    """A key to sort frames, or their masks, by: the text and the numbers of their names in turn, with leading zeros or
    without."""
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], path.stem


def read_masks(sequence: Sequence, size: tuple[int, int]) -> np.ndarray:
    """(T, H, W) uint8 ids of objects, 0 where there is none, VOID where the truth is unknown; ``size`` is (H, W).

    Masks of one object are stored as 0 and 255 in DAVIS 2016: where 255 is the first mask's only id, it is object 1.
    """
    stack = np.empty((len(sequence.masks), *size), np.uint8)
    pairs = zip(sequence.masks, sequence.frames, strict=True)
    for number, (mask_file, frame_file) in enumerate(pairs):
        mask = read_labels(mask_file, VOID)  # the palette's ids, VOID aside
        check_size(mask_file, mask, frame_file, size)
        stack[number] = mask
    first = stack[0]
    if is_white(first):
        stack[stack == VOID] = 1
    objects = np.setdiff1d(first, (0, VOID)).tolist()
    expect(
        objects and objects == list(range(1, len(objects) + 1)),
        f"{sequence.masks[0]} has the objects {objects}: expected 1, 2, ... without a gap",
    )
    return stack


def is_white(mask: np.ndarray) -> bool:
    """Whether VOID is the only id of an (H, W) mask, which means one object there."""
    return np.setdiff1d(mask, 0).tolist() == [VOID]


def paint_objects(frame: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 RGB frame with each object of the (H, W) ids in its colour, PANEL px on its longer side."""
    colours = voc_colours()[ids]
    painted = cv2.addWeighted(frame, 1 - OPACITY, colours, OPACITY, 0)
    is_object = ids[..., None] > 0
    return fit(np.where(is_object, painted, frame))


def save_animation(path: Path, pictures: list[np.ndarray], frames_per_second: float) -> None:
    """Write (h, w, 3) uint8 RGB pictures of one size as an endless GIF."""
    images = map(Image.fromarray, pictures)
    first, *rest = (image.quantize(method=Image.Quantize.FASTOCTREE) for image in images)
    milliseconds = round(1000 / frames_per_second)
    with written_whole(path) as temporary:
        first.save(temporary, format="GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)


def region_similarity(mask: np.ndarray, truth: np.ndarray) -> float:
    """J: intersection over union of two (H, W) bool masks, in [0, 1]; 1 if both are empty."""
    union = np.count_nonzero(mask | truth)
    intersection = np.count_nonzero(mask & truth)
    return intersection / union if union else 1.0


def boundary_accuracy(mask: np.ndarray, truth: np.ndarray) -> float:
    """F: harmonic mean of precision and recall of the boundary of two (H, W) bool masks, in [0, 1].

    A boundary pixel is right if the other mask has one within ``ceil(0.008 * diagonal)`` px of it.
    """
    drawn = boundary(mask)
    true = boundary(truth)
    num_drawn = np.count_nonzero(drawn)
    num_true = np.count_nonzero(true)
    if not num_drawn or not num_true:
        return float(num_drawn == num_true)
    diagonal = np.hypot(*mask.shape)
    reach = int(np.ceil(BOUNDARY_SHARE * diagonal))
    right = drawn & _grow(true, reach)
    reached = true & _grow(drawn, reach)
    precision = np.count_nonzero(right) / num_drawn
    recall = np.count_nonzero(reached) / num_true
    both = precision + recall
    return 2 * precision * recall / both if both else 0.0


def boundary(mask: np.ndarray) -> np.ndarray:
    """Pixels of an (H, W) bool mask that differ from their right, lower or lower right neighbour inside the image."""
    around = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    right = around[:-1, 1:]
    lower = around[1:, :-1]
    lower_right = around[1:, 1:]
    return (mask != right) | (mask != lower) | (mask != lower_right)


def _grow(mask: np.ndarray, radius: int) -> np.ndarray:
    """Pixels at most ``radius`` px from a pixel of the (H, W) bool mask."""
    steps = np.arange(-radius, radius + 1)
    squared_distance = steps[:, None] ** 2 + steps**2
    disk = squared_distance <= radius**2
    grown = cv2.dilate(mask.astype(np.uint8), disk.astype(np.uint8))
    return grown.astype(bool)


class ObjectScore(NamedTuple):
    """One object of one sequence: J and F of each frame that counts, (T - 2,) float64 in [0, 1]."""

    sequence: str
    number: int  # the object's id in the masks, from 1
    region: np.ndarray
    boundary: np.ndarray


def score_sequence(sequence: str, masks: np.ndarray, truth: np.ndarray) -> list[ObjectScore]:
    """J and F of every object of the truth's first frame, of (T, H, W) uint8 ids; the truth's VOID does not count."""
    valid = truth != VOID
    num_objects = int(truth[0][valid[0]].max())
    scores = []
    for number in range(1, num_objects + 1):
        predicted = (masks == number) & valid
        wanted = truth == number
        pairs = list(zip(predicted[1:-1], wanted[1:-1], strict=True))  # the first and the last frame do not count
        region = np.array([region_similarity(*pair) for pair in pairs])
        contour = np.array([boundary_accuracy(*pair) for pair in pairs])
        scores.append(ObjectScore(sequence, number, region, contour))
    return scores


def statistics(values: np.ndarray) -> tuple[float, float, float]:
    """(mean, recall, decay) of an object's scores over frames, (T,) in [0, 1].

    Recall is the share of frames above 0.5; decay is the mean of the first quarter less that of the last, whose
    ends are round(linspace(1, T, 5)), both included. (The official tool's uint8 bins wrap beyond 256 frames.)
    """
    quarters = np.linspace(1, len(values), 5)
    ends = np.round(quarters + 1e-10).astype(int)
    first_quarter = values[ends[0] - 1 : ends[1]]
    last_quarter = values[ends[3] - 1 : ends[4]]
    recall = (values > 0.5).mean()
    decay = first_quarter.mean() - last_quarter.mean()
    return float(values.mean()), float(recall), float(decay)


def summarize(scores: list[ObjectScore]) -> dict[str, float]:
    """GLOBAL_COLUMNS, each in [0, 1] (decay in [-1, 1]), over all objects of all sequences."""
    of_regions = [statistics(score.region) for score in scores]
    of_boundaries = [statistics(score.boundary) for score in scores]
    regions = np.mean(of_regions, axis=0).tolist()
    boundaries = np.mean(of_boundaries, axis=0).tolist()
    mean_of_both = (regions[0] + boundaries[0]) / 2
    values = (mean_of_both, *regions, *boundaries)
    return dict(zip(GLOBAL_COLUMNS, values, strict=True))


def write_csvs(folder: Path, scores: list[ObjectScore], split: str = "val") -> None:
    """global_results-SPLIT.csv and per-sequence_results-SPLIT.csv, in the form of DAVIS's official tool."""
    totals = [f"{value:.3f}" for value in summarize(scores).values()]
    rows = []
    for score in scores:
        means = (f"{values.mean():.3f}" for values in (score.region, score.boundary))
        rows.append((f"{score.sequence}_{score.number}", *means))
    per_sequence = (("Sequence", "J-Mean", "F-Mean"), rows)
    tables = {"global": (GLOBAL_COLUMNS, [totals]), "per-sequence": per_sequence}
    for name, (headers, lines) in tables.items():
        write_whole(folder / f"{name}_results-{split}.csv", csv_table(headers, lines))
