"""Lists of names, one a line: what is written is what is read, and a name is never two."""

import csv
import io

import pytest
from trees import blank_image, refused, write

from revisit.data.sources.catalog import get_records
from revisit.data.sources.image_folders import load_list, write_list
from revisit.data.sources.split_files import read_class_names, read_split, text_of_names
from revisit.markdown import csv_table, markdown_table

ENDS = ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r\n"]


@pytest.mark.parametrize("end", ENDS)
def test_a_name_with_a_line_end_is_not_two_images(tmp_path, end):
    outside, name = tmp_path / "outside.png", f"photo{end}{tmp_path}/outside.png"
    blank_image(outside)
    refused("no list can hold: expected one without line ends", write_list, tmp_path / "list.txt", [name])
    if end.strip("\r\n"):
        write(tmp_path / "list.txt", f"{name}\n")
        refused("1 of 1 images by .* not found", get_records, f"list:{tmp_path}/list.txt")


def test_a_folder_that_is_not_there_has_one_beside_it_that_was_meant(tmp_path):
    (tmp_path / "photos").mkdir()
    refused("fotos not found; did you mean photos\\?", get_records, f"folder:{tmp_path}/fotos")


def test_line_feeds_and_carriage_returns_before_them_end_lines(tmp_path):
    names = ["a b.png", "ü.png", "\u2003wide.png"]
    for name in names:
        blank_image(tmp_path / name)
    for end in ("\n", "\r\n"):
        write(tmp_path / "list.txt", f"\ufeff{end.join(names)}{end}{end}")
        assert [record["file_name"] for record in load_list(tmp_path / "list.txt")] == [
            str(tmp_path / name) for name in names
        ]


@pytest.mark.parametrize("name", ["", " a", "a\t", "\ufeffa"])
def test_a_name_that_would_be_read_as_another_is_not_written(name):
    refused("no list can hold", text_of_names, [name], "an image")


def test_names_of_a_split_stay_below_the_data_set(tmp_path):
    write(tmp_path / "val.txt", ["a/b", "/etc/passwd"])
    assert read_split(tmp_path / "val.txt") == ["a/b", "etc/passwd"]
    write(tmp_path / "val.txt", ["a", "../../private"])
    refused("val.txt names ../../private, which leads out of its folder", read_split, tmp_path / "val.txt")


def test_a_class_with_control_characters_is_refused(tmp_path):
    write(tmp_path / "classes.txt", ["cat", "\x1b[2Jdog"])
    refused(r"has a class '.x1b\[2Jdog'", read_class_names, tmp_path / "classes.txt")


@pytest.mark.parametrize("end", ENDS)
def test_a_row_of_a_table_is_one_line(end):
    text = csv_table(("file_name", "group"), [(f"a{end}b,c", 1), ("ü\udcff", 2)])
    assert markdown_table(("a", "b"), [("x|y", "z")]).splitlines()[-1] == r"| x\|y | z |"
    assert len(text.splitlines()) == 3 and len(markdown_table(("a",), [[f"a{end}b"]]).splitlines()) == 3
    name = f"a{end.encode('unicode_escape').decode()}b,c"
    assert list(csv.reader(io.StringIO(text)))[1:] == [[name, "1"], ["ü\udcff", "2"]]
