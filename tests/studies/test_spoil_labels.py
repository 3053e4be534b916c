"""Labels that are spoiled in known ways, and how many of them come first."""

import json

import numpy as np
import pytest
from commands import one_line_error, run

from projects.Labels.accepting import accept
from projects.Labels.labels import read_labels_of
from projects.Labels.suspects import Suspect, write_suspects
from studies.label_check.spoiling import MOVED, STRETCHED, Spoiled, precision, read_spoiled, spoil


@pytest.fixture
def name(write_pictures, tmp_path):
    """A data set of 10 images of 200 x 300 px with four boxes of three classes each."""
    pictures = write_pictures(tmp_path / "photos", 10, size=(200, 300))
    rng = np.random.default_rng(0)
    images = [{"id": n, "file_name": path.name, "height": 200, "width": 300} for n, path in enumerate(pictures)]
    annotations = []
    for number in range(40):
        corner, sides = rng.uniform(60, 100, 2).round(1).tolist(), rng.uniform(20, 30, 2).round(1).tolist()
        place = {"image_id": number // 4, "category_id": 1 + number % 3, "bbox": [*corner, *sides]}
        annotations.append({"id": number + 1, "iscrowd": 0, "area": 1, **place})
    categories = [{"id": n, "name": name} for n, name in enumerate(("ant", "bee", "cat"), start=1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"


def test_every_way_of_spoiling_does_what_it_says(name, tmp_path):
    labels = read_labels_of(name)
    wrong = spoil(labels, 0.25, 3, tmp_path)
    assert read_spoiled(tmp_path) == wrong and len(wrong) == 40
    result = read_labels_of(f"coco:{tmp_path}/photos:{tmp_path}/data_set.json")
    assert len(result.classes) == 30
    for index, label in enumerate(wrong):  # in the order of the data set
        before, now = labels.boxes[index].astype(float), np.array(label.box)
        same_class = label.label == labels.class_names[labels.classes[index]]
        assert same_class == (label.kind != "swapped")
        if label.kind in ("swapped", "missing"):
            assert now == pytest.approx(before)
        if label.kind == "shifted":
            assert now[2:] - now[:2] == pytest.approx(before[2:] - before[:2])
            assert MOVED[0] <= _iou(before, now) <= MOVED[1]
        if label.kind == "odd":
            factors = (now[2:] - now[:2]) / (before[2:] - before[:2])
            changed = [factor for factor in factors if abs(factor - 1) > 1e-6]
            assert changed and all(STRETCHED[0] <= max(f, 1 / f) <= STRETCHED[1] for f in changed)
    assert spoil(labels, 0.25, 3, tmp_path) == wrong != spoil(labels, 0.25, 4, tmp_path)


def _iou(one, other):
    across = max(0, min(one[2], other[2]) - max(one[0], other[0]))
    down = max(0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return across * down / (areas - across * down)


def test_precision_counts_a_missing_box_once_and_what_was_spoiled_otherwise():
    box, other = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]
    wrong = [
        Spoiled("missing", "a", box, "ant", "ant"),
        Spoiled("missing", "b", box, "ant", "ant"),
        Spoiled("odd", "a", other, "ant", "50 50 60 70"),
    ]
    suspects = [
        {"kind": "missing", "file_name": "a", "box": [0, 0, 10, 11]},
        {"kind": "missing", "file_name": "a", "box": [0, 0, 11, 10]},
        {"kind": "missing", "file_name": "b", "box": box},
        {"kind": "swapped", "file_name": "a", "box": other},
    ]
    assert precision(suspects, wrong, "missing")["this way"] == 0.5
    swap = Spoiled("swapped", "c", box, "bee", "ant")
    assert precision(suspects, [*wrong, swap], "swapped") == {
        "this way": 0,
        "any way": 1,
        "spoiled": 1,
        "listed": 1,
    }


def test_the_script_spoils_and_scores(name, tmp_path):
    script = "python studies/label_check/spoil_labels.py"
    text = run(f"{script} --data {name} --share 0.1 --output {tmp_path}/spoiled", tmp_path)
    assert "16 of 40 labels are spoiled" in text
    place = ("index", "image", "place", "suspicion", "suggestion")
    wrong = [label._asdict() | dict.fromkeys(place, 0) for label in read_spoiled(tmp_path / "spoiled")]
    listed = [label | {"id": n} for n, label in enumerate(wrong, start=1)]
    (tmp_path / "suspects.json").write_text(json.dumps({"labels": name, "suspects": listed}))
    scored = run(f"{script} --suspects {tmp_path} --output {tmp_path}/spoiled", tmp_path)
    assert scored.count("| 4 | 4 | 1.000 | 1.000 |") == 4
    needs = one_line_error(f"{script} --data {name} --accepted a.csv --output x", tmp_path)
    assert "--accepted needs the --suspects" in needs
    assert "expected up to 0.25" in one_line_error(f"{script} --data {name} --share 0.3 --output x", tmp_path)
    content = json.loads((tmp_path / "boxes.json").read_text())
    content["annotations"] = [each for each in content["annotations"] if each["category_id"] == 1]
    content["categories"] = content["categories"][:1]
    (tmp_path / "ants.json").write_text(json.dumps(content))
    ants = name.replace("boxes.json", "ants.json")
    classes = one_line_error(f"{script} --data {ants} --output {tmp_path}/x", tmp_path)
    assert "expected boxes of two classes or more" in classes
    none = one_line_error(f"{script} --suspects {tmp_path} --output {tmp_path}/photos", tmp_path)
    assert "expected the --output of this script" in none


def test_what_is_accepted_puts_the_first_suspects_right(name, tmp_path):
    labels = read_labels_of(name)
    (tmp_path / "spoiled").mkdir()
    spoil(labels, 0.25, 3, tmp_path / "spoiled")
    spoiled_name = f"coco:{tmp_path}/photos:{tmp_path}/spoiled/data_set.json"
    script = f"python studies/label_check/spoil_labels.py --suspects {tmp_path} --output {tmp_path}/spoiled"
    suspects = suspects_of(read_labels_of(spoiled_name), read_spoiled(tmp_path / "spoiled"))
    write_suspects(tmp_path, suspects, spoiled_name)
    run(f"{script} --accepted {tmp_path}/accepted.csv", tmp_path)
    assert accept(tmp_path / "accepted.csv", tmp_path)[0] == 40
    corrected = read_labels_of(f"coco:{tmp_path}/photos:{tmp_path}/corrected.json")
    assert _sorted(corrected) == _sorted(labels)


def suspects_of(labels, spoiled):
    """Each spoiled label as the check lists it, and as many right ones that come later in the list."""
    places = {tuple(box.round(1).tolist()): n for n, box in enumerate(labels.boxes.astype(float))}
    suspects = []
    for wrong in spoiled:
        index = -1 if wrong.kind == "missing" else places[tuple(np.float32(wrong.box).astype(float).round(1).tolist())]
        image = labels.images[index] if index >= 0 else _image_of(labels, wrong.file_name)
        place = labels.places[index] if index >= 0 else -1
        box, label = np.round(wrong.box, 2).tolist(), "" if index < 0 else wrong.label
        suspects.append(Suspect(wrong.kind, 0.9, index, int(image), int(place), wrong.file_name, box, label, ""))
    right = [suspect._replace(suspicion=0.5, file_name="another.jpg") for suspect in suspects]
    return suspects + right


def _image_of(labels, file_name):
    return [record["file_name"] for record in labels.records].index(file_name)


def _sorted(labels):
    boxes = labels.boxes.astype(float).round(1).tolist()
    return sorted(zip(labels.files.tolist(), labels.classes.tolist(), boxes, strict=True))
