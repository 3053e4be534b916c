"""Boxes in the layout of Pascal VOC."""

import pytest

from revisit.data.catalog import get_records
from revisit.errors import UserError

from detectron2.data import MetadataCatalog
from detectron2.structures import BoxMode

ANNOTATION = """<annotation><size><width>60</width><height>40</height><depth>3</depth></size>
<object><name>{name}</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>11</ymin><xmax>60</xmax><ymax>40</ymax></bndbox></object></annotation>"""


@pytest.fixture
def voc(tmp_path):
    """A tree with the images 000001 (a dog) and 000002 (a cat) in the split trainval."""
    root = tmp_path / "VOC2007"
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (root / folder).mkdir(parents=True)
    for name, animal in (("000001", "dog"), ("000002", "cat")):
        (root / "Annotations" / f"{name}.xml").write_text(ANNOTATION.format(name=animal))
        (root / "JPEGImages" / f"{name}.jpg").touch()
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("000001\n000002\n")
    return root


def test_voc_gives_boxes_and_its_twenty_classes(voc):
    name = f"voc:{voc}:trainval"
    dog, cat = get_records(name)
    metadata = MetadataCatalog.get(name)
    assert len(metadata.thing_classes) == 20 and metadata.evaluator_type == "pascal_voc"
    assert (metadata.dirname, metadata.split) == (str(voc), "trainval")
    assert dog["file_name"] == str(voc / "JPEGImages" / "000001.jpg")
    assert (dog["height"], dog["width"]) == (40, 60)
    (annotation,) = dog["annotations"]
    # VOC counts pixels from 1 and includes the last: the box is the lower three quarters of the image.
    assert annotation["bbox"] == [0, 10, 60, 40] and annotation["bbox_mode"] == BoxMode.XYXY_ABS
    classes = [metadata.thing_classes[r["annotations"][0]["category_id"]] for r in (dog, cat)]
    assert classes == ["dog", "cat"]


def test_voc_can_be_named_from_home(voc, monkeypatch):
    monkeypatch.setenv("HOME", str(voc.parent))
    name = "voc:~/VOC2007:trainval"
    assert len(get_records(name)) == 2 and MetadataCatalog.get(name).dirname == str(voc)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("empty", "empty.txt names fewer than two images"),
        ("one", "one.txt names fewer than two images"),
        ("test", "ImageSets/Main/test.txt"),
        ("more", "Annotations/000003.xml"),
        ("zoo", "000004.xml names an object of the class 'zebra', expected one of aeroplane"),
        ("", "expected voc:FOLDER:SPLIT"),
    ],
)
def test_a_split_that_cannot_be_read_is_named(voc, split, message):
    (voc / "Annotations" / "000004.xml").write_text(ANNOTATION.format(name="zebra"))
    for name, content in (("empty", ""), ("one", "000001"), ("more", "000001\n000003\n"), ("zoo", "000001\n000004\n")):
        (voc / "ImageSets" / "Main" / f"{name}.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        get_records(f"voc:{voc}:{split}")
