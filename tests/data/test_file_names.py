"""Images that are no files of their own are refused wherever results are by the names of files."""

import numpy as np
import pytest
from commands import one_line_error, run
from trees import refusal

from projects.CompareStarts.labelled_parts import load_picked
from projects.Labels.labels import read_labels_of
from projects.Rows.image_lists import labelled_in
from projects.Rows.regions import whole_images
from projects.Rows.row_table import RowTable
from revisit.data.sources.file_names import expect_file_names

IN_SHARDS = "images in shards have no names: expected a data set with a file for each image"


@pytest.fixture
def shards(write_pictures, tmp_path) -> str:
    """A data set of two classes in one shard."""
    for name in ("cats", "dogs"):
        write_pictures(tmp_path / "photos" / name, 2)
    run(f"python tools/make_shards.py --data class_folders:{tmp_path}/photos --output {tmp_path}/packed", tmp_path)
    return f"shards:{tmp_path}/packed"


def test_tables_labels_and_objects_of_shards_are_refused_before_any_work(shards, tmp_path):
    assert refusal(whole_images, shards) == f"{shards}: {IN_SHARDS}"
    assert refusal(read_labels_of, shards) == f"--data {shards}: {IN_SHARDS}"
    assert refusal(labelled_in, RowTable(*(np.zeros(0),) * 4, about={}), shards) == f"--labelled {shards}: {IN_SHARDS}"
    assert refusal(load_picked, shards, "2", tmp_path / "list.txt") == f"{shards}: {IN_SHARDS}"
    command = f"python tools/discover.py --weights imagenet:none --data {shards} --output {tmp_path}/objects"
    assert f"--data {shards}: {IN_SHARDS}" in one_line_error(command, tmp_path)
    assert not (tmp_path / "objects").exists()


def test_images_in_memory_are_refused_and_files_are_not():
    in_memory = {"image": np.zeros((4, 4, 3), np.uint8), "label": 0}
    file = {"file_name": "a.jpg"}
    expect_file_names([file, file], "photos")
    assert refusal(expect_file_names, [file, in_memory], "x") == f"x: {IN_SHARDS.replace('in shards', 'in memory')}"
