"""Chosen images as a list, as a COCO file without boxes, as tasks of Label Studio, and as a sheet."""

import json
from pathlib import Path
from urllib.parse import quote

import numpy as np

from projects.common.row_table import RowTable
from projects.Curation.tables import full_names, write_list, write_text
from projects.ImageAtlas.thumbnails import thumbnails
from projects.Pictures.tiles import evenly_spread, gallery, save_sheet

TILE, COLUMNS = 140, 8  # px, and tiles in a row of the sheet
MOST = 96  # images that are drawn
# How Label Studio serves a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, here /.
LOCAL_FILE = "/data/local-files/?d="


def write_chosen(output: Path, chosen: RowTable, title: str) -> None:
    """Write selected.txt, to_label.json, label_studio.json and selected.png, in the order of choosing."""
    names = full_names(chosen).tolist()
    write_list(output / "selected.txt", names)
    write_text(output / "to_label.json", json.dumps(coco_without_boxes(names, chosen.boxes)))
    tasks = [{"data": {"image": f"{LOCAL_FILE}{quote(name.lstrip('/'))}"}} for name in names]
    write_text(output / "label_studio.json", json.dumps(tasks))
    shown = evenly_spread(len(names), MOST)
    captions = [f"{place + 1}  {Path(names[place]).name}" for place in shown]
    rows = gallery(list(thumbnails(chosen.of(np.array(shown)), TILE)), captions, COLUMNS)
    save_sheet(output / "selected.png", rows, title=title, subtitle=f"{len(shown)} of {len(names)} images")


def coco_without_boxes(names: list[str], sizes: np.ndarray) -> dict[str, list]:
    """Images with their sizes, (N, 4) x0, y0, x1, y1 px, that await annotations and categories."""
    images = [
        {"id": number, "file_name": name, "height": int(height), "width": int(width)}
        for number, (name, (_, _, width, height)) in enumerate(zip(names, sizes, strict=True), start=1)
    ]
    return {"images": images, "annotations": [], "categories": []}
