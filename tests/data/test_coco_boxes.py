"""Boxes in COCO's format: checked, completed, loaded as Detectron2 does, and inspected before a run."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pycocotools.mask
import pytest
from labels import counted, evaluate_exact
from PIL import Image
from trees import logged, one_line_error, refusal, write

from projects.Labels import label_checks
from projects.Labels.box_checks import check_fit, check_masks, inspect_boxes
from revisit.data.loading.finetune_loader import FinetuneLoader
from revisit.data.sources import coco_truth
from revisit.data.sources.catalog import get_records
from revisit.data.sources.coco_boxes import load_coco, load_coco_dict
from revisit.data.sources.coco_truth import run_lengths, scored_coco, true_coco
from revisit.engine.data_checks import inspect_training
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.evaluation.box_evaluators import evaluated

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.data.datasets.coco import load_coco_json


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


def of(part: str, **values: object) -> Callable[[dict], None]:
    """Changes values in the first entry of a part of a COCO file."""
    return lambda content: content[part][0].update(values)


def of_all(part: str, **values: object) -> Callable[[dict], None]:
    return lambda content: [entry.update(values) for entry in content[part]]


ODD_ENTRIES = (
    *({"iscrowd": value} for value in (0, 1, "1", None, True, 2)),
    *({"bbox": [x, 2, 10, 20]} for x in (-3, 55.5, 59.995, 80, float("nan"), 2**30, True, "1")),
    *({"bbox": [3, 4, *sides]} for sides in ((0, 5), (-2, 5), (0.005, 9), (7.5, 9), (7.5,))),
    *({"area": value} for value in (0, 3, 9.999, 10, 264, 265, 900.5, None, "200", float("nan"))),
    *({"segmentation": value} for value in ([], [[1, 2, 11, 2, 11, 22]], {"size": [40, 60], "counts": [2400]})),
    *({"category_id": 3}, {"image_id": 8}, {"ignore": 1}, {"ignore": 0}, {"id": 2}, {"bbox": 4}, {"image_id": []}),
)


@pytest.mark.parametrize("odd", ODD_ENTRIES, ids=str)
def test_boxes_that_are_checked_together_are_meant_as_each_alone(coco, tmp_path, monkeypatch, odd):
    def with_areas(content: dict) -> None:
        areas = (200, 315.0, 2400)
        for entry, area in zip(content["annotations"], areas, strict=True):
            entry.update(area=area, iscrowd=0)
        content["annotations"][0].update(odd)

    content = json.loads(Path(coco(with_areas).rpartition(":")[2]).read_text())

    def meant() -> str:
        try:
            return json.dumps(true_coco(content, tmp_path, "boxes.json"))
        except UserError as error:
            return f"refused: {error}"

    together = meant()
    monkeypatch.setattr(coco_truth, "_stand_as_meant", lambda entries, *_: np.zeros(len(entries), bool))
    assert together == meant()


def test_a_file_of_plain_boxes_is_not_read_one_by_one(coco, monkeypatch):
    name = coco(of_all("annotations", area=210.0, bbox=[1, 2, 10, 20.5], iscrowd=0))
    monkeypatch.setattr(coco_truth, "_annotation", None)
    assert [box["bbox"] for box in get_records(name)[0]["annotations"]] == [[1, 2, 10, 20.5]] * 3


def test_a_dict_is_loaded_as_its_file(toy_datasets):
    images = toy_datasets / "toy_scenes/coco/val2017"
    file = toy_datasets / "toy_scenes/coco/annotations/instances_val2017.json"
    of_file = load_coco(images, file)
    assert of_file == load_coco_dict(json.loads(file.read_text()), images, "a dict")
    assert any("segmentation" in box for record in of_file.records for box in record["annotations"])


def test_a_coco_file_without_sizes_has_those_of_its_upright_images(coco, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    Image.new("RGB", (60, 40)).save(tmp_path / "b.jpg", exif=exif)
    name = coco(lambda content: [image.pop(side) for image in content["images"] for side in ("width", "height")])
    assert [(record["width"], record["height"]) for record in get_records(name)] == [(60, 40), (40, 60)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (of("annotations", id=2), "2 annotations have the same id, 2"),
        (of("images", id=9), "2 images have the same id, 9"),
        (of("images", file_name="./b.jpg"), "2 images have the same file"),
        (of("categories", name="dog"), "2 categories have the same name, 'dog'"),
        (of("categories", name=None), "the category of id 1 has the name None, expected a text"),
        (of("annotations", iscrowd="maybe"), "annotations[0]: iscrowd 'maybe', expected 0 or 1"),
        (of("images", file_name="c.jpg"), "c.jpg"),
        (of("annotations", bbox=[1, 2, 3]), "annotations[0]: bbox"),
        (of("annotations", bbox=[1, 2, "3", 4]), "annotations[0]: bbox"),
        (of("annotations", category_id=3), "annotations[0]: category_id"),
        (of("annotations", segmentation=[[1, 2, float("inf"), 4, 5, 6]]), "annotations[0]: segmentation"),
        (of("annotations", segmentation={"size": [40, 60], "counts": [3]}), "annotations[0]: segmentation"),
        (of("annotations", segmentation={"size": [40], "counts": "3"}), "annotations[0]: "),
        # As Kaggle writes them; runs of more px than the image has; too much to draw, 1.5 kB that pycocotools dies of.
        (of("annotations", segmentation={"size": [40, 60], "counts": "1 3 10 5"}), "annotations[0]: segm"),
        (of("annotations", segmentation={"size": [60, 40], "counts": [2400]}), "expected its image's [40, 60]"),
        (of("annotations", segmentation={"size": [40, 60], "counts": [0, 2401]}), "expected those of 2,400 px"),
        (of("annotations", segmentation=[[0, 0, 9e5, 3] * 80]), "expected an outline of at most 9,600 px"),
        (of("annotations", ignore=1), "annotations[0]: ignore 1, expected iscrowd in its place"),
        (
            of_all("annotations", image_id="7"),
            "annotations have no image_id that is the id of one of images, such as [",
        ),
        (lambda content: content["annotations"].append(3), "annotations[3]: 3, expected an object"),
        (lambda content: content["annotations"].append(None), "annotations[3]: null, expected an object"),
        (lambda content: content["categories"].insert(0, None), "categories[0]: null, expected an object"),
        (lambda content: content["images"].append([]), "images[2]: [], expected an object"),
        (lambda content: content["images"][1].pop("file_name"), "images[1]: file_name is missing"),
        (lambda content: content["categories"][1].pop("id"), "categories[1]: id is missing"),
        (of("images", file_name=None), "images[0]: file_name None, expected a text"),
        (
            of("annotations", segmentation=[[1, 2, 9, 2, 9, 9], [1, 2, 9, 2, 9, 9, 4]]),
            "a part has 7 numbers",
        ),
        (of("annotations", segmentation=[[1, 2, 3]]), "a part has 3 numbers, expected x, y of three points or more"),
        (of("images", file_name="C:\\photos\\a.jpg"), "images, by their names below /"),
        (lambda content: content["categories"].clear(), "expected an object with the lists categories, images and"),
    ],
)
def test_what_is_wrong_in_a_coco_file_is_named(coco, change, named):
    name = coco(change)
    line = one_line_error(name)
    assert named in line and (name.rpartition(":")[2] in line or "not found" in line)


def test_the_folder_and_the_file_are_not_taken_for_each_other(coco):
    kind, images, file = coco().split(":")
    assert f"{images} is a folder: expected coco:FOLDER" in one_line_error(f"{kind}:{file}:{images}")
    Path(file).write_text("hello")
    assert "expected JSON in COCO's format" in one_line_error(f"{kind}:{images}:{file}")


def test_annotations_of_other_images_are_left_out(coco):
    records = get_records(coco(of("annotations", image_id=8)))
    assert [len(record["annotations"]) for record in records] == [2, 0]


def inspected(name: str, to_learn: bool = True) -> list[tuple[int, str]]:
    records = get_records(name)
    return logged(inspect_boxes, name, records, MetadataCatalog.get(name).thing_classes, to_learn=to_learn)


@pytest.mark.parametrize(("leaves_out", "count"), [(True, 1), (False, 2)])
def test_an_epoch_has_the_images_that_are_learned_from(coco, leaves_out, count):
    own = {"DATASETS.TRAIN": f"('{coco()}',)", "MODEL.ROI_HEADS.NUM_CLASSES": 2, "MODEL.DEVICE": "cpu"}
    own["DATALOADER.FILTER_EMPTY_ANNOTATIONS"] = leaves_out
    cfg = make_config("own_images/detection.yaml", [str(word) for pair in own.items() for word in pair])
    assert inspect_training(cfg) == count


def test_boxes_are_counted_and_doubtful_ones_shown_by_an_example(coco, tmp_path):
    (level, text), *others = inspected(coco(of("annotations", bbox=[50, 10, 20, 10])))
    assert level == logging.INFO
    assert "2 images, 1 of them without boxes" in text and text.endswith("3 boxes: cat 3, dog 0")
    assert "FILTER_EMPTY_ANNOTATIONS" in text and "FILTER_EMPTY_ANNOTATIONS" not in inspected(coco(), False)[0][1]
    assert [level for level, _ in others] == [logging.WARNING] * 2
    outside, missing = [text for _, text in others]
    assert f"1 of 3 boxes, such as x0, y0, x1, y1 = 50, 10, 70, 20 in {tmp_path}/a.jpg" in outside
    assert missing.endswith("no box of 1 of 2 classes: dog")
    (_, (_, flat), _) = inspected(coco(of("annotations", bbox=[5, 5, 0, 10])))
    assert "1 of 3 boxes" in flat and "without area" in flat
    (_, crowded), *_ = inspected(coco(of("annotations", iscrowd=1)))
    assert crowded.endswith("; 2 boxes, and 1 of crowds or difficult ones: cat 2, dog 0")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (of("annotations", bbox=[1, 2, float("nan"), 4]), "finite"),
        (of("annotations", bbox=[10, 2, -5, 4]), "such as x0, y0, x1, y1 = 10, 2, 5, 6"),
        (of_all("annotations", bbox=[0.1, 0.2, 0.5, 0.5]), "3 of 3 boxes"),
        (of("annotations", bbox=[0.1, 0.2, 0.5, 0.5]), "1 of 3 boxes, such as x0, y0, x1, y1 = 0.1, 0.2, 0.6, 0.7 in"),
        (of("annotations", bbox=[0.9, 0.8, 0.5, 0.4]), "in the first two pixels, so shares of the image"),  # of centres
        (lambda content: content.pop("annotations"), "no box"),
        (of("annotations", keypoints=5), "annotations[0]: keypoints 5, expected x, y in px and 0, 1 or 2 of each"),
        (of("annotations", keypoints=[1, 2, "a"]), "annotations[0]: keypoints [1, 2, 'a'], expected"),
        (of("annotations", keypoints=[1, 2]), "annotations[0]: keypoints [1, 2], expected"),
        (of("categories", id="1"), "ids of categories are numbers and texts: expected the one or the other"),
        (of("images", file_name="../secret.png"), "'../secret.png' leads out of the folder of images"),
        (of_all("annotations", iscrowd=1), "no box but 3 of crowds"),
        (of_all("images", width=40, height=60), "a.jpg has 60 x 40 px and its annotation 40 x 60 px"),
    ],
)
def test_boxes_that_cannot_be_meant_are_refused(coco, change, problem):
    assert problem in refusal(inspected, coco(change))


def test_keypoints_whose_names_nothing_says_are_refused_before_the_run(coco):
    data = coco(of_all("annotations", keypoints=[4, 4, 2] * 17))
    own = ["DATASETS.TRAIN", f"('{data}',)", "MODEL.KEYPOINT_ON", "True", "MODEL.DEVICE", "cpu"]
    cfg = make_config("detection/coco_faster_rcnn_R50_FPN.yaml", [*own, "MODEL.ROI_HEADS.NUM_CLASSES", "2"])
    assert "names 0 keypoints of 17" in refusal(inspect_training, cfg)
    name_keypoints(data)
    assert inspect_training(cfg) == 1


def name_keypoints(data: str) -> None:
    MetadataCatalog.get(data).set(keypoint_names=[f"point {n}" for n in range(17)], keypoint_flip_map=[])


def learning_keypoints(data: str, *options: object) -> CfgNode:
    own = ["DATASETS.TRAIN", f"('{data}',)", "MODEL.KEYPOINT_ON", True, "MODEL.DEVICE", "cpu", *options]
    return make_config("detection/coco_faster_rcnn_R50_FPN.yaml", [*map(str, own), "MODEL.ROI_HEADS.NUM_CLASSES", "2"])


@pytest.mark.parametrize("points", [None, [], [4, 4, 2] * 16])
def test_objects_without_their_keypoints_are_refused_before_the_run(coco, points):
    def leave_out(content: dict) -> None:
        of_all("annotations", keypoints=[4, 4, 2] * 17)(content)
        content["annotations"][1]["keypoints"] = points

    data = coco(leave_out)
    name_keypoints(data)
    line = refusal(inspect_training, learning_keypoints(data))
    assert "1 of 3 boxes" in line and "51 numbers; or MODEL.KEYPOINT_ON False" in line


@pytest.mark.parametrize("least", [1, 3, 4])
def test_epochs_count_the_images_whose_keypoints_are_enough_to_learn_from(coco, least):
    data = coco(of_all("annotations", keypoints=[4, 4, 2] + [0, 0, 0] * 16))  # 3 in the one image
    name_keypoints(data)
    cfg = learning_keypoints(data, "MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE", least)
    assert inspect_training(cfg) == (least <= 3)
    if least <= 3:
        loader = FinetuneLoader(cfg, mapper=lambda record: record)
        assert loader.images[0]["count"] == 1


def check_learned(name: str, *options: object) -> list[str]:
    """What a training on boxes warns of."""
    own = ["DATASETS.TRAIN", f"('{name}',)", "MODEL.ROI_HEADS.NUM_CLASSES", 2, "MODEL.DEVICE", "cpu", *options]
    cfg = make_config("own_images/detection.yaml", list(map(str, own)))
    return [text for level, text in logged(inspect_training, cfg) if level > logging.INFO]


@pytest.mark.parametrize("names", [("left", "right"), ("RightHand", "LeftHand"), ("turn left", "turn right")])
def test_classes_that_a_flip_exchanges_are_said(coco, names):
    def rename(content: dict) -> None:
        for category, name in zip(content["categories"], names, strict=True):
            category["name"] = name

    data, flip = coco(rename), "INPUT.RANDOM_FLIP horizontal shows one as the other"
    assert sum(flip in text for text in check_learned(data)) == 1
    assert not any(flip in text for text in check_learned(data, "INPUT.RANDOM_FLIP", "none"))
    assert not any(flip in text for text in check_learned(coco(of("categories", name="left"))))


def test_boxes_of_which_a_resize_leaves_few_pixels_are_said(coco):
    def shrink(content: dict) -> None:
        for n, box in enumerate(content["annotations"]):
            box["bbox"] = [5 * n, 2, 0.7, 20]  # of an image of 40 px, which is shown at 320

    tiny = coco(shrink)
    said = "3 of 3 boxes of data set"
    sizes = ("INPUT.MIN_SIZE_TRAIN", "(40,)", "INPUT.MAX_SIZE_TRAIN", 80)
    assert any(said in text and "less than 4 px" in text for text in check_learned(tiny, *sizes))
    assert not any("less than 4 px" in text for text in check_learned(tiny))
    for kind, size in {"absolute": (4, 4), "absolute_range": (4, 9), "relative": (0.1, 0.1)}.items():
        part = ("INPUT.CROP.ENABLED", True, "INPUT.CROP.TYPE", kind, "INPUT.CROP.SIZE", size)
        assert not any("less than 4 px" in text for text in check_learned(tiny, *sizes, *part))


def test_boxes_out_of_their_images_are_taken_for_corners_only_where_they_are_many(coco):
    def add(count: int) -> Callable[[dict], None]:
        def change(content: dict) -> None:
            [*others, box] = [{**content["annotations"][0], "id": n, "bbox": [n, n, 9, 9]} for n in range(count)]
            content["annotations"] = [*others, box | {"bbox": [50, 10, 20, 10]}]

        return change

    few, many = ([text for _, text in inspected(coco(add(count))) if "reach out" in text] for count in (20, 5))
    assert [text.endswith("where x, y, width, height are expected?") for text in (*few, *many)] == [False, True]


def test_records_of_other_code_need_no_size(coco):
    name = coco(lambda content: None)
    own = ["DATASETS.TRAIN", f"('{name}',)", "MODEL.ROI_HEADS.NUM_CLASSES", "2", "MODEL.DEVICE", "cpu"]
    cfg = make_config("own_images/detection.yaml", own)
    sides = ("height", "width")
    records = [{key: value for key, value in record.items() if key not in sides} for record in get_records(name)]
    label_checks.boxes(cfg, name, records, to_learn=True)


def test_a_test_set_without_boxes_scores_nothing(coco):
    notes = inspected(coco(lambda content: content.pop("annotations")), to_learn=False)
    assert [level for level, _ in notes] == [logging.INFO, logging.WARNING] and "no box" in notes[1][1]


def test_masks_that_cannot_be_learnt_from_are_refused(coco):
    def check(mask: object, mask_format: str = "bitmask") -> None:
        name = coco(of_all("annotations", segmentation=mask))
        check_masks(name, get_records(name), mask_format, to_learn=True)

    runs = pycocotools.mask.encode(np.asfortranarray(np.eye(40, 60, dtype=np.uint8)))["counts"].decode()
    check([[0, 0, 4, 0, 4, 4]], "polygon")
    check({"size": [40, 60], "counts": runs})
    slanting, nearly = [[5, 5, 15, 15, 25, 25]], [[5, 5, 15, 15.02, 25, 25]]
    for nothing in (None, [], {}, "", [[]], [[0, 0, 4, 4]], [0, 0, 4, 4], [[5, 0, 5, 4, 5, 8]], slanting, nearly):
        message = refusal(check, nothing)
        assert (
            "has no segmentation" in message or "3 of 3 boxes have no mask that can be drawn, such as [1, 2" in message
        )
    assert "INPUT.MASK_FORMAT bitmask" in refusal(check, {"size": [40, 60], "counts": runs}, "polygon")


def outline(box: list[float], shift: float = 0) -> list[list[float]]:
    x, y, width, height = box
    return [[x + shift, y, x + shift + width, y, x + shift + width, y + height, x + shift, y + height]]


@pytest.mark.parametrize(
    ("mask_of", "is_refused", "count"),
    [
        (outline, False, 0),
        (lambda box: outline(box, 1.5), False, 0),
        (lambda box: outline(box, 2.5) if box[2] < 60 else outline(box), False, 2),
        (lambda box: [[v / 60 for v in outline(box)[0]]], True, 3),  # in shares of 1
        (lambda box: outline(box, 59), True, 3),
        (lambda box: [*outline(box), [1, 1, 3, 1, 3, 3], [57, 37, 59, 37, 59, 39]], True, 2),  # parts far away
        (lambda box: {"size": [40, 60], "counts": [0, 40, 2360]}, True, 3),
    ],
)
def test_masks_that_lie_elsewhere_than_their_boxes_are_warned_of_or_if_most_do_refused(
    coco, mask_of, is_refused, count, caplog
):
    def change(content: dict) -> None:
        for box in content["annotations"]:
            box["segmentation"] = mask_of(box["bbox"])

    name = coco(change)
    if is_refused:
        said = refusal(check_fit, name, get_records(name))
    else:
        check_fit(name, get_records(name))
        said = caplog.text
    assert (f"{count} of 3 boxes have a mask that lies elsewhere, such as [1, 2, 10, 20] in " in said) == bool(count)


SQUARE = [[10, 5, 30, 5, 30, 25, 10, 25]]  # 400 px^2


@pytest.mark.parametrize(
    ("area", "mask", "expected"),
    [(1.0, SQUARE, 400), (1.0, None, 400), (0.17, None, 400), (2400, None, 400), (2400, SQUARE, 400)]
    + [(200, None, 200), (470, None, 470), (18, [[10, 5, 12, 5, 30, 25, 29, 25]], 18), (15, SQUARE, 400)],
)
def test_an_area_is_that_of_a_mask_or_a_box_and_another_one_is_said(coco, area, mask, expected):
    """A thin mask has 30 px, which is about as many as are stated."""
    name = coco(of("annotations", bbox=[10, 5, 20, 20], area=area, segmentation=mask))
    truth = scored_coco(json.loads(Path(name.rpartition(":")[2]).read_text()), Path(name.split(":")[1]), "boxes")
    assert truth["annotations"][0]["area"] == expected
    get_records(name)
    said = "1 of 3 boxes state an area that neither their mask nor their box has" in "".join(left_out(name))
    assert said == (expected != area)


def test_keypoints_are_scored_whose_file_does_not_count_them(coco):
    name = coco(of_all("annotations", keypoints=[4, 4, 2] + [0, 0, 0] * 16))
    truth = scored_coco(json.loads(Path(name.rpartition(":")[2]).read_text()), Path(name.split(":")[1]), "boxes")
    assert [each["num_keypoints"] for each in truth["annotations"]] == [1, 1, 1]
    results = {**truth, "annotations": [annotation | {"score": 0.9} for annotation in truth["annotations"]]}
    assert evaluated(truth, results, "keypoints").stats[0] == 1


def test_masks_of_images_too_large_to_be_decoded_are_read_and_never_drawn(coco):
    """Run lengths of 400 million px, of which a square of 30 x 20 is set, and its outline."""
    side, column = 20_000, [30, 19_970]
    counts = [side * 7000 + 100, *column * 20]
    counts[-1] = side**2 - sum(counts[:-1])
    outline = [[7000, 100, 7020, 100, 7020, 130, 7000, 130]]

    def large(content: dict, width: int = side) -> None:
        content["images"][0].update(height=side, width=width)
        masks = (outline, {"size": [side, width], "counts": counts}, None)
        for each, mask in zip(content["annotations"], masks, strict=True):
            each |= {"bbox": [7000, 100, 20, 30], "segmentation": mask}

    record, _ = get_records(coco(large))
    assert (record["height"], record["width"]) == (side, side) and len(record["annotations"]) == 3
    drawn, runs, boxed = record["annotations"]
    assert pycocotools.mask.area(runs["segmentation"]) == 600 and "segmentation" not in boxed
    check_fit("large", [{**record, "annotations": [drawn, runs]}])
    name = coco(large)
    truth = scored_coco(json.loads(Path(name.rpartition(":")[2]).read_text()), Path(name.split(":")[1]), "boxes")
    assert [each["area"] for each in truth["annotations"]] == [600, 600, 600]
    more = "annotations[0]: masks of an image of 300,000 x 20,000 px: expected at most 4,294,967,295 px"
    assert more in one_line_error(coco(lambda content: large(content, 300_000)))
    boxes_alone = coco(lambda content: [large(content, 300_000), of_all("annotations", segmentation=None)(content)])
    assert len(get_records(boxes_alone)[0]["annotations"]) == 3


def left_out(name: str) -> list[str]:
    return MetadataCatalog.get(name).left_out


def test_objects_of_each_size_are_scored_by_their_boxes_where_all_areas_are_1(coco, tmp_path):
    Image.new("RGB", (320, 320)).save(tmp_path / "a.jpg")

    def change(content: dict) -> None:
        content["images"] = [{"id": 7, "file_name": "a.jpg", "width": 320, "height": 320}]
        for box, side in zip(content["annotations"], (25, 75, 190), strict=True):
            box |= {"bbox": [100 - side / 2, 100 - side / 2, side, side], "area": 1.0}

    name = coco(change)
    own = ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path), "DATASETS.TEST", f"('{name}',)"]
    cfg = make_config("own_images/detection.yaml", [*own, "MODEL.ROI_HEADS.NUM_CLASSES", "2"])
    get_records(name)
    _, scores = evaluate_exact(cfg, name)
    assert [scores["bbox"][size] for size in ("APs", "APm", "APl")] == pytest.approx([100, 100, 100])


def test_run_lengths_are_those_that_pycocotools_writes():
    rng = np.random.default_rng(0)
    for share in (0, 0.01, 0.5, 1):
        mask = np.asfortranarray(rng.random((90, 400)) < share, dtype=np.uint8)
        runs = run_lengths(pycocotools.mask.encode(mask)["counts"].decode())
        assert np.array_equal(np.repeat(np.arange(len(runs)) % 2, runs), mask.ravel(order="F"))


def test_records_are_those_of_detectron2s_loader(coco):
    """Also in the order of their fields, by which a resumed run compares them."""

    def change(content: dict) -> None:
        outline, runs = [[0, 0, 4, 0, 4, 4], [1, 1, 2, 2]], {"size": [40, 60], "counts": [3, 5, 2392]}
        extra = {"iscrowd": 1, "segmentation": runs, "keypoints": [1, 2, 2, 0, 0, 0], "num_keypoints": 1, "area": 5}
        content["annotations"][0] |= extra
        content["annotations"][1] |= {"segmentation": outline, "area": 7.5}
        content["images"].reverse()

    name = coco(change)
    file = name.rpartition(":")[2]
    expected = load_coco_json(file, str(Path(file).parent), "of_detectron2")
    assert json.dumps(get_records(name), default=str) == json.dumps(expected, default=str)


def test_names_are_texts_and_files_are_found_by_either_slash(coco, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jpg").rename(tmp_path / "sub/a.jpg")
    name = coco(lambda content: (of("images", file_name="sub\\a.jpg")(content), of("categories", name=1)(content)))
    assert get_records(name)[0]["file_name"] == f"{tmp_path}/sub/a.jpg"
    assert MetadataCatalog.get(name).thing_classes == ["1", "dog"]


@pytest.mark.parametrize("spelled", ["cafe\u0301 1.jpg", "caf\xe9 1.jpg ", "caf\xe9%201.jpg", "caf%C3%A9 1.jpg"])
def test_files_are_found_whatever_others_make_of_their_names(coco, tmp_path, spelled):
    (tmp_path / "a.jpg").rename(tmp_path / "caf\xe9 1.jpg")
    assert get_records(coco(of("images", file_name=spelled)))[0]["file_name"] == f"{tmp_path}/caf\xe9 1.jpg"


def test_label_studio_exports_files_by_their_addresses_below_its_root(coco, tmp_path):
    (tmp_path / "a.jpg").rename(tmp_path / "a b.jpg")
    for root in ("", f"{tmp_path}".lstrip("/") + "/"):
        name = coco(of("images", file_name=f"/data/local-files/?d={root}a%20b.jpg"))
        assert get_records(name)[0]["file_name"] == f"{tmp_path}/a b.jpg"


@pytest.mark.parametrize("others", [0, 20])
def test_boxes_that_stand_there_twice_are_refused_or_if_few_warned_of(coco, others):
    def change(content: dict) -> None:
        box = content["annotations"][0]
        content["annotations"] += [box | {"id": 4}, box | {"id": 5, "category_id": 2}]
        content["annotations"] += [box | {"id": 6 + n, "bbox": [n, 30, 9, 9]} for n in range(others)]

    if not others:
        assert "1 of 5 boxes, such as x0, y0, x1, y1 = 1, 2, 11, 22" in refusal(inspected, coco(change))
        return
    _, (level, line) = inspected(coco(change))
    assert level == logging.WARNING and "1 of 25 boxes" in line and "twice" in line


@pytest.mark.parametrize(("shift", "count"), [((1, 0), 3), ((1, 1), 3), ((0, 0, 1, 1), 3), ((9, 9), 0)])
def test_boxes_that_lie_a_pixel_from_another_of_their_class_are_warned_of(coco, shift, count):
    def change(content: dict) -> None:
        sized = [box | {"bbox": [*box["bbox"][:2], 20, 20]} for box in content["annotations"]]
        moved = [np.add(box["bbox"], (*shift, 0, 0)[:4]).tolist() for box in sized]
        again = [box | {"id": 9 + n, "bbox": bbox} for n, (box, bbox) in enumerate(zip(sized, moved, strict=True))]
        content["annotations"] = [*sized, *again, *({**box, "id": box["id"] + 30, "category_id": 2} for box in again)]

    said = [line for _, line in inspected(coco(change)) if "nearly twice" in line]
    assert len(said) == bool(count) and all(f"{count} of 9 boxes, such as" in line for line in said)


def test_a_box_at_the_first_pixel_among_many_is_only_doubtful(coco):
    more = [{"id": 4 + n, "image_id": 7, "category_id": 1, "bbox": [3 * n, 30, 9, 9]} for n in range(12)]
    name = coco(lambda content: (of("annotations", bbox=[0, 0, 1, 1])(content), content["annotations"].extend(more)))
    assert any("1 of 15 boxes" in line and "are these shares of the image?" in line for _, line in inspected(name))


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (of_all("annotations", iscrowd=None), 3),
        (of("annotations", iscrowd=None), 3),
        (of("annotations", iscrowd=True), 2),
        (of("annotations", iscrowd="1"), 2),
        (of("annotations", iscrowd="0"), 3),
        (of("annotations", bbox=[5, 5, 0, 10]), 2),
        (of("annotations", bbox=[5, 5, 8, 0]), 2),
        (of("annotations", bbox=[60, 5, 8, 8]), 2),  # right of its image
        (of("annotations", area=0), 3),
        (of_all("annotations", segmentation=[[]]), 3),
        (of_all("annotations", segmentation=""), 3),
        (of("annotations", segmentation=[[10, 12, 40, 36]]), 3),
        (of("annotations", segmentation={}), 3),
        (of("annotations", image_id=8), 2),
    ],
)
def test_summary_mapper_and_evaluator_count_the_same_boxes(coco, tmp_path, change, count):
    """An exact detector of them scores 100."""
    name = coco(change)
    own = {"DATASETS.TRAIN": f"('{name}',)", "MODEL.ROI_HEADS.NUM_CLASSES": 2, "MODEL.DEVICE": "cpu"}
    cfg = make_config("own_images/detection.yaml", [str(word) for pair in own.items() for word in pair])
    assert counted(cfg, name, tmp_path) == (count, count, count, pytest.approx(100))


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jpg",
        "%2e%2e/secret.jpg",
        "a\\..\\..\\secret.jpg",
        " ../secret.jpg",
        "/data/local-files/?d=../secret.jpg",
    ],
)
def test_no_spelling_of_a_name_leads_out_of_the_folder_of_images(tmp_path, name):
    (tmp_path / "images/a").mkdir(parents=True)
    Image.new("RGB", (60, 40)).save(tmp_path / "secret.jpg")
    content = {"images": [{"id": 1, "file_name": name}], "categories": [{"id": 1, "name": "cat"}]}
    assert "leads out of the folder of images" in refusal(load_coco_dict, content, tmp_path / "images", "a.json")
