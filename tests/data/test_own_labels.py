"""Labels as people have them: a folder of XML files, a folder of masks, YOLO's without a third part."""

import numpy as np
import pytest
from PIL import Image
from trees import refusal, write

from revisit.data.catalog import get_records
from revisit.data.class_names import share_classes

from detectron2.data import MetadataCatalog


def image(path, size=(50, 100)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(path)


def xml(*objects: tuple, size: tuple[int, int] | None = (50, 100)) -> list[str]:
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>" if size else ""
    box = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"
    things = (f"<object><name>{name}</name>{box.format(*sides_)}</object>" for name, *sides_ in objects)
    return [f"<annotation>{sides}{''.join(things)}</annotation>"]


@pytest.fixture
def labelled(tmp_path):
    """Three images, one of them in a folder below and one without a file."""
    for name in ("a.png", "below/b c.png", "ü.png"):
        image(tmp_path / "images" / name)
    write(tmp_path / "xml/a.xml", xml(("dog", 11, 6, 30, 40), (" cat ", 1, 1, 100, 50)))
    write(tmp_path / "xml/below/b c.xml", xml(("dog", 2, 2, 9, 9), size=None))
    return f"voc_xml:{tmp_path}/images:{tmp_path}/xml"


def test_boxes_of_xml_files_lie_where_they_say_and_classes_are_the_names_in_them(labelled, tmp_path):
    a, b, none = get_records(labelled)
    assert MetadataCatalog.get(labelled).thing_classes == ["cat", "dog"]
    assert [found["category_id"] for found in a["annotations"]] == [1, 0]
    assert a["annotations"][0]["bbox"] == [10.0, 5.0, 30.0, 40.0]  # VOC counts pixels from 1
    assert (b["height"], b["width"], b["image_id"]) == (50, 100, 1)  # the image's own, where the file has none
    assert len(b["annotations"]) == 1 and none["annotations"] == []


def test_a_test_set_that_shows_fewer_classes_counts_them_as_the_training_set_does(labelled, tmp_path):
    image(tmp_path / "test/x.png")
    write(tmp_path / "test_xml/x.xml", xml(("dog", 2, 2, 9, 9)))
    test = f"voc_xml:{tmp_path}/test:{tmp_path}/test_xml"
    share_classes(labelled, [test])
    assert get_records(test)[0]["annotations"][0]["category_id"] == 1
    assert MetadataCatalog.get(test).thing_classes == ["cat", "dog"]
    write(tmp_path / "test_xml/x.xml", xml(("bird", 2, 2, 9, 9)))
    assert "only the first has bird" in refusal(get_records, test)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (xml(), "has no object in 1 XML files"),
        (["<annotation><object><bndbox/></object></annotation>"], "a.xml has an object without a name"),
        (["<annotation><object><name>dog</name></object></annotation>"], "a.xml has a dog without a box"),
        (["no xml"], "a.xml cannot be read"),
    ],
)
def test_xml_that_is_no_annotation_is_named(tmp_path, content, message):
    image(tmp_path / "images/a.png")
    write(tmp_path / "xml/a.xml", content)
    assert message in refusal(get_records, f"voc_xml:{tmp_path}/images:{tmp_path}/xml")


def test_xml_files_of_other_images_are_refused_and_a_few_are_warned_of(labelled, tmp_path, caplog):
    write(tmp_path / "xml/lost.xml", xml())
    get_records(labelled)
    assert "1 of 3 files of labels belong to no image" in caplog.text and "lost.xml" in caplog.text
    image(tmp_path / "others/z.png")
    assert "expected the same names, and the same folders" in refusal(
        get_records, f"voc_xml:{tmp_path}/others:{tmp_path}/xml"
    )
    assert "folder of XML files" in refusal(get_records, f"voc_xml:{tmp_path}/images:{tmp_path}/nothing")


def mask(path, ids: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.resize(np.array(ids, np.uint8), (50, 100))).save(path)


@pytest.fixture
def masks(tmp_path):
    for name in ("a.jpg", "below/b.png"):
        image(tmp_path / "images" / name)
    mask(tmp_path / "masks/a.png", [0, 2, 255])
    mask(tmp_path / "masks/below/b.png", [1])
    return f"masks:{tmp_path}/images:{tmp_path}/masks"


def test_masks_lie_at_the_places_of_their_images_and_the_highest_id_says_how_many_classes(masks, tmp_path, caplog):
    image(tmp_path / "images/c.png")
    a, b = get_records(masks)
    assert (a["sem_seg_file_name"], b["image_id"]) == (f"{tmp_path}/masks/a.png", "b")
    metadata = MetadataCatalog.get(masks)
    assert metadata.stuff_classes == ["class 0", "class 1", "class 2"]
    assert (metadata.evaluator_type, metadata.ignore_label) == ("sem_seg", 255)
    assert "1 of 3 images" in caplog.text and "left out, such as c.png" in caplog.text


@pytest.mark.parametrize("place", ["masks/classes.txt", "classes.txt", "names/mine.yaml"])
def test_names_of_masks_come_from_a_file_beside_them_or_the_third_part(masks, tmp_path, place):
    lines = ["names: [floor, wall, door]"] if place.endswith("yaml") else ["floor", "wall", "door"]
    write(tmp_path / place, lines)
    name = masks + (f":{tmp_path}/{place}" if place.startswith("names") else "")
    get_records(name)
    assert MetadataCatalog.get(name).stuff_classes == ["floor", "wall", "door"]


def test_more_classes_than_masks_have_ids_are_refused(masks, tmp_path):
    write(tmp_path / "classes.txt", [f"class {n}" for n in range(256)])
    assert "classes.txt has 256 classes: expected at most 255" in refusal(get_records, masks)
    write(tmp_path / "classes.txt", [f"class {n}" for n in range(255)])
    assert len(get_records(masks)) == 2


def test_masks_of_other_images_are_refused(masks, tmp_path):
    image(tmp_path / "others/z.png")
    line = refusal(get_records, f"masks:{tmp_path}/others:{tmp_path}/masks")
    assert "1 of 1 images below" in line and "expected the same names, and the same folders" in line
    assert "folder of masks" in refusal(get_records, f"masks:{tmp_path}/images:{tmp_path}/nothing")


@pytest.mark.parametrize("place", ["labels/classes.txt", "classes.txt", "data.yaml"])
def test_yolos_names_lie_with_the_labels_where_no_third_part_says(tmp_path, place):
    image(tmp_path / "images/a.png")
    write(tmp_path / "labels/a.txt", ["1 0.5 0.5 0.2 0.4"])
    name = f"yolo:{tmp_path}/images:{tmp_path}/labels"
    assert "class names unknown: none of " in refusal(get_records, name)
    write(tmp_path / place, ["names: [dog, cat]"] if place.endswith("yaml") else ["dog", "cat"])
    assert get_records(name)[0]["annotations"][0]["category_id"] == 1
