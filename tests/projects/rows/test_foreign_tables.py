"""A table that somebody else has made is data: it names weights, a config and modules, and none of them is used."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import run_checkpoint, write_converted
from commands import one_line_error, run
from trees import refused

from projects.Rows.embedders import Named, embedder_of_table
from projects.Rows.row_table import load_table, save_table
from revisit.arrays import read_arrays
from revisit.jobs.record import Record


@pytest.fixture
def rows(write_pictures, tmp_path):
    """A table of two images, and the weights that made it."""
    torch.manual_seed(0)
    weights = write_converted(run_checkpoint(), tmp_path / "backbone.pth")
    write_pictures(tmp_path / "photos", 2)
    words = f"--weights {weights} --data folder:{tmp_path}/photos --size 32 --readers 0 --output {tmp_path}/rows"
    run(f"python tools/embed.py {words}", tmp_path)
    return tmp_path / "rows", str(weights)


def test_weights_modules_and_configs_of_a_table_are_not_used(rows, tmp_path):
    folder, weights = rows
    (tmp_path / "intruder.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    table = load_table(folder)
    options = table.about["options"] | {"weights": "http://127.0.0.1:9/a.pth", "box_head": True}
    about = table.about | {"options": options | {"opts": ["IMPORTS", "('intruder',)"]}, "of": "box"}
    save_table(folder / "embeddings.npz", table._replace(about=about))
    query = f"{tmp_path}/photos/000.png"
    find = f"python tools/similar.py --embeddings {folder} --data {query} --boxes 0 0 9 9 --output {tmp_path}/s.png"
    error = one_line_error(find, tmp_path)
    assert "expected --weights http://127.0.0.1:9/a.pth" in error and "intruder" in error
    error = one_line_error(f"{find} --weights {weights}", tmp_path)
    assert "made with another config" in error and not (tmp_path / "ran").exists()


def test_weights_that_are_named_are_those_of_the_table(rows, tmp_path):
    folder, weights = rows
    about = load_table(folder).about
    assert embedder_of_table(about, Named(weights)).about["digest"] == about["digest"]
    other = about | {"digest": "0" * 64}
    refused("backbone.pth are other weights than those of the table", embedder_of_table, other, Named(weights))
    for size in (10**9, -1, True, "32", None, [32]):
        changed = about | {"options": about["options"] | {"size": size}}
        refused("states no sensible size", embedder_of_table, changed, Named(weights))
    run(f"python tools/similar.py --embeddings {folder} --data {tmp_path}/photos/000.png --output {tmp_path}/s.png "
        f"--weights {weights}", tmp_path)  # fmt: skip


@pytest.mark.parametrize("save", [np.savez_compressed, np.savez])
def test_a_small_file_does_not_become_large_arrays(save, tmp_path):
    path = tmp_path / "embeddings.npz"
    save(path, rows=np.zeros((100, 100), np.float32))
    if save is np.savez_compressed:
        refused("compressed", read_arrays, path)
        return
    head = b"'shape': (100, 100)"
    for shape in (b"'shape': (10**9,)  ", b"'shape': (99999999,)", b"'shape': (0, 10000)", b"'shape': (-1, -100)"):
        content = path.read_bytes().replace(head, shape[: len(head)].ljust(len(head)))
        broken = tmp_path / "broken.npz"
        broken.write_bytes(content)
        refused("broken.npz", read_arrays, broken)


def test_arrays_of_objects_are_refused(tmp_path):
    np.savez(tmp_path / "objects.npz", rows=np.array([{}], object))
    refused("an array of object", read_arrays, tmp_path / "objects.npz")


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000, "null"])
def test_settings_that_are_none_are_one_line(content, tmp_path):
    (tmp_path / "settings.json").write_text(content)
    refused("settings.json", Record(Path(tmp_path), json.loads('{"a": 1}')).claim)
