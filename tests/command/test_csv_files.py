"""CSV files: what a spreadsheet would compute is text in them, and what reads them sees it as it was."""

import ast
import csv
import io

import pytest
from commands import ROOT
from hypothesis import given
from hypothesis import strategies as st

from revisit.errors import on_one_line
from revisit.markdown import CsvDicts, CsvLines, csv_table

FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\uff1d1", "-", "-1 -2")
LINE_ENDS = ("\t=1", "\r=1", "\n=1", "a\n=1", "a\u2028b")
OTHERS = {"revisit/markdown.py", "datasets/prepare_openimages_subsets.py"}  # the second reads OpenImages' lists


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_is_a_formula_begins_with_an_apostrophe(text):
    headers, line = csv.reader(io.StringIO(csv_table([text], [[text]]), newline=""))
    assert headers == line == [f"'{text}"]


@pytest.mark.parametrize("text", LINE_ENDS)
def test_a_row_is_one_line_that_no_spreadsheet_computes(text):
    _, line = csv_table(["a"], [[text]]).splitlines()
    assert not line.startswith(("=", "+", "-", "@", '"'))


def test_numbers_and_other_texts_stay_as_they_are():
    row = [-1, -0.5, float("-inf"), None, "-0.1234", "+3", "a=b", "'tis", "photos/-1.png", ""]
    written = next(csv.reader(io.StringIO(csv_table(["a"] * len(row), [row]).partition("\n")[2])))
    assert written == ["" if value is None else str(value) for value in row]


@given(st.lists(st.lists(st.text("='+-@\t\r\n,\"a1 \uff1d"), min_size=2, max_size=2), min_size=1))
def test_what_is_written_is_read(rows):
    file = csv_table(["=a", "b"], rows)
    lines = [list(map(on_one_line, row)) for row in rows]
    assert [*CsvLines(io.StringIO(file, newline=""))] == [["=a", "b"], *lines]
    assert [[*line.values()] for line in CsvDicts(io.StringIO(file, newline=""))] == lines


def test_a_comma_that_is_not_quoted_shifts_no_value():
    quoted, empty = 'a,b\n"x,y",1\n', "a,b\nx,1,,\n"
    assert [[*CsvDicts(io.StringIO(text))] for text in (quoted, empty)] == [[{"a": a, "b": "1"}] for a in ("x,y", "x")]
    for text, number in (("a,b\nx,y,1\n", 2), ("a,b\nx,1\nx,y,1\n", 3)):
        with pytest.raises(csv.Error, match=f"line {number} has more than 2 values"):
            list(CsvDicts(io.StringIO(text)))


def test_there_is_one_writer_and_one_reader_of_our_own_files():
    for path in [*ROOT.glob("revisit/**/*.py"), *ROOT.glob("[pdt][rao]*s/**/*.py")]:
        if path.relative_to(ROOT).as_posix() not in OTHERS:
            names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if "attr" in node._fields}
            assert not names & {"csv.writer", "csv.reader", "csv.DictReader", "csv.DictWriter"}, path
