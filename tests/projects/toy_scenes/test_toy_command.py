"""What the command answers, above all to mistakes."""

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT

SCRIPT = str(ROOT / "projects/ToyScenes/make_toy_scenes.py")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs the command on ``tmp_path / name``; returns its status and what it said, less the progress."""

    def run_on(name: str, *options: str) -> tuple[int, str, str]:
        small = ["--num-images", "10", "--size", "64", "--workers", "1"]
        monkeypatch.setattr(sys, "argv", [SCRIPT, "--output", str(tmp_path / name), *small, *options])
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as end:
            status = end.code
        else:
            status = 0
        said = capsys.readouterr()
        lines = [line for line in said.err.splitlines() if "drawing ToyScenes" not in line]
        return status, said.out, "\n".join(line for line in lines if line)

    return run_on


def test_a_second_run_finds_the_data_set_and_draws_nothing(run: Callable, tmp_path: Path):
    (tmp_path / "empty").mkdir()  # is filled
    for name in ("new/folder", "empty"):
        assert run(name)[0] == 0
        written = (tmp_path / name / "toy_scenes.json").stat().st_mtime_ns
        status, out, err = run(name)
        assert (status, err) == (0, "") and "already" in out
        assert (tmp_path / name / "toy_scenes.json").stat().st_mtime_ns == written


def test_other_arguments_are_refused_until_overwrite(run: Callable, tmp_path: Path):
    run("toy")
    assert _refused(run("toy", "--seed", "3"), "seed 0 (asked for: 3)", "--overwrite")
    assert run("toy", "--seed", "3", "--overwrite")[0] == 0
    assert '"seed": 3' in (tmp_path / "toy/toy_scenes.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_missing_files_are_noticed(run: Callable, tmp_path: Path):
    run("toy")
    counts = json.loads((tmp_path / "toy/toy_scenes.json").read_text())["counts"]
    for folder, count in counts.items():
        path = next(path for path in (tmp_path / "toy" / folder).rglob("*") if path.suffix in (".jpg", ".png", ".npy"))
        path.rename(tmp_path / "away")
        assert _refused(run("toy"), folder, f"{count - 1} pictures or maps, expected {count}", "--overwrite")
        (tmp_path / "away").rename(path)
    assert run("toy")[0] == 0
    path.unlink()
    assert run("toy", "--overwrite")[0] == 0 and path.is_file()


def test_a_data_set_without_the_later_folders_is_noticed_and_replaced(run: Callable, tmp_path: Path):
    run("toy")  # and then as it was before it had segmentation, depth and videos
    old = tmp_path / "toy"
    for folder in ("cityscapes", "NYUD_MT", "VOC2007/SegmentationClass", "VOC2007/ImageSets/Segmentation", "DAVIS"):
        shutil.rmtree(old / folder)
    record = json.loads((old / "toy_scenes.json").read_text())
    del record["layout_version"]
    record["counts"] = {
        "object_centric/train": 10, "object_centric/heldout": 2, "coco/train2017": 10, "coco/val2017": 2
    }  # fmt: skip
    (old / "toy_scenes.json").write_text(json.dumps(record))
    picture = (old / "coco/train2017/000000000001.jpg").read_bytes()
    other = run("toy", "--seed", "3")  # which drawing again would not give
    assert _refused(other, "seed 0 (asked for: 3)", "another --output") and "layout" not in other[2]
    assert _refused(run("toy"), str(old), "layout version 1, expected 3", "draw it again with --overwrite")
    assert not (old / "NYUD_MT").exists()
    assert run("toy", "--overwrite")[0] == 0
    assert run("toy")[:2] == (0, f"ToyScenes is in {old} already; nothing to do\n")
    assert (old / "NYUD_MT/images/000001.jpg").read_bytes() == picture


@pytest.mark.parametrize("option", [(), ("--overwrite",)])
def test_a_folder_of_something_else_is_never_touched(option: tuple[str, ...], run: Callable, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    assert _refused(run("mine", *option), "not ToyScenes", "another --output")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_overwrite_spares_what_was_put_next_to_the_data(run: Callable, tmp_path: Path):
    run("toy")
    (tmp_path / "toy/notes.txt").write_text("mine")
    assert _refused(run("toy", "--overwrite", "--seed", "1"), "notes.txt", "move it away")
    assert (tmp_path / "toy/notes.txt").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--num-images", "9"), ("--size", "32"), ("--size", "513"), ("--seed", "-1"), ("--workers", "0")],
)
def test_numbers_out_of_range_are_refused(option: str, value: str, run: Callable, tmp_path: Path):
    assert _refused(run("toy", option, value), f"{option} is {value}", "expected")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(run: Callable, tmp_path: Path):
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        assert _refused(run(name), str(tmp_path / "file"), "another --output")


def _refused(said: tuple[int, str, str], *parts: str) -> bool:
    status, _, err = said
    return status == 2 and err.startswith("error: ") and "\n" not in err and all(part in err for part in parts)
