"""Boxes in YOLO's layout and in XML files: where they lie, which classes they have, and which files are refused."""

import os
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labels import inspected
from trees import blank_image, one_line_error, refusal, voc_xml_of, write

from projects.Labels import voc_xml as voc_xml_module
from projects.Labels.yolo import yolo_object
from revisit.config import add_revisit_config
from revisit.data.sources.catalog import get_records, keep_records, share_classes
from revisit.data.sources.split_files import read_class_names
from revisit.engine.data_checks import inspect_evaluation
from revisit.engine.finetune_trainer import FinetuneTrainer

from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog
from detectron2.structures import BoxMode

SIDES = st.floats(0.01, 1)


@pytest.fixture
def yolo(tmp_path):
    """Images of 100 x 50 px, one of them in a folder below and one without labels; their name as a data set."""
    for name in ("a.png", "below/b.png", "c ü.png"):
        blank_image(tmp_path / "images" / name)
    write(tmp_path / "labels/a.txt", ["1 0.5 0.5 0.2 0.4", "", "0 0.1 0.2 0.3 0.2 0.3 0.6"])
    write(tmp_path / "labels/below/b.txt", ["0 0.5 0.5 1 1"])
    write(tmp_path / "names.txt", ["dog", "cat"])
    return f"yolo:{tmp_path}/images:{tmp_path}/labels:{tmp_path}/names.txt"


@pytest.fixture
def voc_xml(tmp_path):
    """As ``yolo``; one of the XML files has no size."""
    for name in ("a.png", "below/b c.png", "ü.png"):
        blank_image(tmp_path / "images" / name)
    write(tmp_path / "xml/a.xml", voc_xml_of(("dog", 11, 6, 30, 40), (" cat ", 1, 1, 100, 50)))
    write(tmp_path / "xml/below/b c.xml", voc_xml_of(("dog", 2, 2, 9, 9), size=None))
    return f"voc_xml:{tmp_path}/images:{tmp_path}/xml"


def test_yolos_boxes_and_outlines_lie_where_their_shares_of_the_image_say(yolo):
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
def test_a_box_of_yolo_has_its_centre_and_sides(values, width, height):
    x, y, w, h = yolo_object(["0", *map(repr, values)], {"width": width, "height": height}, ["dog"])["bbox"]
    assert [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height] == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize(
    "line",
    ["2 0.5 0.5 0.2 0.4", "-1 0.5 0.5 0.2 0.4", "dog 0.5 0.5 0.2 0.4", "0 0.5 0.5 0.2", "0 0.5 0.5 0.2 0.4 0.9 1 2"]
    + ["0.5 0.5 0.5 0.2 0.4", "nan 0.5 0.5 0.2 0.4", "0 50 25 20 20", "0 nan 0.5 0.2 0.4", "0 a 0.5 0.2 0.4"],
)
def test_a_line_that_is_neither_box_nor_outline_is_named(yolo, tmp_path, line):
    write(tmp_path / "labels/a.txt", ["0 0.5 0.5 0.2 0.4", line])
    assert f"{tmp_path}/labels/a.txt, line 2: " in one_line_error(yolo)


POSE = "0 0.68 0.59 0.20 0.07 0.57 0.63 0.68 0.60 0.74 0.59 0.78 0.55 0.63 0.62"
OUTLINE = "0.1 0.2 0.3 0.2 0.3 0.6 0.1 0.6"


@pytest.mark.parametrize(
    ("lines", "points"),
    [
        (["{} 0.91"], 0),  # what a detector writes
        (["{} 7"], 0),
        (["{} 0.91 1", "{} 0.5 12"], 0),  # a tracker
        (["{} 0.91 1.0", "{} 0.5 12.0"], 0),
        (["{} 0.91", "{} 0.5 12"], 0),  # one that lost an object
        (["{}", "{} 0.5 12"], 0),
        ([OUTLINE + " 0.4 0.4", OUTLINE], 5),
        (["0.1 0.2 0.3 0.2 0.3 0.6", OUTLINE], 3),
        (["0.1 0.2 0.3 0.2 0.3 0.6", "{}"], 3),
    ],
)
def test_numbers_after_an_object_are_no_part_of_it_and_all_lines_tell_which_they_are(yolo, tmp_path, lines, points):
    write(tmp_path / "labels/below/b.txt", [f"1 {line.format('0.5 0.5 0.2 0.4')}" for line in lines])
    write(tmp_path / "labels/a.txt", "")
    _, record, _ = get_records(yolo)
    first, *_ = record["annotations"]
    assert len(record["annotations"]) == len(lines)
    if points:
        assert len(first["segmentation"][0]) == 2 * points
    else:
        assert all(box["bbox"] == pytest.approx([40, 15, 20, 20]) and len(box) == 3 for box in record["annotations"])
    longer = sum(line.startswith("{} ") for line in lines)
    said = "".join(MetadataCatalog.get(yolo).left_out)
    assert (f"{longer} of {len(lines)} lines have further numbers" in said) == bool(said) == bool(longer)


def test_keypoints_may_have_further_numbers_too(yolo, tmp_path):
    write(tmp_path / "data.yaml", "kpt_shape: [5, 2]\nnames: [dog]\n")
    write(tmp_path / "labels/a.txt", [f"{POSE} 0.91 3", f"{POSE} 0.91"])
    write(tmp_path / "labels/below/b.txt", [POSE])
    assert [len(record["annotations"]) for record in get_records(yolo)] == [2, 1, 0]


def test_six_numbers_that_may_be_a_triangle_or_a_box_are_refused_with_what_to_write(yolo, tmp_path):
    write(tmp_path / "labels/below/b.txt", ["1 0.5 0.5 0.2 0.4 0.91 0.87"])
    write(tmp_path / "labels/a.txt", "")
    line = one_line_error(yolo)
    assert f"{tmp_path}/labels/below/b.txt, line 1: 6 numbers after the class may be a triangle, or a box" in line
    write(tmp_path / "labels/below/b.txt", ["1 0.5 0.5 0.2 0.4 0.91 0.87 0.91 0.87"])  # as it says
    assert len(get_records(yolo)[1]["annotations"][0]["segmentation"][0]) == 8


def test_a_class_of_yolo_may_be_written_with_a_point(yolo, tmp_path):
    write(tmp_path / "labels/a.txt", ["1.0 0.5 0.5 0.2 0.4", "0. 0.5 0.5 0.2 0.4"])
    assert [box["category_id"] for box in get_records(yolo)[0]["annotations"]] == [1, 0]


@pytest.mark.parametrize("place", ["labels/classes.txt", "classes.txt", "data.yaml"])
def test_yolos_names_lie_with_the_labels_where_no_third_part_says(yolo, tmp_path, place):
    name = yolo.rpartition(":")[0]
    assert str(tmp_path / place) in one_line_error(name)
    write(tmp_path / place, ["names: [dog, cat]"] if place.endswith("yaml") else ["dog", "cat"])
    assert get_records(name)[0]["annotations"][0]["category_id"] == 1


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("a.txt", "dog\nred cat\n\n", ["dog", "red cat"]),
        ("a.yaml", "path: /x\nnames: [dog, red cat]", ["dog", "red cat"]),
        ("a.yml", "names:\n  0: dog\n  1: red cat", ["dog", "red cat"]),
        ("a.txt", "\ufeffred\r\nblue\r\n", ["red", "blue"]),
        ("a.yaml", "\ufeffnames: [yes, no, null, 1, 010]", ["yes", "no", "null", "1", "010"]),
        ("a.yaml", "names: {0: on, 1: off}", ["on", "off"]),
        ("a.yaml", "names: dog", None),
        ("a.yaml", "names: [[dog], cat]", None),
        ("a.yaml", "names:", None),
        ("a.txt", "", None),
        ("a.txt", "dog\ndog", None),
        ("a.yaml", "names: {1: dog}", None),
        ("a.yaml", "[dog, cat]", None),
        ("a.yaml", "nc: 3\nnames: [dog, cat]", None),
        ("a.yaml", "nc: two\nnames: {0: dog, 1: cat}", None),
        ("a.yaml", "nc: 2\nnames: {0: dog, 1: cat}", ["dog", "cat"]),
        ("none.txt", None, None),
    ],
)
def test_names_are_read_from_lines_and_from_the_file_that_yolo_is_trained_with(tmp_path, name, text, names):
    if text is not None:
        write(tmp_path / name, text)
    if names:
        assert read_class_names(tmp_path / name) == names
    else:
        assert name in refusal(read_class_names, tmp_path / name)


@pytest.mark.parametrize("place", ["data.yaml", "labels/data.yaml", "mine.yml"])
def test_a_line_with_keypoints_is_its_box_where_the_yaml_file_says_so(yolo, tmp_path, place):
    write(tmp_path / place, "kpt_shape: [5, 2]\nnames: [dog]\n")
    write(tmp_path / "labels/a.txt", [POSE])
    write(tmp_path / "labels/below/b.txt", [POSE])
    name = f"{yolo.rpartition(':')[0]}:{tmp_path}/mine.yml" if place == "mine.yml" else yolo
    (box,) = get_records(name)[0]["annotations"]
    # of 100 x 50 px: the centre 68, 29.5, the sides 20, 3.5
    assert box["bbox"] == pytest.approx([58, 27.75, 20, 3.5]) and "segmentation" not in box


def test_other_keypoints_than_the_yaml_file_says_are_named(yolo, tmp_path):
    write(tmp_path / "labels/a.txt", [POSE])
    write(tmp_path / "data.yaml", "kpt_shape: [17, 3]\nnames: [dog]\n")
    assert "14 numbers after the class, expected 4 of a box and 51 of keypoints" in one_line_error(yolo)
    write(tmp_path / "data.yaml", "kpt_shape: 17\nnames: [dog]\n")
    assert "kpt_shape 17, expected [points, 2]" in one_line_error(yolo)


def test_outlines_that_may_be_keypoints_are_warned_of_and_others_are_not(yolo, tmp_path, caplog):
    corners = [(10, 10), (30, 10), (35, 20), (30, 30), (10, 30)]
    outline = " ".join(f"{x / 100} {y / 50}" for x, y in corners)
    write(tmp_path / "labels/a.txt", [f"0 {outline}"])
    write(tmp_path / "labels/below/b.txt", [f"0 {outline}", "0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2"])
    get_records(yolo)
    assert not caplog.text
    write(tmp_path / "labels/a.txt", [POSE])
    write(tmp_path / "labels/below/b.txt", [POSE])
    get_records(yolo)
    assert "all 2 outlines have 7 points" in caplog.text and "kpt_shape" in caplog.text
    write(tmp_path / "labels/a.txt", [" ".join(["0", *["0.5"] * 13])])  # of three numbers a point
    assert "keypoints need kpt_shape in data.yaml" in one_line_error(yolo)


def test_boxes_of_xml_files_lie_where_they_say_and_classes_are_the_names_in_them(voc_xml):
    a, b, none = get_records(voc_xml)
    assert MetadataCatalog.get(voc_xml).thing_classes == ["cat", "dog"]
    assert [box["category_id"] for box in a["annotations"]] == [1, 0]
    assert a["annotations"][0]["bbox"] == [10.0, 5.0, 20.0, 35.0]  # VOC counts pixels from 1
    assert a["annotations"][0]["bbox_mode"] == BoxMode.XYWH_ABS
    assert (b["height"], b["width"], b["image_id"]) == (50, 100, 1)  # the image's own, where the file has none
    assert len(b["annotations"]) == 1 and none["annotations"] == []


def test_a_test_set_that_shows_fewer_classes_counts_them_as_the_training_set_does(voc_xml, tmp_path):
    blank_image(tmp_path / "test/x.png")
    write(tmp_path / "test_xml/x.xml", voc_xml_of(("dog", 2, 2, 9, 9)))
    test = f"voc_xml:{tmp_path}/test:{tmp_path}/test_xml"
    share_classes(voc_xml, [test])
    assert get_records(test)[0]["annotations"][0]["category_id"] == 1
    assert MetadataCatalog.get(test).thing_classes == ["cat", "dog"]
    write(tmp_path / "test_xml/x.xml", voc_xml_of(("bird", 2, 2, 9, 9)))
    assert "bird" in one_line_error(test)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (voc_xml_of(), "/xml has no object"),
        ("<annotation><object><bndbox/></object></annotation>", "a.xml"),
        ("<annotation><object><name>dog</name></object></annotation>", "a.xml"),
        (voc_xml_of(("dog", 2, 2, 9, 9)).replace("50<", "high<"), "a.xml"),
        (voc_xml_of(("dog", 2, 2, 9, 9)).replace("bndbox", "robndbox"), "'dog' has name, robndbox: expected a bndbox"),
        (voc_xml_of(("dog", 2, 2, 9, 9)).replace("bndbox", "polygon"), "'dog' has name, polygon: expected a bndbox"),
        ("no xml", "a.xml"),
    ],
)
def test_xml_that_is_no_annotation_is_named(tmp_path, content, named):
    blank_image(tmp_path / "images/a.png")
    write(tmp_path / "xml/a.xml", content)
    assert named in one_line_error(f"voc_xml:{tmp_path}/images:{tmp_path}/xml")


def test_a_folder_in_place_of_a_split_is_refused_with_the_kinds_that_have_two_folders(voc_xml):
    for kind in ("voc", "voc_segmentation"):
        line = one_line_error(voc_xml.replace("voc_xml", kind))
        assert "expected the name of a list in FOLDER, not /" in line and "two folders are voc_xml:" in line
    _, images, _ = voc_xml.split(":")
    line = one_line_error(f"voc:{images}:xml")
    assert f"split file {images}/ImageSets/Main/xml.txt not found" in line and "two folders are voc_xml:" in line
    assert "expected voc:FOLDER:SPLIT; images and labels of two folders are voc_xml:" in one_line_error(f"voc:{images}")


def test_labels_are_found_whatever_an_archive_makes_of_their_accents(yolo, tmp_path):
    write(tmp_path / "labels/c u\u0308.txt", ["0 0.5 0.5 1 1"])  # of c ü.png, as a Mac spells it
    assert [len(record["annotations"]) for record in get_records(yolo)] == [2, 1, 1]


@pytest.mark.parametrize("kind", ["yolo", "voc_xml"])
def test_labels_of_other_images_are_only_doubtful_where_some_images_have_none(request, tmp_path, kind, caplog):
    name, folder = request.getfixturevalue(kind), tmp_path / {"yolo": "labels", "voc_xml": "xml"}[kind]
    suffix = next(folder.glob("a.*")).suffix
    write(folder / f"of_the_test_set{suffix}", voc_xml_of(("dog", 1, 1, 9, 9)) if kind == "voc_xml" else "")
    get_records(name)
    assert "1 of 3 files of labels" in caplog.text and "1 of 3 images have none" in caplog.text
    caplog.clear()
    next((tmp_path / "images").glob("*ü.png")).unlink()
    get_records(f"{name}:{tmp_path}/names.txt" if name.count(":") < 3 and kind == "yolo" else name)
    assert not caplog.text


@pytest.mark.parametrize("kind", ["yolo", "voc_xml"])
def test_labels_belong_to_one_image_each_whatever_the_case_of_their_suffix(request, tmp_path, kind, caplog):
    name, folder = request.getfixturevalue(kind), tmp_path / {"yolo": "labels", "voc_xml": "xml"}[kind]
    (labels,) = folder.glob("a.*")
    labels.rename(labels.with_suffix(labels.suffix.upper()))
    write(folder / f"lost{labels.suffix}", voc_xml_of())
    assert len(get_records(name)[0]["annotations"]) == 2
    assert f"{folder}: 1 of 3" in caplog.text and f"lost{labels.suffix}" in caplog.text
    blank_image(tmp_path / "others/z.png")
    assert f"{folder}: 3 of 3" in one_line_error(name.replace("/images", "/others"))
    assert f"{tmp_path}/nothing not found" in one_line_error(name.replace(f":{folder}", f":{tmp_path}/nothing"))
    (tmp_path / "photos").mkdir()
    blank_image(tmp_path / "photos/a.jpg")
    empty = one_line_error(name.replace(f":{folder}", f":{tmp_path}/photos"))
    assert f"{tmp_path}/photos has no file of labels, *{labels.suffix}, but .jpg: expected one for each" in empty
    blank_image(tmp_path / "images/a.jpg")
    message = one_line_error(name)
    assert all(str(place) in message for place in (tmp_path / "images/a.png", tmp_path / "images/a.jpg", folder / "a."))


def test_difficult_objects_are_learned_from_and_scored_only_if_asked(voc_xml, tmp_path):
    file = tmp_path / "xml/a.xml"
    write(file, file.read_text().replace("<bndbox>", "<difficult>1</difficult><bndbox>", 1))
    assert [box["iscrowd"] for box in get_records(voc_xml)[0]["annotations"]] == [1, 0]
    assert [box["iscrowd"] for box in get_records(f"{voc_xml}:with_difficult")[0]["annotations"]] == [0, 0]
    assert "expected with_difficult" in one_line_error(f"{voc_xml}:difficult")


@pytest.mark.parametrize("word", ["", ":with_difficult"])
def test_a_folder_of_images_may_have_a_colon_in_its_name(voc_xml, tmp_path, word):
    (tmp_path / "images").rename(tmp_path / "im:ages")
    assert len(get_records(voc_xml.replace("/images", "/im:ages") + word)) == 3


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (">11</xmin>", ">abc</xmin>", r"a.xml: object 'dog' has xmin 'abc': expected a number of px"),
        ("<xmin>11</xmin>", "", r"a.xml: object 'dog' has xmin '': expected a number of px"),
        ("", "", "a.xml, expected Pascal VOC's XML; of an image that shows nothing remove the file: ParseError"),
    ],
)
def test_a_damaged_xml_file_says_what_was_expected(voc_xml, tmp_path, before, after, message):
    text = (tmp_path / "xml/a.xml").read_text()
    assert before in text
    write(tmp_path / "xml/a.xml", text.replace(before, after) if before else "")
    assert message in one_line_error(voc_xml)


@pytest.mark.parametrize(
    ("text", "ignored"), [(" 1 ", 1), ("\n1\n", 1), ("True", 1), ("0", 0), (" 0", 0), ("", 0), ("Unspecified", 0)]
)
def test_difficult_is_read_with_blanks_and_as_a_word(voc_xml, tmp_path, text, ignored):
    file = tmp_path / "xml/a.xml"
    write(file, file.read_text().replace("<bndbox>", f"<difficult>{text}</difficult><bndbox>", 1))
    assert [box["iscrowd"] for box in get_records(voc_xml)[0]["annotations"]] == [ignored, 0]


def test_what_may_or_may_not_be_difficult_is_refused(voc_xml, tmp_path):
    file = tmp_path / "xml/a.xml"
    write(file, file.read_text().replace("<bndbox>", "<difficult>2</difficult><bndbox>", 1))
    assert f"reading {file}: difficult '2', expected one of unspecified, 0, false, 1, true" in one_line_error(voc_xml)


@pytest.mark.parametrize("to_learn", [True, False])
@pytest.mark.parametrize("layout", ["voc", "voc_xml", "yolo"])
def test_boxes_that_all_stand_twice_are_refused_in_every_layout(layout, to_learn, tmp_path):
    blank_image(tmp_path / "JPEGImages/a.jpg")
    scored = "<difficult>0</difficult><truncated>0</truncated><pose>x</pose>"
    write(
        tmp_path / "Annotations/a.xml",
        voc_xml_of(*[("dog", 1, 11, 60, 40)] * 2).replace("<bndbox>", f"{scored}<bndbox>"),
    )
    write(tmp_path / "labels/a.txt", ["0 0.5 0.5 0.2 0.4"] * 2)
    write(tmp_path / "labels/classes.txt", ["dog"])
    write(tmp_path / "ImageSets/Main/one.txt", ["a"])
    places = {"voc": ":one", "voc_xml": "/JPEGImages:{}/Annotations", "yolo": "/JPEGImages:{}/labels"}
    name = f"{layout}:{tmp_path}{places[layout].format(tmp_path)}"
    assert "1 of 2 boxes" in (line := refusal(inspected, name, to_learn=to_learn)) and "doubles" in line


def test_a_byte_order_mark_is_no_part_of_labels(yolo, voc_xml, tmp_path):
    for file in (tmp_path / "labels/a.txt", tmp_path / "xml/a.xml", tmp_path / "names.txt"):
        write(file, "\ufeff" + file.read_text())
    assert [box["category_id"] for box in get_records(yolo)[0]["annotations"]] == [1, 0]
    assert MetadataCatalog.get(yolo).thing_classes == ["dog", "cat"]
    assert len(get_records(voc_xml)[0]["annotations"]) == 2


def test_boxes_that_begin_at_0_are_warned_of_because_voc_counts_from_1(voc_xml, tmp_path, caplog):
    get_records(voc_xml)
    assert not caplog.text
    write(tmp_path / "xml/a.xml", voc_xml_of(("dog", 0, 6, 30, 40), ("cat", 1, 1, 100, 50)))
    get_records(voc_xml)
    assert "1 of 3 boxes begin at 0" in caplog.text


@pytest.mark.parametrize(("kept", "times"), [(False, 3), (True, 1)])
def test_an_evaluation_reads_files_once_where_kept(voc_xml, tmp_path, monkeypatch, kept, times):
    """Inspection, loader and evaluator ask for the records; of three images two have a file."""
    read = Mock(side_effect=voc_xml_module.read_voc_annotation)
    monkeypatch.setattr(voc_xml_module, "read_voc_annotation", read)
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.NUM_CLASSES", 2, "DATALOADER.NUM_WORKERS", 0])
    cfg.merge_from_list(["DATASETS.TEST", (voc_xml,), "OUTPUT_DIR", str(tmp_path)])
    if kept:
        keep_records()
    inspect_evaluation(cfg)
    assert len(FinetuneTrainer.build_test_loader(cfg, voc_xml).dataset) == 3
    FinetuneTrainer.build_evaluator(cfg, voc_xml)
    assert read.call_count == 2 * times


def test_yolos_labels_of_images_that_show_nothing_are_read(tmp_path):
    for name in ("a", "b"):
        blank_image(tmp_path / f"images/{name}.png")
        write(tmp_path / f"labels/{name}.txt", "")
    write(tmp_path / "labels/classes.txt", ["cat"])
    records = get_records(f"yolo:{tmp_path}/images:{tmp_path}/labels")
    assert [record["annotations"] for record in records] == [[], []]


@pytest.mark.parametrize("kind", ["yolo", "voc_xml"])
def test_labels_below_a_link_to_a_folder_belong_to_their_images(request, tmp_path, kind):
    name, folder = request.getfixturevalue(kind), tmp_path / {"yolo": "labels", "voc_xml": "xml"}[kind]
    before = get_records(name)
    (folder / "below").rename(tmp_path / "elsewhere")
    (folder / "below").symlink_to(tmp_path / "elsewhere")
    assert get_records(name) == before


def test_a_folder_that_cannot_be_listed_is_refused_by_name(voc_xml, tmp_path, monkeypatch):
    scandir = os.scandir

    def forbidden(path: str) -> object:
        if str(path).endswith("below"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    assert f"{tmp_path}/images/below cannot be listed (Permission denied)" in one_line_error(voc_xml)
