"""Files written whole, whoever else writes; YAML of anybody's, or one line before it takes more than its size."""

import datetime
import os
import resource
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
from kills import fork
from trees import refused, touch

from revisit.command.options import add, parse, parser_of
from revisit.data.sources.coco_truth import read_coco
from revisit.data.sources.split_files import read_lines
from revisit.files import (
    expect_all_uncorrected,
    make_folder,
    make_place,
    read_json,
    read_yaml,
    record_written,
    write_correctable,
    write_whole,
    written_whole,
)

DOUBLED = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 20))
MERGED = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30))


def test_values_are_plain_and_aliases_and_merge_keys_work(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1, y: no}\nb: {<<: *a, x: 2.5}\nc: [*a, ~, 2026-01-02]\n")
    a = {"x": 1, "y": False}
    assert read_yaml(file) == {"a": a, "b": {"x": 2.5, "y": False}, "c": [a, None, datetime.date(2026, 1, 2)]}
    file.write_text("names: [yes, no, 007]\n0: 1e3\n")
    assert read_yaml(file, as_text=True) == {"names": ["yes", "no", "007"], "0": "1e3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a0: &a0 [1]\n{DOUBLED}", "line 11: more than 100,000 values"),
        (f"a0: &a0 {{b: 1}}\n{MERGED}", "line .*: more than 100,000 values"),
        (f"a: &a [{'1,' * 400}]\nb: [{'*a,' * 400}]\n", "line 2: more than 100,000 values"),
        ("a: &a [*a]\n", "line 1: an alias inside what it stands for"),
        ("a: &a {<<: *a}\n", "line 1: an alias inside what it stands for"),
        ("[" * 10**5, "line 1: more than 50 levels"),
        ("a:\n" + "".join(f"{' ' * n}b:\n" for n in range(1, 99)), "line .*: more than 50 levels"),
        (f"a: {'9' * 3001}\n", "line 1: a value of more than 3,000 characters"),
        ("a: !!bool maybe\n", "no YAML of plain values"),
        ("a: 1\n" * 10**6, "larger than 1 MiB"),
        ("a: 1\nb: 2\na: 3\n", "a stands in lines 1 and 3: expected one of them"),
        ("a: [\n", "no YAML of plain values .line 2: "),
        ("a: 2026-99-99\n", "no YAML of plain values .month must be in 1..12"),
        ("a: !!python/object/apply:os.getcwd []\n", "no YAML of plain values .line 1: could not determine"),
        ("a: \0\n", "no YAML of plain values"),
    ],
)
def test_what_would_take_more_than_its_size_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)

    def refuse() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(f"a.yaml: {message}", read_yaml, tmp_path / "a.yaml")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB

    code, output = fork(refuse)  # whose peak starts from what this process has now
    assert code == 0, output
    refused("a.yaml", read_yaml, tmp_path / "missing" / "a.yaml")


def test_a_list_of_thousands_of_classes_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text("names:\n" + "".join(f"  {n}: class {n}\n" for n in range(3000)))
    names = read_yaml(tmp_path / "a.yaml")["names"]
    assert len(names) == 3000 and names[2999] == "class 2999"


def test_a_place_has_one_of_the_suffixes_in_letters_of_any_size(tmp_path):
    make_place(tmp_path / "new/Report.HTML", "--output", ".html", ".htm")
    assert (tmp_path / "new").is_dir()
    refused(
        "page.pdf: expected a name in .html or .htm", make_place, tmp_path / "page.pdf", "--output", ".html", ".htm"
    )


def test_a_planted_link_leads_no_writer_to_another_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("a.json", "a.json.tmp"):
        (tmp_path / name).symlink_to(victim)
    write_whole(tmp_path / "a.json", "new")
    assert victim.read_text() == "mine" and (tmp_path / "a.json").read_text() == "new"
    assert not (tmp_path / "a.json").is_symlink()


def test_two_writers_of_one_file_do_not_take_each_others(tmp_path):
    path = tmp_path / f"{'x' * 245}.json"
    with written_whole(path) as one, written_whole(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"


def test_what_a_killed_writer_has_left_is_removed_and_what_is_being_written_is_not(tmp_path):
    for name in ("a.0123abcd.json.tmp", "b.0123abcd.tmp", "mine.tmp", "c.json"):
        (tmp_path / name).write_text("")
    with written_whole(tmp_path / "d.json") as temporary:
        make_folder(tmp_path, "--output")
        assert {path.name for path in tmp_path.iterdir()} == {"mine.tmp", "c.json", temporary.name}


@pytest.mark.parametrize("read", [read_json, read_yaml, read_coco, partial(read_lines, what="list")])
def test_a_pipe_is_refused_where_a_file_is_read(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused("pipe is a pipe or a device: expected a file", read, tmp_path / "pipe")
    refused("null is a pipe or a device: expected a file", read, Path("/dev/null"))


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    parser = parser_of("")
    add(parser, "table")
    refused("pipe is a pipe or a device", parse, parser, ["--table", f"{tmp_path}/pipe"])


def test_a_file_whose_folder_is_removed_meanwhile_is_one_line(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()

    def write() -> None:
        with written_whole(folder / "a.txt"):
            shutil.rmtree(folder)

    refused(f"{folder} is gone, which something has removed", write)
    refused(f"{folder} is gone, which something has removed", write_whole, folder / "a.txt", "text")


def test_a_file_taken_for_unfinished_before_it_has_its_lock_is_made_again(tmp_path, monkeypatch):
    opened = os.open

    def with_another_process(*words: object) -> int:
        descriptor = opened(*words)
        monkeypatch.setattr(os, "open", opened)
        make_folder(tmp_path, "its folder")
        return descriptor

    monkeypatch.setattr(os, "open", with_another_process)
    with written_whole(tmp_path / "a.txt") as temporary:
        temporary.write_text("whole")
        make_folder(tmp_path, "its folder")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]


def test_what_somebody_has_corrected_is_not_replaced(tmp_path):
    path, record = tmp_path / "data_set.json", tmp_path / "data_set.json.sha256"
    path.write_text("of an earlier version, without a record")
    for text in ("one", "two"):
        write_correctable(path, text)
        assert path.read_text() == text
    subprocess.run(["sha256sum", "-c", record.name], cwd=tmp_path, check=True)
    path.write_text("corrected")
    refused(f"{path} has been changed since it was written", write_correctable, path, "three")
    assert path.read_text() == "corrected"
    path.unlink()
    write_correctable(path, "three")
    assert path.read_text() == "three"


def test_what_somebody_has_corrected_of_many_files_is_found(tmp_path):
    files = [tmp_path / "a" / name for name in ("one two.png", os.fsdecode(b"caf\xe9.png"), "three.png")]
    touch(*files)
    expect_all_uncorrected(tmp_path)  # without a record
    record_written(tmp_path, files[:2])
    record_written(tmp_path, files[1:])
    subprocess.run(["sha256sum", "-c", "--strict", "written.sha256"], cwd=tmp_path, check=True)
    expect_all_uncorrected(tmp_path)
    for file in files:
        file.write_text("corrected")
        refused("has been changed since it was written", expect_all_uncorrected, tmp_path)
        file.unlink()
        expect_all_uncorrected(tmp_path)
    (tmp_path / "written.sha256").write_text(f"{'0' * 64}  ../other\n")
    refused("which leads out of its folder", expect_all_uncorrected, tmp_path)
