"""Boxes and outlines in YOLO's layout, as people keep it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trees import refusal, write

from revisit.data.catalog import get_records
from revisit.data.yolo_datasets import _object, read_names

from detectron2.data import MetadataCatalog
from detectron2.structures import BoxMode

SIDES = st.floats(0.01, 1)


@pytest.fixture
def yolo(tmp_path):
    """Images of 100 x 50 px, one of them in a folder below and one without labels; their name as a data set."""
    for name in ("a.png", "below/b.png", "c ü.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((50, 100, 3), np.uint8)).save(tmp_path / "images" / name)
    write(tmp_path / "labels/a.txt", ["1 0.5 0.5 0.2 0.4", "", "0 0.1 0.2 0.3 0.2 0.3 0.6"])
    write(tmp_path / "labels/below/b.txt", ["0 0.5 0.5 1 1"])
    write(tmp_path / "labels/classes.txt", ["dog", "cat"])
    write(tmp_path / "names.txt", ["dog", "cat"])
    return f"yolo:{tmp_path}/images:{tmp_path}/labels:{tmp_path}/names.txt"


def test_boxes_and_outlines_lie_where_their_shares_of_the_image_say(yolo, tmp_path):
    a, b, none = get_records(yolo)
    assert [a["height"], a["width"], a["image_id"]] == [50, 100, 0]
    box, outline = a["annotations"]
    assert (box["category_id"], outline["category_id"]) == (1, 0) and "segmentation" not in box
    assert box["bbox"] == pytest.approx([40, 15, 20, 20]) and box["bbox_mode"] == BoxMode.XYWH_ABS
    assert outline["bbox"] == pytest.approx([10, 10, 20, 20])
    assert outline["segmentation"] == [pytest.approx([10, 10, 30, 10, 30, 30])]
    assert b["annotations"][0]["bbox"] == pytest.approx([0, 0, 100, 50]) and none["annotations"] == []
    assert MetadataCatalog.get(yolo).thing_classes == ["dog", "cat"]


@given(st.tuples(st.floats(-1, 2), st.floats(-1, 2), SIDES, SIDES), st.integers(1, 4000), st.integers(1, 4000))
def test_a_box_has_its_centre_and_sides(values, width, height):
    x, y, w, h = _object(["0", *map(repr, values)], width, height, 1)["bbox"]
    found = [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height]
    assert found == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 0.5 0.5 0.2 0.4", "class '2', expected a number from 0 to 1"),
        ("-1 0.5 0.5 0.2 0.4", "class '-1'"),
        ("dog 0.5 0.5 0.2 0.4", "class 'dog'"),
        ("0 0.5 0.5 0.2", "3 numbers after the class, expected 4 of a box, or pairs of an outline"),
        ("0 0.5 0.5 0.2 0.4 0.9", "5 numbers after the class"),
        ("0 50 25 20 20", "50, expected shares of the image's width and height"),
        ("0 nan 0.5 0.2 0.4", "nan, expected shares"),
        ("0 a 0.5 0.2 0.4", "could not convert"),
    ],
)
def test_a_line_that_is_neither_box_nor_outline_is_named(yolo, tmp_path, line, message):
    write(tmp_path / "labels/a.txt", ["0 0.5 0.5 0.2 0.4", line])
    assert f"{tmp_path}/labels/a.txt, line 2: {message}" in refusal(get_records, yolo)


def test_labels_of_other_images_are_counted(yolo, tmp_path, caplog):
    write(tmp_path / "labels/z.txt", ["0 0.5 0.5 0.2 0.4"])
    get_records(yolo)
    assert "1 of 3 files of labels belong to no image" in caplog.text
    for name in ("a", "below/b"):
        (tmp_path / f"labels/{name}.txt").unlink()
    assert "1 of 1 files of labels belong to no image" in refusal(get_records, yolo)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "dog\nred cat\n\n"),
        ("a.yaml", "path: /x\nnames: [dog, red cat]"),
        ("a.yml", "names:\n  0: dog\n  1: red cat"),
    ],
)
def test_names_are_read_from_lines_and_from_the_file_that_yolo_is_trained_with(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_names(tmp_path / name) == ["dog", "red cat"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.txt", ""), ("a.txt", "dog\n\ncat"), ("a.txt", "dog\ndog"), ("a.yaml", "names: {1: dog}"), ("a.yaml", "nc: 3")],
)
def test_what_holds_no_names_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert f"{name} holds no class names" in refusal(read_names, tmp_path / name)
    assert "not found" in refusal(read_names, tmp_path / "none.txt")
