"""What the command answers, above all to mistakes."""

import json
import os
import runpy
import sys

import pytest
from commands import ROOT

SCRIPT = str(ROOT / "projects/ToyScenes/make_toy_scenes.py")


@pytest.fixture
def draw(tmp_path, monkeypatch, capsys):
    """Runs the command on ``tmp_path / name``; its status and what it printed, less the progress."""

    def call(name: str, *options: str) -> tuple[int, str]:
        small = ["--count", "10", "--size", "64", "--processes", "1"]
        monkeypatch.setattr(sys, "argv", [SCRIPT, "--output", str(tmp_path / name), *small, *options])
        status = 0
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        errors = [line for line in printed.err.splitlines() if line and "drawing ToyScenes" not in line]
        assert len(errors) == (status == 2) and all(line.startswith("error: ") for line in errors)
        return status, printed.out + "".join(errors)

    return call


def test_a_second_run_finds_the_data_set_and_another_one_needs_overwrite(draw, tmp_path):
    (tmp_path / "toy").mkdir()  # is filled
    assert draw("toy")[0] == 0
    record = tmp_path / "toy/toy_scenes.json"
    written = record.stat().st_mtime_ns
    status, text = draw("toy")
    assert status == 0 and "already" in text and record.stat().st_mtime_ns == written
    status, text = draw("toy", "--seed", "3")
    assert status == 2 and "seed 0" in text and json.loads(record.read_text())["seed"] == 0
    assert draw("toy", "--seed", "3", "--replace")[0] == 0
    assert json.loads(record.read_text())["seed"] == 3 and [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_what_a_killed_process_of_the_same_number_has_left_is_in_nobodys_way(draw, tmp_path):
    """As in a container, whose first process has the number 1 every time."""
    (tmp_path / f".toy.partial-{os.getpid()}/parts").mkdir(parents=True)
    assert draw("toy")[0] == 0 and (tmp_path / "toy/toy_scenes.json").is_file()


def test_files_of_others_are_never_deleted(draw, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    status, text = draw("mine", "--replace")
    assert status == 2 and str(tmp_path / "mine") in text and (tmp_path / "mine/thesis.txt").exists()
    assert draw("mine")[0] == 2


@pytest.mark.parametrize("name", ["notes.txt", "coco/annotations/mine.json", "object_centric/train/red_disk/mine.jpg"])
def test_a_file_of_others_among_those_of_toy_scenes_is_never_deleted(name, draw, tmp_path):
    draw("toy")
    file = tmp_path / "toy" / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    status, text = draw("toy", "--replace", "--seed", "1")
    assert status == 2 and f"also holds {name}: --replace would delete it" in text and file.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--count", "9"), ("--size", "32"), ("--size", "513"), ("--seed", "-1"), ("--processes", "0")],
)
def test_numbers_out_of_range_are_refused(option, value, draw, tmp_path):
    status, text = draw("toy", option, value)
    assert status == 2 and option in text and list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(draw, tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        status, text = draw(name)
        assert status == 2 and str(tmp_path / "file") in text
