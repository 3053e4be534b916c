"""Chosen images as a list, as a COCO file without boxes, as tasks of Label Studio, and as a sheet."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from projects.Pictures.tiles import gallery, save_sheet
from projects.Rows.image_lists import full_names
from projects.Rows.row_table import RowTable
from projects.Rows.thumbnails import thumbnails
from revisit.boxes.coco_files import folder_of, write_data_set
from revisit.boxes.label_studio import interface_of, task_of
from revisit.data.sources.image_folders import write_list
from revisit.data.sources.records import sample
from revisit.errors import expect
from revisit.files import read_json, write_whole

TO_LABEL = "to_label.json"
TILE, COLUMNS = 140, 8  # px, and tiles in a row of the sheet
MOST = 96  # images that are drawn
ANY = "object"  # the class of boxes where images have none


def expect_unlabelled(output: Path) -> None:
    """Raises UserError where TO_LABEL of an earlier call has labels by now, which ``write_chosen`` would replace."""
    path = output / TO_LABEL
    content = read_json(path) if path.is_file() else {}
    has_labels = not isinstance(content, dict) or bool(content.get("annotations"))
    expect(not has_labels, f"{path} has labels, which would be replaced: give another --output, or move it")


def write_chosen(output: Path, chosen: RowTable, title: str, class_names: Sequence[str] = ()) -> None:
    """Write selected.txt, to_label.json, label_studio.json and selected.png, in the order of choosing, and
    label_studio.xml, an interface for boxes of these classes, or of ANY."""
    names = full_names(chosen).tolist()
    write_list(output / "selected.txt", names)
    sizes = chosen.boxes[:, 2:].astype(int).tolist()  # of boxes as large as their images
    images = [
        {"file_name": name, "height": height, "width": width, "objects": []}
        for name, (width, height) in zip(names, sizes, strict=True)
    ]
    write_data_set(output / TO_LABEL, images, classes=(), folder=folder_of(images))
    write_whole(output / "label_studio.json", json.dumps([task_of(name) for name in names]))
    write_whole(output / "label_studio.xml", interface_of(class_names or [ANY]))
    shown = sample(range(len(names)), MOST)
    captions = [f"{place + 1}  {Path(names[place]).name}" for place in shown]
    rows = gallery(list(thumbnails(chosen.of(np.array(shown)), TILE)), captions, COLUMNS)
    subtitle = chosen.pixels.caption(f"{len(shown)} of {len(names)} images")
    save_sheet(output / "selected.png", rows, title=title, subtitle=subtitle)
