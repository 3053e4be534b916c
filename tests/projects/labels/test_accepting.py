"""What is accepted changes entries of the file itself: ids, and all that the check does not know, stay."""

import copy
import csv
import json
import math

import numpy as np
import pytest
from pycocotools.coco import COCO
from trees import blank_image, refused, write

from projects.Labels.accepting import accept
from projects.Labels.labels import Labels, read_labels_of
from projects.Labels.suspects import COLUMNS, among_all, of_label, of_place, write_suspects

SUGGESTED = ("dog", "10 5 30 20", "remove", "cat")  # of three labels, and of a box that nobody has labelled


@pytest.fixture
def content(tmp_path):
    """A file of annotations with much that only its owner knows; one has no area, and is no label."""
    for name in ("a.png", "b.png", "c.png"):
        blank_image(tmp_path / "photos" / name)
    known = {"iscrowd": 0, "area": 77.5, "keypoints": [1, 2, 2], "num_keypoints": 1, "attributes": {"occluded": True}}
    boxes = [(40, 9, [5, 5, 0, 9]), (30, 9, [1, 2, 20, 10]), (50, 5, [40, 2, 20, 10]), (20, 9, [1, 2, 20, 10])]
    images = {30: 700, 20: 300, 40: 700, 50: 700}
    annotations = [
        known | {"id": number, "image_id": images[number], "category_id": category, "bbox": box, "track_id": 7 + number}
        for number, category, box in boxes
    ]
    for box in annotations[1:]:
        x, y, width, height = box["bbox"]
        box["segmentation"] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
    return {
        "info": {"year": 2026},
        "licenses": [{"id": 3, "name": "CC0"}],
        "images": [
            {"id": number, "file_name": name, "width": 100, "height": 50, "license": 3, "date_captured": "today"}
            for number, name in ((700, "b.png"), (300, "a.png"), (500, "c.png"))
        ],
        "annotations": annotations,
        "categories": [{"id": 9, "name": "cat", "supercategory": "animal"}, {"id": 5, "name": "dog", "color": "#fff"}],
    }


def accepted(tmp_path, name: str, labels: Labels) -> dict:
    """What is written where all of SUGGESTED is accepted, of the first labels and of a place in the last image."""
    suspects = [of_label(labels, "odd", n, 0.9, text) for n, text in enumerate(SUGGESTED[:3])]
    suspects.append(of_place(labels, len(labels.records) - 1, labels.boxes[0], 0.9, SUGGESTED[3]))
    write_suspects(tmp_path, suspects, name)
    (count, path) = accept(tmp_path / "suspects.csv", tmp_path)
    assert count == 4
    return json.loads(path.read_text())


def test_what_is_accepted_changes_its_entries_and_all_else_of_the_file_stays(content, tmp_path):
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    labels = read_labels_of(name)  # sorted by the images' ids: 20, then 30 and 50, without 40
    corrected = accepted(tmp_path, name, labels)
    expected = copy.deepcopy(content)
    empty, moved, removed, swapped = expected["annotations"]
    swapped["category_id"] = 5
    moved |= {"bbox": [10, 5, 20, 15], "area": 300}
    moved.pop("segmentation")
    new = {"id": 51, "image_id": 700, "iscrowd": 0, "category_id": 9, "bbox": [1, 2, 20, 10], "area": 200}
    expected["annotations"] = [empty, moved, swapped, new]
    assert corrected == expected and list(corrected) == list(content) and removed["id"] == 50


def test_a_table_with_semicolons_says_so_though_a_name_has_a_comma(content, tmp_path):
    write(tmp_path / "boxes.json", json.dumps(content))
    write_suspects(tmp_path, [], f"coco:{tmp_path}/photos:{tmp_path}/boxes.json")
    write(tmp_path / "accepted.csv", [";".join(COLUMNS), "1;odd;0.9;a,b.png;1 2 3 4;cat;dog"])
    refused("lacks id, kind, .* with commas between", accept, tmp_path / "accepted.csv", tmp_path)


def test_a_table_that_a_spreadsheet_wrote_in_another_code_says_so(content, tmp_path):
    text = json.dumps(content).replace("a.png", "caf\u00e9.png").replace("dog", "L\u00f6we")
    (tmp_path / "photos/a.png").rename(tmp_path / "photos/caf\u00e9.png")
    write(tmp_path / "boxes.json", text)
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    labels = read_labels_of(name)
    write_suspects(tmp_path, [of_label(labels, "swapped", n, 0.9, "L\u00f6we") for n in range(2)], name)
    header, of_name, of_suggestion = (tmp_path / "suspects.csv").read_text(encoding="utf-8").splitlines()
    for line in (of_name, of_suggestion):
        (tmp_path / "saved.csv").write_text(f"{header}\n{line}\n", encoding="cp1252")
        refused("line 2 has .*, which is no text in UTF-8: .* CSV UTF-8", accept, tmp_path / "saved.csv", tmp_path)
    assert accept(tmp_path / "suspects.csv", tmp_path)[0] == 2


def test_a_class_that_is_called_remove_is_neither_taken_nor_removed(content, tmp_path):
    content["categories"][1]["name"] = "remove"
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    labels = read_labels_of(name)
    write_suspects(tmp_path, [of_label(labels, "swapped", 0, 0.9, "remove")], name)
    refused("'remove', which is a class, too: give that another", accept, tmp_path / "suspects.csv", tmp_path)
    write_suspects(tmp_path, [of_place(labels, 0, labels.boxes[0], 0.9, "remove")], name)  # nothing to be removed
    _, path = accept(tmp_path / "suspects.csv", tmp_path)
    assert json.loads(path.read_text())["annotations"][-1]["category_id"] == 5


def test_a_users_own_key_called_remove_stays_and_removes_nothing(content, tmp_path):
    content["annotations"][1]["remove"] = True
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    write_suspects(tmp_path, [of_label(read_labels_of(name), "swapped", 0, 0.9, "dog")], name)
    _, path = accept(tmp_path / "suspects.csv", tmp_path)
    own = json.loads(path.read_text())["annotations"]
    assert len(own) == 4 and [each.get("remove") for each in own] == [None, True, None, None]


@pytest.mark.parametrize("box", ["100 5 130 20", "10 50 30 60", "-9 5 0 20", "5 -9 20 0"])
def test_a_box_outside_its_image_is_refused(content, tmp_path, box):
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    write_suspects(tmp_path, [of_label(read_labels_of(name), "odd", 0, 0.9, box)], name)
    refused("outside its image of 100 x 50 px: expected a box in it", accept, tmp_path / "suspects.csv", tmp_path)


def test_nothing_is_fetched_for_a_list_of_suspects(tmp_path):
    write(tmp_path / "suspects.json", json.dumps({"labels": "shards:http://127.0.0.1:9/x", "suspects": []}))
    refused("nothing is fetched for a file", accept, tmp_path / "suspects.csv", tmp_path)


@pytest.mark.parametrize(
    ("kinds", "suggested"), [(("odd", "swapped"), ("remove", "cat")), (("odd", "odd"), ("5 5 9 9",) * 2)]
)
def test_two_rows_on_one_label_that_say_two_things_are_refused(content, tmp_path, kinds, suggested):
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    labels = read_labels_of(name)
    suspects = [of_label(labels, kind, 1, 0.9, text) for kind, text in zip(kinds, suggested, strict=True)]
    write_suspects(tmp_path, suspects, name)
    refused(
        "line 3 and .*line 2 change the same label of .*: expected one row", accept, tmp_path / "suspects.csv", tmp_path
    )


def test_a_class_and_a_box_of_one_label_are_both_accepted_and_one_new_object_once(content, tmp_path):
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    labels = read_labels_of(name)
    suspects = [of_label(labels, "swapped", 1, 0.9, "dog"), of_label(labels, "loose", 1, 0.9, "10 5 30 20")]
    write_suspects(tmp_path, [*suspects, of_place(labels, 0, labels.boxes[0], 0.9, "cat")], name)
    count, path = accept(tmp_path / "suspects.csv", tmp_path)
    changed = [each for each in json.loads(path.read_text())["annotations"] if each["bbox"] == [10, 5, 20, 15]]
    assert count == 3 and [each["category_id"] for each in changed] == [5]
    header, *rows = (tmp_path / "suspects.csv").read_text().splitlines(keepends=True)
    (tmp_path / "twice.csv").write_text("".join([header, *rows, rows[-1]]))
    refused("change the same label of .*: expected one row", accept, tmp_path / "twice.csv", tmp_path)


def test_an_image_in_which_an_object_was_accepted_is_one_that_somebody_has_looked_at(tmp_path):
    write(tmp_path / "labels/classes.txt", ["cat", "dog"])
    for name in "abc":
        blank_image(tmp_path / f"photos/{name}.png")
    for name in "ac":
        write(tmp_path / f"labels/{name}.txt", ["0 0.2 0.5 0.2 0.4"])
    name = f"yolo:{tmp_path}/photos:{tmp_path}/labels"
    write_suspects(tmp_path, [of_place(read_labels_of(name), 1, np.array([10.0, 5, 30, 20]), 0.9, "dog")], name)
    accept(tmp_path / "suspects.csv", tmp_path)
    images = json.loads((tmp_path / "corrected.json").read_text())["images"]
    (b,) = [each for each in images if each["file_name"].endswith("b.png")]
    assert "without_labels" not in b


OTHERS = {"index": "0", "image": 0.5, "place": True, "file_name": 7, "label": None, "suggestion": ["dog"]}


@pytest.mark.parametrize(
    ("field", "value"), [*OTHERS.items(), ("box", 5), ("box", [1.0, 2.0]), ("box", [math.nan] * 4)]
)
def test_suspects_of_others_with_fields_of_other_types_are_refused(field, value, content, tmp_path):
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    write_suspects(tmp_path, [of_label(read_labels_of(name), "odd", 0, 0.9, "dog")], name)
    listed = json.loads((tmp_path / "suspects.json").read_text())
    listed["suspects"][0][field] = value
    write(tmp_path / "suspects.json", json.dumps(listed))
    message = (
        "suspects.json cannot be read .suspect 1 has a field of another type.: expected the --output of an earlier"
    )
    refused(message, accept, tmp_path / "suspects.csv", tmp_path)


@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_what_was_accepted_and_then_corrected_by_hand_is_not_replaced(layout, content, tmp_path):
    write(tmp_path / "boxes.json", json.dumps(content))
    write(tmp_path / "labels/classes.txt", ["cat", "dog"])
    for name in "abc":
        blank_image(tmp_path / f"photos/{name}.png")
        write(tmp_path / f"labels/{name}.txt", ["0 0.2 0.5 0.2 0.4"])
    name = f"{layout}:{tmp_path}/photos:{tmp_path}/{'labels' if layout == 'yolo' else 'boxes.json'}"
    write_suspects(tmp_path, [of_label(read_labels_of(name), "odd", 0, 0.9, "dog")], name)
    for _ in range(2):
        _, path = accept(tmp_path / "suspects.csv", tmp_path)
    path.write_text("by hand")
    refused(f"{path} has been changed since it was written", accept, tmp_path / "suspects.csv", tmp_path)
    assert path.read_text() == "by hand"


def test_a_label_after_an_image_that_could_not_be_read_is_accepted(content, tmp_path):
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    labels = read_labels_of(name)
    files = labels.files[1:]  # the first label is alone in its image
    readable = labels.of_files(files)
    assert len(readable.classes) == len(labels.classes) - 1
    suspects = [of_label(readable, "odd", 0, 0.9, "remove"), of_place(labels, 1, labels.boxes[0], 0.9, "cat")]
    write_suspects(tmp_path, among_all(suspects, labels, files), name)
    count, path = accept(tmp_path / "suspects.csv", tmp_path)
    before, after = ({each["id"] for each in whole["annotations"]} for whole in (content, json.loads(path.read_text())))
    assert count == 2 and len(before - after) == len(after - before) == 1


def test_labels_in_other_layouts_become_a_file_that_pycocotools_scores(tmp_path):
    for name in ("a.png", "b.png"):
        blank_image(tmp_path / "photos" / name)
    write(tmp_path / "labels/classes.txt", ["cat", "dog"])
    write(tmp_path / "labels/a.txt", ["0 0.2 0.5 0.2 0.4", "1 0.5 0.5 0.2 0.4"])
    write(tmp_path / "labels/b.txt", ["1 0.5 0.5 0.2 0.4", "0 0.1 0.2 0.3 0.2 0.3 0.6 0.1 0.6"])
    name = f"yolo:{tmp_path}/photos:{tmp_path}/labels"
    corrected = accepted(tmp_path, name, read_labels_of(name))
    shown = [(each["image_id"], each["category_id"], each["bbox"]) for each in corrected["annotations"]]
    assert shown == [
        (1, 2, pytest.approx([10, 15, 20, 20])),
        (1, 2, [10, 5, 20, 15]),
        (2, 1, pytest.approx([10, 10, 20, 20])),
        (2, 1, pytest.approx([10, 15, 20, 20])),
    ]
    assert all(each["area"] > 0 for each in corrected["annotations"])
    assert len(COCO(tmp_path / "corrected.json").getAnnIds(areaRng=[1, 1e5])) == 4


def test_boxes_in_shares_of_an_unreadable_image_are_not_written_as_px(tmp_path):
    for name in ("a.png", "b.png"):
        blank_image(tmp_path / "photos" / name)
        write(tmp_path / f"labels/{name[0]}.txt", ["0 0.2 0.5 0.2 0.4", "1 0.5 0.5 0.2 0.4"])
    write(tmp_path / "labels/classes.txt", ["cat", "dog"])
    (tmp_path / "photos/b.png").write_bytes(b"no image")
    name = f"yolo:{tmp_path}/photos:{tmp_path}/labels"
    write_suspects(tmp_path, [of_label(read_labels_of(name), "odd", 0, 0.9, "dog")], name)
    refused("photos/b.png has no size that can be read", accept, tmp_path / "suspects.csv", tmp_path)


def test_rows_of_a_file_without_ids_are_changed_too(content, tmp_path):
    for entry in content["annotations"]:
        del entry["id"]
    write(tmp_path / "boxes.json", json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    corrected = accepted(tmp_path, name, read_labels_of(name))
    assert [each.get("id") for each in corrected["annotations"]] == [None, None, None, 1]
    with open(tmp_path / "suspects.csv", newline="") as file:
        assert [row["suggestion"] for row in csv.DictReader(file)] == list(SUGGESTED)
