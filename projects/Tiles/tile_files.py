"""Windows as files of their own, with a COCO file, for tools that know no tiles."""

import os
from collections import Counter
from pathlib import Path

from projects.Pixels.channel_files import expect_one_file_each
from projects.Tiles.tiled_names import TILES
from projects.Tiles.window_files import window_bytes
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import in_coco
from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.data.images.image_bytes import WINDOW
from revisit.data.images.opening import open_image
from revisit.data.sources.catalog import get_records
from revisit.data.sources.class_names import names_of
from revisit.data.sources.records import Records, ask_each, fingerprint
from revisit.data.sources.subsets import is_labelled
from revisit.errors import expect
from revisit.files import written_whole
from revisit.jobs.record import Record

ALL, TO_LEARN = "annotations.json", "to_learn.json"
_OF_PHOTOGRAPHS = b"P"  # how a PPM or PGM begins, which samples_bytes makes of them


def write_tiles(name: str, tiling: Tiling, folder: Path) -> str:
    """Write each window of a data set as a PNG of a photograph or a TIFF of other samples, in px of its file, called
    after its image, left and top; and where there are boxes, ALL, in COCO's format, and TO_LEARN without the empty
    windows that no training here would take. What is ignored is a crowd there. Files that are there stay.

    Returns:
        In words what there is.

    Raises:
        UserError: the folder is of other windows, or those of two images would have one name.
    """
    records = get_records(f"{TILES}:{tiling}:{name}")
    expect_one_file_each(records, name, f"trainings read {TILES}:{tiling}:{name} as it is")
    Record(folder, {"data": name, "tiles": str(tiling), "windows": fingerprint(records)}).claim()
    names = _names(records, name)
    pairs = list(zip(records, names, strict=True))
    files = ask_each(lambda pair: _write(pair[0], folder / pair[1]), pairs, "writing windows")
    words = f"{len(files):,} windows of {tiling.side} px in {folder}"
    if "annotations" not in records[0]:
        return words
    windows = [_in_coco(record, file) for record, file in zip(records, files, strict=True)]
    classes = names_of(name)
    count = write_data_set(folder / ALL, windows, classes, folder=str(folder))
    learned = [window for window, record in zip(windows, records, strict=True) if is_labelled(record)]
    write_data_set(folder / TO_LEARN, learned, classes, folder=str(folder))
    return f"{words}, with {count:,} objects and parts of such in {ALL}; {len(learned):,} of them are in {TO_LEARN}"


def _names(records: Records, name: str) -> list[str]:
    """Below the folder, without suffix."""
    root = folder_of(records, name)
    stems = [os.path.splitext(os.path.relpath(os.path.abspath(each["file_name"]), root))[0] for each in records]
    names = ["{}_{}_{}".format(stem, *each[WINDOW][:2]) for stem, each in zip(stems, records, strict=True)]
    twice = [each for each, count in Counter(names).items() if count > 1]
    expect(not twice, f"two images have windows called {twice[:1]}: expected names that differ before the suffix")
    return names


def _write(record: dict, path: Path) -> Path:
    """Returns the file that is there now, with its suffix."""
    photograph, other = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.tif")
    if there := next(filter(Path.exists, (photograph, other)), None):
        return there
    data = window_bytes(record)
    is_photograph = data.startswith(_OF_PHOTOGRAPHS)
    file = photograph if is_photograph else other
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(file, lasting=False) as temporary:
        if is_photograph:
            open_image(data).save(temporary, "PNG")
        else:
            temporary.write_bytes(data)
    return file


def _in_coco(record: dict, file: Path) -> dict:
    objects = [in_coco(each) | _keypoints(each) for each in record["annotations"]]
    return {"file_name": str(file), "height": record["height"], "width": record["width"], "objects": objects}


def _keypoints(annotation: dict) -> dict:
    """As files count px; Detectron2 has the pixel's centre."""
    points = annotation.get("keypoints")
    if not points:
        return {}
    seen = points[2::3]
    values = [value - 0.5 if n % 3 < 2 and seen[n // 3] else value for n, value in enumerate(points)]
    return {"keypoints": values, "num_keypoints": sum(each > 0 for each in seen)}
