"""Boxes of a tree of Pascal VOC: where they lie, which classes they have, and how AP is taken."""

import pytest
import torch
from labels import inspected
from trees import blank_image, logged, one_line_error, refusal, touch, voc_xml_of, write

from revisit.config import add_revisit_config
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import NOT_SCORED, as_scored, fingerprint
from revisit.data.sources.voc_boxes import load_voc, voc_metadata
from revisit.engine.data_checks import inspect_evaluation
from revisit.evaluation.box_evaluators import VOCEvaluator

from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog
from detectron2.data.datasets.pascal_voc import load_voc_instances
from detectron2.evaluation import DatasetEvaluator, PascalVOCDetectionEvaluator, pascal_voc_evaluation
from detectron2.structures import Boxes, Instances


@pytest.fixture
def voc(tmp_path):
    """A tree with the image 000001 (a dog) in the split one, with 000002 (a cat) in trainval, with a zebra in zoo."""
    for name, animal in (("000001", "dog"), ("000002", "cat"), ("000004", "zebra")):
        write(tmp_path / f"Annotations/{name}.xml", voc_xml_of((animal, 1, 11, 60, 40)))
        touch(tmp_path / f"JPEGImages/{name}.jpg")
    for split, numbers in {"one": [1], "trainval": [1, 2], "empty": [], "more": [1, 3], "zoo": [1, 4]}.items():
        write(tmp_path / f"ImageSets/Main/{split}.txt", [f"{number:06d}" for number in numbers])
    return f"voc:{tmp_path}"


def test_difficult_objects_are_learned_from_and_records_are_known_again(voc, tmp_path):
    (record,) = get_records(f"{voc}:one")
    file = tmp_path / "Annotations/000001.xml"
    file.write_text(file.read_text().replace("<bndbox>", "<difficult>1</difficult><bndbox>", 1))
    (difficult,) = load_voc(tmp_path, "one")
    (box,), (marked,) = record["annotations"], difficult["annotations"]
    assert marked == box | {NOT_SCORED: True} and as_scored(marked)["iscrowd"] and as_scored(box) == box
    assert fingerprint([record]) == fingerprint([difficult])


def test_voc_gives_boxes_and_its_twenty_classes(voc, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    records, metadata = get_records("voc:~:trainval"), MetadataCatalog.get("voc:~:trainval")
    assert records == load_voc_instances(str(tmp_path), "trainval", metadata.thing_classes)
    assert len(metadata.thing_classes) == 20 and metadata.evaluator_type == "pascal_voc"
    assert (metadata.dirname, metadata.split) == (str(tmp_path), "trainval")


@pytest.mark.parametrize(
    ("split", "named"),
    [("empty", "empty.txt"), ("test", "test.txt"), ("more", "000003.xml"), ("zoo", "000004.xml")],
)
def test_a_split_of_boxes_that_cannot_be_read_is_named(voc, split, named):
    assert named in one_line_error(f"{voc}:{split}")


@pytest.mark.parametrize(
    ("place", "written", "year", "is_known"),
    [("VOC2012", "", 2012, True), ("VOC2007", "", 2007, True), ("VOC2009", "", 2007, True), ("mine", "", 2007, False)]
    + [("mine", "VOC2012", 2012, True), ("VOC2007", "VOC2012", 2012, True), ("VOC2010/VOC2007", "VOC2010", 2012, True)]
    + [("VOC2012", "JPEGImages", 2012, True), ("mine", "VOC2007 VOC2012", 2007, False)],
)
def test_the_year_of_a_voc_tree_says_how_ap_is_taken(voc, tmp_path, place, written, year, is_known):
    tree = tmp_path / place
    for number, word in enumerate(written.split() or [""], start=1):
        file = tmp_path / f"Annotations/00000{number}.xml"
        write(file, file.read_text().replace("<annotation>", f"<annotation><folder>{word}</folder>"))
    for folder in ("Annotations", "ImageSets", "JPEGImages"):
        write(tree / "x")
        (tmp_path / folder).rename(tree / folder)
    metadata = voc_metadata(tree, "one" if len(written.split()) < 2 else "trainval")
    assert (metadata["year"], metadata["year_is_known"]) == (year, is_known)


def ap50(evaluator: DatasetEvaluator, record: dict, classes: list[int]) -> float:
    """AP50 of one box of each class, all of them around the first dog."""
    box, count = torch.tensor([[0.0, 10, 60, 40]]), len(classes)
    predicted = Instances((50, 100), pred_boxes=Boxes(box.repeat(count, 1)), scores=torch.ones(count))
    predicted.pred_classes = torch.tensor(classes)
    evaluator.reset()
    evaluator.process([record], [{"instances": predicted}])
    return evaluator.evaluate()["bbox"]["AP50"]


@pytest.mark.parametrize(("year", "ap"), [("VOC2007", 600 / 11), ("VOC2012", 50.0), ("", 600 / 11)])
def test_half_of_the_dogs_without_a_mistake_score_by_the_year(voc, tmp_path, year, ap, recwarn, caplog):
    """Recall 0.5 at precision 1: 6 of the 11 points of recall, 0 to 0.5, or half of the area."""
    things = voc_xml_of(("dog", 1, 11, 60, 40), ("dog", 1, 1, 9, 9)).replace(
        "<bndbox>", "<pose/><truncated>0</truncated><difficult>0</difficult><bndbox>"
    )
    write(tmp_path / "Annotations/000001.xml", things.replace("<annotation>", f"<annotation><folder>{year}</folder>"))
    blank_image(tmp_path / "JPEGImages/000001.jpg")
    name = f"{voc}:one"
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.ROI_HEADS.NUM_CLASSES", 20, "DATASETS.TEST", (name,)])
    notes = logged(inspect_evaluation, cfg)
    assert any("11 points of recall" in text for _, text in notes) == (not year)
    (record,) = get_records(name)
    number = record["annotations"][0]["category_id"]
    # One of 20 classes; the others have no truth, and AP 0. An aeroplane is found where none is.
    assert ap50(PascalVOCDetectionEvaluator(name), record, [number]) == pytest.approx(ap / 20, rel=1e-6)
    for classes in ([number], [number, 0]):
        assert ap50(VOCEvaluator(name, cfg), record, classes) == pytest.approx(ap / 20, rel=1e-6)
    assert f"shows 19 of 20 classes nowhere, and each counts as AP 0: AP of the others is {ap:.2f}" in caplog.text
    write(tmp_path / "Annotations/000001.xml", things.replace("<name>dog", "<name> dog", 1))
    pascal_voc_evaluation.parse_rec.cache_clear()
    assert "class ' dog'" in refusal(inspect_evaluation, cfg)


def test_an_image_with_a_blank_in_its_name_is_refused_before_a_training(voc, tmp_path):
    write(tmp_path / "ImageSets/Main/one.txt", ["000001", "my dog"])
    blank_image(tmp_path / "JPEGImages/000001.jpg")
    write(tmp_path / "Annotations/000001.xml", voc_xml_of(("dog", 1, 11, 60, 40)))
    line = one_line_error(f"{voc}:one")
    assert "ImageSets/Main/one.txt: image 'my dog' has a blank in its name" in line and "expected voc_xml:" in line


def test_a_voc_tree_without_sizes_has_those_of_its_images(voc, tmp_path):
    blank_image(tmp_path / "JPEGImages/000001.jpg", (40, 60))
    write(tmp_path / "Annotations/000001.xml", voc_xml_of(("dog", 1, 11, 60, 40), size=None))
    assert get_records(f"{voc}:one")[0]["width"] == 60


def test_a_size_may_be_written_with_a_point_as_corners_may(voc, tmp_path):
    write(tmp_path / "Annotations/000001.xml", voc_xml_of(("dog", 1, 11, 60.5, 40), size=(50.0, 100.0)))
    assert get_records(f"{voc}:one")[0]["width"] == 100


def test_a_byte_order_mark_of_a_voc_split_is_read_and_before_scoring_refused(voc, tmp_path):
    split = tmp_path / "ImageSets/Main/one.txt"
    write(split, "\ufeff" + split.read_text())
    blank_image(tmp_path / "JPEGImages/000001.jpg")
    inspected(f"{voc}:one", to_learn=True)
    assert f"{split} begins with a byte order mark" in refusal(inspected, f"{voc}:one", to_learn=False)
