"""Videos in DAVIS's layout, JPEGImages/480p/NAME/00000.jpg and Annotations/480p/NAME/00000.png; masks and overlays."""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from projects.common.label_maps import voc_colours
from revisit.data.labels import VOID, check_size, read_labels
from revisit.data.split_files import read_split
from revisit.errors import UserError, expect
from revisit.files import written_whole
from revisit.viz.tiles import fit

NUM_IDS = 255  # the palette's, VOID aside
OPACITY = 0.6  # of an object over the frame
LEAST_FRAMES = 3  # the first is given and the last does not count


class Sequence(NamedTuple):
    """A video: frames and masks of the same names, in order."""

    name: str
    frames: list[Path]
    masks: list[Path]


def find_sequences(root: Path, resolution: str, split: str, names: tuple[str, ...] = ()) -> list[Sequence]:
    """The videos ``names``, or those of ImageSets/2017/SPLIT.txt.

    Raises:
        UserError: a video, a mask or the split file is missing, or a mask has no frame.
    """
    layout = f"JPEGImages/{resolution} and Annotations/{resolution}"
    expect(root.is_dir(), f"no DAVIS tree at {root}: expected {layout} in it")
    names = names or tuple(read_split(root / "ImageSets" / "2017" / f"{split}.txt"))
    return [_find_sequence(root, resolution, name) for name in names]


def _find_sequence(root: Path, resolution: str, name: str) -> Sequence:
    frames_folder, masks_folder = root / "JPEGImages" / resolution / name, root / "Annotations" / resolution / name
    frames, masks = sorted(frames_folder.glob("*.jpg")), sorted(masks_folder.glob("*.png"))
    counts = f"{frames_folder} has {len(frames)} frames"
    expect(len(frames) >= LEAST_FRAMES, f"{counts} (*.jpg): expected {LEAST_FRAMES} or more")
    lone = sorted({path.stem for path in frames} ^ {path.stem for path in masks})
    if lone:
        counts = f"{counts}, {masks_folder} {len(masks)} masks"
        raise UserError(f"{counts}, and {lone[0]} is only in one of them: expected a mask for every frame")
    return Sequence(name, frames, masks)


def read_masks(sequence: Sequence, size: tuple[int, int]) -> np.ndarray:
    """(T, H, W) uint8 ids of objects, 0 where there is none, VOID where the truth is unknown.

    Masks of one object are stored as 0 and 255 in DAVIS 2016: where 255 is the first mask's only id, it is object 1.

    Raises:
        UserError: a mask that cannot be read, of another (H, W) than ``size``, or without any object at the start.
    """
    masks = []
    for mask_file, frame_file in zip(sequence.masks, sequence.frames, strict=True):
        mask = read_labels(mask_file, NUM_IDS)
        check_size(str(mask_file), mask, str(frame_file), size)
        masks.append(mask)
    stack = np.stack(masks)
    objects = np.unique(stack[0][stack[0] > 0]).tolist()
    expect(bool(objects), f"{sequence.masks[0]} has no object: expected the first frame's objects to follow")
    if objects == [VOID]:
        stack[stack == VOID], objects = 1, [1]
    objects = [number for number in objects if number != VOID]
    in_order = objects == list(range(1, len(objects) + 1))
    expect(in_order, f"{sequence.masks[0]} has the objects {objects}: expected 1, 2, ... without a gap")
    return stack


def paint_objects(frame: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The (H, W, 3) uint8 RGB frame with each object of the (H, W) ids in its colour, PANEL px on its longer side."""
    painted = cv2.addWeighted(frame, 1 - OPACITY, voc_colours()[ids], OPACITY, 0)
    return fit(np.where(ids[..., None] > 0, painted, frame))


def save_animation(path: Path, pictures: list[np.ndarray], frames_per_second: float) -> None:
    """Write (h, w, 3) uint8 RGB pictures of one size as an endless GIF."""
    first, *rest = (Image.fromarray(picture).quantize(method=Image.Quantize.FASTOCTREE) for picture in pictures)
    options = {"save_all": True, "append_images": rest, "duration": round(1000 / frames_per_second), "loop": 0}
    with written_whole(path) as temporary:
        first.save(temporary, format="GIF", **options)
