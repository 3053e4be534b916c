"""Data sets with boxes: what is read from where, as Detectron2 reads it, and what is said of bad files and boxes."""

import json
import logging
from collections.abc import Callable

import numpy as np
import pycocotools.mask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trees import one_line_error, refusal, touch, write

from revisit.data.box_checks import check_masks, inspect_boxes, sum_of_runs
from revisit.data.box_datasets import load_coco, load_voc
from revisit.data.catalog import get_records

from detectron2.data import MetadataCatalog
from detectron2.data.datasets.coco import load_coco_json
from detectron2.data.datasets.pascal_voc import load_voc_instances
from detectron2.structures import BoxMode

ANNOTATION = """<annotation><size><width>60</width><height>40</height><depth>3</depth></size>
<object><name>{name}</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>11</ymin><xmax>60</xmax><ymax>40</ymax></bndbox></object></annotation>"""


@pytest.fixture
def voc(tmp_path):
    """A tree with boxes of the images 000001 (a dog) and 000002 (a cat) in the split trainval."""
    for name, animal in (("000001", "dog"), ("000002", "cat"), ("000004", "zebra")):
        write(tmp_path / f"VOC2007/Annotations/{name}.xml", ANNOTATION.format(name=animal))
        touch(tmp_path / f"VOC2007/JPEGImages/{name}.jpg")
    splits = {"trainval": (1, 2), "empty": (), "more": (1, 3), "zoo": (1, 4)}
    for split, numbers in splits.items():
        write(tmp_path / f"VOC2007/ImageSets/Main/{split}.txt", [f"{number:06d}" for number in numbers])
    return tmp_path / "VOC2007"


@pytest.mark.parametrize("folder", ["{voc}", "~/VOC2007"])
def test_voc_gives_boxes_and_its_twenty_classes(voc, monkeypatch, folder):
    monkeypatch.setenv("HOME", str(voc.parent))
    name = f"voc:{folder.format(voc=voc)}:trainval"
    dog, cat = get_records(name)
    metadata = MetadataCatalog.get(name)
    assert len(metadata.thing_classes) == 20 and metadata.evaluator_type == "pascal_voc"
    assert (metadata.dirname, metadata.split) == (str(voc), "trainval")
    assert dog["file_name"] == str(voc / "JPEGImages/000001.jpg")
    assert (dog["height"], dog["width"]) == (40, 60)
    (annotation,) = dog["annotations"]
    # VOC counts pixels from 1 and includes the last: the box is the lower three quarters of the image.
    assert annotation["bbox"] == [0, 10, 60, 40] and annotation["bbox_mode"] == BoxMode.XYXY_ABS
    classes = [metadata.thing_classes[r["annotations"][0]["category_id"]] for r in (dog, cat)]
    assert classes == ["dog", "cat"]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("empty", "empty.txt is empty"),
        ("test", "ImageSets/Main/test.txt"),
        ("more", "Annotations/000003.xml"),
        ("zoo", "000004.xml names an object of the class 'zebra', expected one of aeroplane"),
        ("zoo", "boxes of other classes: voc_xml:IMAGES:XML_FOLDER"),
    ],
)
def test_a_split_of_boxes_that_cannot_be_read_is_named(voc, split, message):
    assert message in one_line_error(f"voc:{voc}:{split}")


def test_boxes_are_those_that_detectron2_reads(toy_datasets):
    voc, coco = toy_datasets / "toy_scenes/VOC2007", toy_datasets / "toy_scenes/coco"
    classes = tuple(MetadataCatalog.get("toy_voc_test").thing_classes)
    assert load_voc(voc, "test", classes) == load_voc_instances(str(voc), "test", classes)
    files = coco / "val2017", coco / "annotations/instances_val2017.json"
    theirs = load_coco_json(str(files[1]), str(files[0]), "theirs", ["id"])
    assert load_coco(*files, "ours") == theirs and any("segmentation" in a for r in theirs for a in r["annotations"])
    ours, theirs = (MetadataCatalog.get(name).as_dict() for name in ("ours", "theirs"))
    assert ours | {"name": ""} == theirs | {"name": ""}


def test_a_voc_tree_without_sizes_has_those_of_its_images(voc):
    Image.new("RGB", (60, 40)).save(voc / "JPEGImages/000001.jpg")
    file = voc / "Annotations/000001.xml"
    write(file, ANNOTATION.format(name="dog").replace("<width>60</width>", ""))
    assert get_records(f"voc:{voc}:trainval")[0]["width"] == 60
    write(file, ANNOTATION.format(name="dog").replace("60</width>", "wide</width>"))
    assert "has a height of '40' and a width of 'wide'" in one_line_error(f"voc:{voc}:trainval")
    write(file, "<annotation>")
    assert "000001.xml cannot be read" in one_line_error(f"voc:{voc}:trainval")


SIZE = {"width": 60, "height": 40}


@pytest.fixture
def coco(tmp_path) -> Callable[[Callable[[dict], object]], str]:
    """Writes a file of two images and three boxes, changed by a function; returns the name of the data set."""
    for name in ("a", "b"):
        Image.new("RGB", (60, 40)).save(tmp_path / f"{name}.jpg")

    def make(change: Callable[[dict], object] = lambda content: None) -> str:
        boxes = [[1, 2, 10, 20], [30, 5, 10.5, 30], [0, 0, 60, 40]]
        content = {
            "images": [
                {"id": n, "file_name": f"{name}.jpg", "width": 60, "height": 40} for n, name in ((7, "a"), (9, "b"))
            ],
            "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
            "annotations": [{"id": n, "image_id": 7, "category_id": 1, "bbox": box} for n, box in enumerate(boxes, 1)],
        }
        change(content)
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        write(file, json.dumps(content))
        return f"coco:{tmp_path}:{file}"

    return make


def test_a_coco_file_without_sizes_has_those_of_its_upright_images(coco, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    Image.new("RGB", (60, 40)).save(tmp_path / "b.jpg", exif=exif)
    records = get_records(
        coco(lambda content: [image.pop(side) for image in content["images"] for side in ("width", "height")])
    )
    assert [(record["width"], record["height"]) for record in records] == [(60, 40), (40, 60)]


def of(part: str, **values: object) -> Callable[[dict], None]:
    """Changes values in the first entry of a part of a COCO file."""
    return lambda content: content[part][0].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of("annotations", id="1"), """annotations[0] has the id "1": expected an object whose id is a whole number"""),
        (of("annotations", id=2), "annotations[1] has the id 2 of another"),
        (of("categories", id="1"), """categories[0] has the id "1\""""),
        (of("images", id="7"), "ids of images are numbers and texts"),
        (of("images", width="60"), """image 7 has height 40 and width "60": expected pixels"""),
        (of("images", file_name="c.jpg"), "1 of 2 images not found, the first is "),
        (of("images", file_name=3), "image 7 has no file_name"),
        (of("annotations", bbox=[1, 2, 3]), "has the bbox [1, 2, 3]: expected [x, y, width, height] in px"),
        (of("annotations", bbox=[1, 2, "3", 4]), "annotation 1 has the bbox"),
        (of("annotations", category_id=3), "annotation 1 has the category_id 3"),
        (of("annotations", iscrowd=2), "annotation 1 has the iscrowd 2: expected 0 or 1"),
        (of("annotations", segmentation=[[1, 2, float("inf"), 4, 5, 6]]), "annotation 1 has the segmentation"),
        (of("annotations", segmentation={"size": [40, 60], "counts": [3]}), "annotation 1 has the segmentation"),
        (of("annotations", keypoints=[1, 2]), "annotation 1 has the keypoints"),
        (lambda content: content["categories"].clear(), "has no categories"),
        (lambda content: content.update(annotations={}), "expected an object with lists categories, images"),
        (
            lambda content: [a.update(image_id="7") for a in content["annotations"]],
            "3 of 3 annotations are of none of its images: expected image_id to be the id of one, both numbers",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_coco_file_is_named(coco, change, message):
    assert message in one_line_error(coco(change))


def test_annotations_of_other_images_are_left_out_and_counted(coco, caplog):
    records = get_records(coco(of("annotations", image_id=8)))
    assert [len(record["annotations"]) for record in records] == [2, 0]
    assert "1 of 3 annotations are of none of its images, and left out" in caplog.text


def inspected(name: str, to_learn: bool = True) -> list[tuple[int, str]]:
    return inspect_boxes(name, get_records(name), MetadataCatalog.get(name).thing_classes, to_learn=to_learn)


def test_boxes_are_counted_and_doubtful_ones_shown_by_an_example(coco, tmp_path):
    (level, text), *others = inspected(coco(of("annotations", id=0, bbox=[50, 10, 20, 10])))
    assert level == logging.INFO
    assert text.endswith("2 images, 1 of them without boxes; 3 boxes: cat 3, dog 0")
    assert [level for level, _ in others] == [logging.WARNING] * 3
    outside, zero, missing = [text.partition(".json': ")[2] for _, text in others]
    assert (
        outside
        == f"1 of 3 boxes, such as x0, y0, x1, y1 = 50, 10, 70, 20 in {tmp_path}/a.jpg, reach out of their images"
    )
    assert "has the id 0" in zero and missing == "no box of 1 of 2 classes: dog"
    (_, (_, flat), _) = inspected(coco(of("annotations", bbox=[5, 5, 0, 10])))
    assert "1 of 3 boxes" in flat and "without area, left out" in flat


def test_corners_given_as_width_and_height_are_suspected(coco):
    def give_corners(content):
        for annotation, box in zip(
            content["annotations"], ([20, 10, 50, 35], [30, 5, 41, 35], [9, 9, 60, 40]), strict=True
        ):
            annotation["bbox"] = box

    assert (
        "all would fit as x0, y0, x1, y1, where x, y, width, height are expected" in inspected(coco(give_corners))[1][1]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of("annotations", bbox=[1, 2, float("nan"), 4]), "not finite"),
        (of("annotations", bbox=[10, 2, -5, 4]), "such as x0, y0, x1, y1 = 10, 2, 5, 6"),
        (
            lambda content: [a.update(bbox=[0.1, 0.2, 0.5, 0.5]) for a in content["annotations"]],
            "3 of 3 boxes, such as x0, y0, x1, y1 = 0.1, 0.2, 0.6, 0.7",
        ),
        (lambda content: content.pop("annotations"), "has no box: expected annotations to learn from"),
        (lambda content: [a.update(iscrowd=1) for a in content["annotations"]], "has no box but 3 of crowds"),
        (
            lambda content: [image.update(width=40, height=60) for image in content["images"]],
            "a.jpg has 60 x 40 px, its annotation 40 x 60: width and height are swapped",
        ),
    ],
)
def test_boxes_that_cannot_be_meant_are_refused(coco, change, message):
    assert message in refusal(inspected, coco(change))


def test_a_test_set_without_boxes_is_said_to_score_nothing(coco):
    assert "nothing can be scored against it" in inspected(coco(lambda c: c.pop("annotations")), to_learn=False)[1][1]


def test_masks_that_cannot_be_learnt_from_are_refused(coco):
    def check(mask: object, mask_format: str = "bitmask") -> None:
        name = coco(lambda content: [a.update(segmentation=mask) for a in content["annotations"]])
        check_masks(name, get_records(name), mask_format, to_learn=True)

    runs = pycocotools.mask.encode(np.asfortranarray(np.eye(40, 60, dtype=np.uint8)))["counts"].decode()
    check([[0, 0, 4, 0, 4, 4]], "polygon")
    check({"size": [40, 60], "counts": runs})
    assert "without a mask" in refusal(check, None)
    assert "set INPUT.MASK_FORMAT bitmask" in refusal(check, {"size": [40, 60], "counts": runs}, "polygon")
    for wrong in ({"size": [60, 40], "counts": runs}, {"size": [40, 60], "counts": runs[:-1]}):
        assert "do not add up to its 40 x 60 px" in refusal(check, wrong)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=40), st.integers(1, 50))
def test_run_lengths_add_up_to_the_mask(rows, enlarged):
    mask = np.asfortranarray(np.repeat(np.array(rows, np.uint8), enlarged, axis=0))
    assert sum_of_runs(pycocotools.mask.encode(mask)["counts"]) == mask.size
