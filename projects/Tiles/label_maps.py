"""Maps of labels and of depths, cut with the windows of their images."""

from collections.abc import Callable, Mapping

import numpy as np

from projects.Pixels.samples import Scan
from projects.Tiles.window_files import look_at
from revisit.data.sources.labels import VOID, read_depth, read_ids
from revisit.data.sources.records import LABEL_FILES
from revisit.errors import expect

_READERS: dict[str, Callable[..., np.ndarray]] = dict(zip(LABEL_FILES, (read_ids, read_depth), strict=True))


def void_of(metadata: Mapping) -> dict[str, int]:
    """By LABEL_FILES, what a pixel has that has no class or depth."""
    return dict(zip(LABEL_FILES, (0 if metadata.get("label_offset") else VOID, 0), strict=True))


def show_labels(image: dict, windows: np.ndarray, scan: Scan, void: Mapping[str, int]) -> np.ndarray:
    """(n,) bool, of (n, 4) windows of an image: whether its maps have a class or a depth there; true without maps.

    Raises:
        UserError: a map that cannot be read, or of another size than the image.
    """
    files = {field: str(image[field]) for field in LABEL_FILES if field in image}
    for file in files.values():
        size = look_at(file)[:2]
        own = f"{file} is {size[1]} x {size[0]} pixels"
        sizes = f"{own}, but its image {image['file_name']} is {scan.width} x {scan.height}"
        expect(size == scan[:2], f"{sizes}: expected the same size")
    shown = np.full(len(windows), not files)
    for field, file in files.items():
        values = (_READERS[field](file, window=tuple(window)) for window in windows.tolist())
        shown |= [(of_window != void[field]).any() for of_window in values]
    return shown
