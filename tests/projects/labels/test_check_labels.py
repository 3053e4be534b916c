"""Votes, deviations and findings against plain loops; spoiled labels come first; what is accepted is corrected; the
command."""

import csv
import json
import math
import re
import runpy
import statistics
import sys
from argparse import Namespace

import cv2
import numpy as np
import pytest
import torch
from commands import ROOT, one_line_error, run

from projects.Labels import checking
from projects.Labels.detections import how_good, judged, missing, read_detections, shifted
from projects.Labels.half_detectors import half_jobs
from projects.Labels.labels import read_labels_of
from projects.Labels.sizes import at_edge, odd_suspicion, oddness
from projects.Labels.suspects import among_all, odd, of_label, of_place, ordered
from projects.Labels.votes import TEMPERATURE, by_ridge, vote
from projects.Rows.embedders import embedder_of
from projects.Rows.leave_image_out import STRENGTH, votes_of
from projects.Rows.regions import boxes_of
from revisit.errors import UserError
from revisit.evaluation.nearest import nearest_others
from revisit.jobs.commands import cost_of
from studies.label_check.spoiling import KINDS, precision, read_spoiled, spoil

COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A data set of 24 pictures with six rectangles each, whose colour is their class; its folder."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(24):
        picture = rng.integers(90, 130, (128, 192, 3), dtype=np.uint8)
        images.append({"id": number, "file_name": f"{number:02d}.png", "height": 128, "width": 192})
        for cell in range(6):
            category = int(rng.integers(3))
            x, y = 64 * (cell % 3) + int(rng.integers(6, 20)), 64 * (cell // 3) + int(rng.integers(6, 20))
            width, height = rng.integers(32, 38, 2).tolist()
            picture[y : y + height, x : x + width] = list(COLOURS.values())[category]
            place = {"image_id": number, "category_id": category + 1, "bbox": [x, y, width, height]}
            annotations.append({"id": len(annotations) + 1, "area": width * height, "iscrowd": 0, **place})
        cv2.imwrite(str(folder / "photos" / images[-1]["file_name"]), picture[..., ::-1])
    categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS, start=1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder


def name_of(folder, file="boxes.json"):
    return f"coco:{folder}/photos:{folder}/{file}"


def found_in(folder, labels, target, drop=()):
    """Write what a detector that is nearly right finds, by the boxes of the labels; a folder of tools/predict.py."""
    target.mkdir(exist_ok=True)
    images = [{"id": n, "file_name": record["file_name"]} for n, record in enumerate(labels.records)]
    categories = [{"id": n, "name": name} for n, name in enumerate(labels.class_names, start=1)]
    objects = []
    for n in range(len(labels.classes)):
        if n in drop:
            continue
        x0, y0, x1, y1 = labels.boxes[n].tolist()
        box = [x0 + 1, y0 - 1, x1 - x0, y1 - y0]
        category = int(labels.classes[n]) + 1
        objects.append({"image_id": int(labels.images[n]), "category_id": category, "bbox": box, "score": 0.9})
    (target / "images.json").write_text(json.dumps({"images": images, "categories": categories, "annotations": []}))
    (target / "predictions.json").write_text(json.dumps(objects))
    return target / "predictions.json"


@pytest.mark.parametrize("one_of_each", [False, True])
def test_the_support_of_a_class_is_that_of_a_plain_loop(one_of_each):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    classes, images = rng.integers(4, size=60), np.arange(60) if one_of_each else rng.integers(9, size=60)
    votes = vote(rows, classes, images, k=7)
    x = rows.astype(np.float64)
    standard = np.concatenate([(x - x.mean(axis=0)) / x.std(axis=0), np.ones((60, 1))], axis=1)
    for n in range(60):
        others = [m for m in range(60) if images[m] != images[n]]
        cosines = {m: sum(float(a) * float(b) for a, b in zip(rows[n], rows[m], strict=True)) for m in others}
        nearest = sorted(others, key=lambda m: -cosines[m])[:7]
        weights = {m: math.exp(cosines[m] / TEMPERATURE) for m in nearest}
        design, support = standard[others], []
        for number in range(4):
            share = sum(weight for m, weight in weights.items() if classes[m] == number) / sum(weights.values())
            target = np.array([1.0 if classes[m] == number else -1.0 for m in others])
            penalty = STRENGTH * 60 * np.eye(9)
            ridge = standard[n] @ np.linalg.solve(design.T @ design + penalty, design.T @ target)
            support.append((share + min(max((ridge + 1) / 2, 0), 1)) / 2)
        assert votes.nearest[n].tolist() == nearest
        assert votes.support[n] == pytest.approx(support, abs=1e-5)
        own = support[classes[n]]
        best = max(value for number, value in enumerate(support) if number != classes[n])
        assert votes.suspicion(classes)[n] == pytest.approx((1 + best - own) / 2, abs=1e-5)


def test_fewer_rows_than_voters_are_all_others():
    similar = nearest_others(np.eye(3, dtype=np.float32), 20, np.array([0, 0, 1]))
    weights = similar.cosines.softmax(dim=1)
    assert votes_of(similar, weights, torch.arange(3)).tolist() == [
        [0, 0, 1],
        [0, 0, 1],
        [0.5, 0.5, 0],
    ]


def test_labels_of_one_class_are_not_suspected():
    rows = np.eye(4, dtype=np.float32)
    assert (vote(rows, np.zeros(4, int), np.arange(4)).suspicion(np.zeros(4, int)) <= 0.5).all()


def test_oddness_is_that_of_a_plain_loop():
    rng = np.random.default_rng(2)
    sides = np.exp(rng.normal(3, 0.3, (50, 2)))
    boxes = np.concatenate([rng.uniform(0, 50, (50, 2)), np.zeros((50, 2))], axis=1)
    boxes[:, 2:] = boxes[:, :2] + sides
    classes = np.array([0] * 30 + [1] * 17 + [2] * 3)
    odd_by = oddness(boxes, classes)
    for n in range(50):
        own = [m for m in range(50) if classes[m] == classes[n]]
        z = []
        for value in (lambda w, h: math.log(math.sqrt(w * h)), lambda w, h: math.log(w / h)):
            values = {m: value(*sides[m]) for m in own}
            middle = statistics.median(values.values())
            spread = 1.4826 * statistics.median(abs(v - middle) for v in values.values())
            z.append(abs(values[n] - middle) / max(spread, 0.05))
        assert odd_by[n] == pytest.approx(max(z) if len(own) >= 8 else 0)
    assert odd_suspicion(np.array([0.0, 3.5, 7.0])).tolist() == [0, 0, 0.5]
    edges = at_edge(np.array([[1, 9, 20, 20], [9, 9, 20, 39], [9, 9, 20, 20]]), np.array([40] * 3), np.array([40] * 3))
    assert edges.tolist() == [True, True, False]


def test_missing_and_shifted_boxes_are_those_of_a_plain_reading(world, tmp_path):
    labels = read_labels_of(name_of(world))
    results = read_detections([found_in(world, labels, tmp_path)], labels.class_names)
    images = judged(labels, results)
    assert missing(images, labels) == [] and len(images) == 24
    assert [suspect for suspect in shifted(images, labels) if suspect.suspicion > 0.2] == []
    content = json.loads((world / "boxes.json").read_text())
    gone = content["annotations"].pop(7)
    x, y, width, height = content["annotations"][20]["bbox"]
    content["annotations"][20]["bbox"] = [x + 14, y, width, height]
    (world / "spoiled.json").write_text(json.dumps(content))
    spoiled = read_labels_of(name_of(world, "spoiled.json"))
    images = judged(spoiled, results)
    (lost,) = missing(images, spoiled)
    x0, y0, w, h = gone["bbox"]
    assert lost.image == gone["image_id"] and lost.suspicion == 0.9
    assert lost.box == [x0 + 1, y0 - 1, x0 + 1 + w, y0 - 1 + h]
    assert lost.suggestion == list(COLOURS)[gone["category_id"] - 1] and lost.label == ""
    by_suspicion = ordered(shifted(images, spoiled), 5)
    first = by_suspicion[0]
    across, down = width - 13, height - 1
    overlap = across * down / (2 * width * height - across * down)
    assert first.box[0] == x + 14 and first.suspicion == pytest.approx(0.9 * (1 - overlap), abs=1e-5)
    assert first.suggestion == f"{x + 1:.1f} {y - 1:.1f} {x + 1 + width:.1f} {y - 1 + height:.1f}"


def test_how_good_detectors_are_is_said_by_what_they_find_of_the_labels(world, tmp_path):
    """Of 144 boxes they miss 36; of what they find all is labelled, up to one that lies on no box."""
    labels = read_labels_of(name_of(world))
    path = found_in(world, labels, tmp_path, drop=range(36))
    path.write_text(json.dumps([*json.loads(path.read_text()), *[far(n) for n in range(12)]]))
    text = how_good(judged(labels, read_detections([path], labels.class_names)))
    assert "find 75% of the labelled boxes of 24 images, and 90% of what they find is labelled so" in text
    assert text.endswith("scores from 0.90 on)") and re.search(r"AP50 \d\d\.\d,", text)
    path.write_text(json.dumps([far(0)]))
    assert "find none" in how_good(judged(labels, read_detections([path], labels.class_names)))


def far(image):
    """A detection on no box."""
    return {"image_id": image, "category_id": 1, "bbox": [1.0, 1.0, 3.0, 3.0], "score": 0.95}


def test_what_there_is_to_do_is_said_before_it_begins(world, weights, tmp_path):
    (tmp_path / "data_set.json").write_bytes((world / "boxes.json").read_bytes())
    detections = found_in(world, read_labels_of(name_of(world)), tmp_path / "found")
    _, text = checked(world, weights, tmp_path, f"--boxes {detections}")
    first, *others = text.splitlines()
    assert re.match(r"looking at 24 images with 144 labels, about \d+\.\d minutes for one process$", first)
    assert any(line.startswith("the detectors find 100% of the labelled boxes of 24 images") for line in others)
    jobs = half_jobs(name_of(world), read_labels_of(name_of(world)), "own_images/detection.yaml", (), tmp_path)
    assert all(re.match(r"[\d,]+ iterations of \d+ images", cost_of(job)) for job in jobs) and len(jobs) == 2


def test_a_detection_of_two_classes_is_one_missing_box(world, tmp_path):
    labels = read_labels_of(name_of(world))
    path = found_in(world, labels, tmp_path)
    twice = {"image_id": 0, "bbox": [1.0, 1.0, 3.0, 3.0], "score": 0.5}
    again = {**twice, "bbox": [1.0, 1.0, 3.0, 3.5], "score": 0.2}
    objects = [{**twice, "category_id": 1}, {**again, "category_id": 2}, {**again, "category_id": 1, "score": 0.1}]
    path.write_text(json.dumps(objects))
    suspects = missing(judged(labels, read_detections([path], labels.class_names)), labels)
    assert [(suspect.suggestion, suspect.suspicion) for suspect in suspects] == [("red", pytest.approx(0.7))]


@pytest.mark.parametrize(("iscrowd", "count"), [(0, 1), (1, 0)])
def test_what_lies_in_a_crowd_of_another_class_is_not_missing(world, tmp_path, iscrowd, count):
    content = json.loads((world / "boxes.json").read_text())
    place = {"image_id": 0, "category_id": 3, "bbox": [150, 90, 42, 38], "area": 1596}
    crowd = {"id": 1000, "iscrowd": iscrowd, **place}
    (tmp_path / "boxes.json").write_text(json.dumps({**content, "annotations": [crowd, *content["annotations"][6:]]}))
    labels = read_labels_of(f"coco:{world}/photos:{tmp_path}/boxes.json")
    path = found_in(world, labels, tmp_path)
    path.write_text(json.dumps([{"image_id": 0, "category_id": 1, "bbox": [160, 95, 14, 14], "score": 0.5}]))
    assert len(missing(judged(labels, read_detections([path], labels.class_names)), labels)) == count


def checked(world, weights, folder, more="", expect=0):
    """The command's output folder, for the labels in ``folder``/data_set.json."""
    words = f"--weights {weights} --data {name_of(world, 'boxes.json').rpartition(':')[0]}:{folder}/data_set.json"
    text = run(
        f"python tools/check_labels.py {words} --short-side 128 --readers 0 --output {folder}/out {more}", folder
    )
    return folder / "out", text


@pytest.fixture(scope="module")
def spoiled(world, weights, tmp_path_factory):
    """A folder with spoiled labels and what the command says of them, with the detections of one that knows."""
    folder = tmp_path_factory.mktemp("spoiled")
    labels = read_labels_of(name_of(world))
    spoil(labels, 0.05, 1, folder)
    detections = found_in(world, labels, folder / "found")
    checked(world, weights, folder, f"--boxes {detections}")
    return folder


def listed_in(folder):
    return json.loads((folder / "out/suspects.json").read_text())["suspects"]


def test_labels_that_were_spoiled_come_first(spoiled):
    wrong = read_spoiled(spoiled)
    assert [sum(suspect.kind == kind for suspect in wrong) for kind in KINDS] == [7, 7, 7, 7]
    shares = {kind: precision(listed_in(spoiled), wrong, kind) for kind in KINDS}
    assert [shares[kind]["this way"] for kind in ("swapped", "missing")] == [1, 1], shares
    assert [shares[kind]["any way"] > 0.7 for kind in ("shifted", "odd")] == [True, True], shares


def test_the_list_the_table_the_sheet_and_the_page_agree(spoiled):
    listed = listed_in(spoiled)
    suspicions = [suspect["suspicion"] for suspect in listed]
    assert suspicions == sorted(suspicions, reverse=True) and [suspect["id"] for suspect in listed] == [
        *range(1, len(listed) + 1)
    ]
    with open(spoiled / "out/suspects.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["label"], row["suggestion"]) for row in rows] == [
        (suspect["kind"], suspect["label"], suspect["suggestion"]) for suspect in listed
    ]
    page = (spoiled / "out/suspects.html").read_text()
    assert page.count("<img ") == page.count("data:image/webp") == len(listed)
    assert "default-src 'none'" in page and not re.search(r"(src|href)=\"(?!data:)", page)
    picture = cv2.imread(str(spoiled / "out/suspects.png"))
    assert picture.shape[1] > 6 * 112 and picture.std() > 10


def accepted_file(folder, chosen, **changed):
    """A copy of the rows of suspects.csv with these ids, perhaps with another cell."""
    with open(folder / "out/suspects.csv", newline="") as file:
        rows = [row | changed for row in csv.DictReader(file) if int(row["id"]) in chosen]
    path = folder / "accepted.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys() if rows else ["id"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def boxes_in(name):
    """By file: class and corners of every box."""
    labels = read_labels_of(name)
    lines = zip(labels.files.tolist(), labels.classes.tolist(), labels.boxes.round(1).tolist(), strict=True)
    return sorted((file, labels.class_names[number], tuple(box)) for file, number, box in lines)


def test_what_is_accepted_is_corrected_and_nothing_else(world, spoiled):
    before = (spoiled / "data_set.json").read_bytes()
    listed = {suspect["id"]: suspect for suspect in listed_in(spoiled)}
    by_kind = {kind: next(suspect for suspect in listed.values() if suspect["kind"] == kind) for kind in KINDS}
    chosen = {by_kind[kind]["id"] for kind in ("swapped", "missing", "shifted")}
    path = accepted_file(spoiled, chosen)
    text = run(f"python tools/check_labels.py --table {path} --output {spoiled}/out", spoiled)
    assert "3 corrections are in" in text and (spoiled / "data_set.json").read_bytes() == before
    old = boxes_in(f"coco:{world}/photos:{spoiled}/data_set.json")
    new = boxes_in(f"coco:{world}/photos:{spoiled}/out/corrected.json")
    gone, come = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    swap, lost, moved = (by_kind[kind] for kind in ("swapped", "missing", "shifted"))
    assert len(new) == len(old) + 1 and len(gone) == 2 and len(come) == 3
    assert {line[:2] for line in come} == {
        (swap["file_name"], swap["suggestion"]),
        (lost["file_name"], lost["suggestion"]),
        (moved["file_name"], moved["label"]),
    }
    corner = " ".join(f"{side:.1f}" for side in next(box for _, label, box in come if label == moved["label"])[:2])
    assert corner in {" ".join(suspect["suggestion"].split()[:2]) for suspect in listed.values()} | {
        " ".join(f"{side:.1f}" for side in suspect["box"][:2]) for suspect in (swap, lost)
    }


def test_suggestions_may_be_edited(world, spoiled):
    odd_one = next(suspect for suspect in listed_in(spoiled) if suspect["kind"] == "odd")
    whole = f"coco:{world}/photos:{spoiled}/out/corrected.json"
    counts = []
    for suggestion in ("remove", "1 2 30.5 40"):
        path = accepted_file(spoiled, {odd_one["id"]}, suggestion=suggestion)
        run(f"python tools/check_labels.py --table {path} --output {spoiled}/out", spoiled)
        counts.append(len(boxes_in(whole)))
    assert counts[1] == counts[0] + 1
    assert (odd_one["file_name"], odd_one["label"], (1.0, 2.0, 30.5, 40.0)) in boxes_in(whole)


def test_rows_that_cannot_be_accepted_are_refused_in_one_line(spoiled):
    accept = f"python tools/check_labels.py --output {spoiled}/out --table"
    odd_one = next(suspect for suspect in listed_in(spoiled) if suspect["kind"] == "odd")["id"]
    for changed, message in (
        ({"id": "9999"}, "row '9999' is none of suspects.json"),
        ({"label": "violet"}, f"row '{odd_one}' is none of suspects.json: expected a row of its suspects.csv"),
        ({}, "line 2: the suggestion is '', expected a class, a box as x0 y0 x1 y1 or the word remove"),
        ({"suggestion": "30 2 1 40"}, "the suggestion is '30 2 1 40', expected a class"),
    ):
        assert message in one_line_error(f"{accept} {accepted_file(spoiled, {odd_one}, **changed)}", spoiled)
    assert "lacks kind, suspicion" in one_line_error(f"{accept} {accepted_file(spoiled, {})}", spoiled)
    assert "cannot be read" in one_line_error(f"{accept} {spoiled}/none.csv", spoiled)
    elsewhere = f"python tools/check_labels.py --output {spoiled}/found --table {spoiled}/accepted.csv"
    assert "expected the --output of an earlier call with --data" in one_line_error(elsewhere, spoiled)


def test_labels_that_have_changed_since_are_checked_again(spoiled):
    swap = next(suspect for suspect in listed_in(spoiled) if suspect["kind"] == "swapped")["id"]
    accept = f"python tools/check_labels.py --table {accepted_file(spoiled, {swap})} --output {spoiled}/out"
    before = (spoiled / "data_set.json").read_bytes()
    content = json.loads(before)
    del content["annotations"][0]
    (spoiled / "data_set.json").write_text(json.dumps(content))
    line = one_line_error(accept, spoiled)
    (spoiled / "data_set.json").write_bytes(before)
    assert "have changed since they were checked" in line and "corrections are in" in run(accept, spoiled)


def test_names_are_escaped_and_masks_stay(world, weights, tmp_path):
    content = json.loads((world / "boxes.json").read_text())
    content["categories"][0]["name"] = "<b>red & co</b>"
    for suspect in content["annotations"]:
        x, y, width, height = suspect["bbox"]
        suspect["segmentation"] = [[x, y, x + width, y, x + width, y + height]]
    content["annotations"][0]["category_id"] = 1 + content["annotations"][0]["category_id"] % 3
    (tmp_path / "data_set.json").write_text(json.dumps(content))
    output, text = checked(world, weights, tmp_path)
    page = (output / "suspects.html").read_text()
    assert "<b>" not in page and "&lt;b&gt;red &amp; co&lt;/b&gt;" in page
    swap = next(suspect for suspect in listed_in(tmp_path) if suspect["kind"] == "swapped")["id"]
    run(f"python tools/check_labels.py --table {accepted_file(tmp_path, {swap})} --output {output}", tmp_path)
    corrected = json.loads((output / "corrected.json").read_text())
    assert all(suspect["segmentation"] for suspect in corrected["annotations"])
    again = run(f"python tools/check_labels.py {words_of(world, weights, tmp_path)}", tmp_path)
    assert "is there already" in again  # the rows are not computed again


def test_labels_of_relative_names_are_found_in_their_table(world, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(world)
    data = "coco:photos:boxes.json"
    taken = {"weights": weights, "size": 224, "stride": 8, "short_side": 128, "device": ""}
    args = Namespace(data=data, output=tmp_path, readers=0, **taken)
    labels, places = read_labels_of(data), boxes_of(data)
    embedder = embedder_of(checking._options(args, "box"), labels.records)
    looked = checking._look(labels, places, args, embedder)
    (again,) = among_all([of_label(looked.labels, "odd", 7, 0.9, "")], labels, looked.table.files)
    assert again.index == 7 and again.file_name == "photos/01.png"
    (near,) = checking._near_new([of_place(labels, 3, labels.boxes[0], 0.9, "red")], looked.table, embedder)
    assert str(world / "photos/03.png") not in looked.table.files[near].tolist()


def words_of(world, weights, folder):
    labels = f"coco:{world}/photos:{folder}/data_set.json"
    return f"--weights {weights} --data {labels} --short-side 128 --readers 0 --output {folder}/out"


def test_images_in_folders_of_classes_are_checked_too(weights, tmp_path):
    rng = np.random.default_rng(0)
    for number in range(24):
        category = list(COLOURS)[number % 3]
        folder = tmp_path / "photos" / (category if number else "green")  # the first is red
        folder.mkdir(parents=True, exist_ok=True)
        picture = rng.integers(0, 40, (40, 40, 3)) + np.array(COLOURS[category])
        cv2.imwrite(str(folder / f"{number:02d}.png"), np.clip(picture, 0, 255).astype(np.uint8)[..., ::-1])
    words = f"--weights {weights} --data class_folders:{tmp_path}/photos --size 32 --readers 0"
    check = f"python tools/check_labels.py {words} --output {tmp_path}/out"
    run(check, tmp_path)
    first, *_ = listed_in(tmp_path)
    assert first["file_name"].endswith("green/00.png") and (first["label"], first["suggestion"]) == ("green", "red")
    path = accepted_file(tmp_path, {1})
    refused = f"python tools/check_labels.py --table {path} --output {tmp_path}/out"
    assert "move the files to the folders" in one_line_error(refused, tmp_path)
    (tmp_path / "images.json").write_text("{}")
    assert "expected no detectors" in one_line_error(f"{check} --boxes {tmp_path}/predictions.json", tmp_path)


def test_labels_of_windows_are_refused_and_the_way_is_said(world, weights, tmp_path):
    check = f"python tools/check_labels.py --weights {weights} --output {tmp_path}/out --data"
    recipe = "--config-file configs/own_images/detection.yaml INPUT.TILES 64"
    for words in (f"tiles:64+16:{name_of(world)}", f"{name_of(world)} {recipe}"):
        message = one_line_error(f"{check} {words}", tmp_path)
        assert f"expected --data {name_of(world)}; for detectors of tiles" in message
        assert "tools/predict.py --tiles" in message and "predictions.json as --boxes" in message


def test_bad_input_is_one_line(world, weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 2, size=(90, 120))
    check = f"python tools/check_labels.py --weights {weights} --readers 0 --output {tmp_path}/out --data"
    plain = one_line_error(f"{check} folder:{tmp_path}/photos", tmp_path)
    assert "has neither boxes nor classes of images: expected coco:IMAGES:FILE" in plain
    images = [{"id": n, "file_name": f"{n:03d}.png", "height": 90, "width": 120} for n in range(2)]
    content = {"images": images, "categories": [{"id": 1, "name": "cat"}], "annotations": []}
    box = {"image_id": 0, "category_id": 1, "bbox": [10, 20, 30, 40], "iscrowd": 0, "area": 1200}

    def written(*boxes):
        content["annotations"] = [{**suspect, "id": n} for n, suspect in enumerate(boxes, start=1)]
        (tmp_path / "boxes.json").write_text(json.dumps(content))
        return f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"

    assert "has no boxes in 2 images" in one_line_error(f"{check} {written()}", tmp_path)
    assert "has labels in one image" in one_line_error(f"{check} {written(box)}", tmp_path)
    one = run(f"{check} {written(box, {**box, 'image_id': 1})} --short-side 64", tmp_path)
    assert "all boxes are of one class, cat: none can be swapped" in one
    negative = written(box, {**box, "image_id": 1, "bbox": [50, 20, -30, 40]})
    assert "1 boxes lie outside their images, such as [50.0, 20.0, 20.0, 60.0]" in one_line_error(
        f"{check} {negative}", tmp_path
    )
    both = f"{check} {name_of(world)} --boxes x --config-file y"
    assert "expected one of them" in one_line_error(both, tmp_path)
    assert "expected --data and --weights, or --table" in one_line_error(f"{check.rpartition(' ')[0]}", tmp_path)
    none = f"{check} {name_of(world)} --boxes {tmp_path}/predictions.json"
    assert "expected predictions.json with the images.json" in one_line_error(none, tmp_path)
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    write_pictures(tmp_path / "folders/cat", 3)
    assert "has one class: expected two" in one_line_error(f"{check} class_folders:{tmp_path}/folders", tmp_path)
    broken = check.replace(weights, f"{tmp_path}/weights.pth")
    assert f"{tmp_path}/weights.pth" in one_line_error(f"{broken} {name_of(world)}", tmp_path)


def test_detections_of_other_classes_or_images_are_refused(world, tmp_path):
    labels = read_labels_of(name_of(world))
    path = found_in(world, labels, tmp_path)
    with pytest.raises(UserError, match="classes that the labels do not have: green, blue"):
        read_detections([path], ["red"])
    with pytest.raises(UserError, match="none of these images is among the labelled ones"):
        judged(labels, {"/elsewhere.png": []})


def test_a_vote_weighs_by_its_cosine_over_seven_hundredths():
    rows = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8]], np.float32)
    classes, images = np.array([0, 0, 1]), np.arange(3)
    shares = (
        2 * vote(rows, classes, images, k=2).support - by_ridge(*map(torch.from_numpy, (rows, classes, images))).numpy()
    )
    assert shares[0, 0] == pytest.approx(1 / (1 + math.exp((0.6 - 0.8) / 0.07)), abs=1e-5)


def changed(world, place, bbox):
    """The labels of the world, one of which has another box."""
    content = json.loads((world / "boxes.json").read_text())
    content["annotations"][place]["bbox"] = bbox
    (world / "changed.json").write_text(json.dumps(content))
    return read_labels_of(name_of(world, "changed.json"))


@pytest.mark.parametrize(
    ("bbox", "is_odd"), [([90, 8, 95, 112], True), ([90, 8, 101, 112], False), ([90, 8, 95, 119], False)]
)
def test_an_odd_box_lies_inside_its_image_of_128_by_192_px(world, bbox, is_odd):
    suspects = odd(changed(world, 20, bbox))
    x, y, width, height = bbox
    assert ([x, y, x + width, y + height] in [suspect.box for suspect in suspects]) == is_odd


def test_a_box_that_its_own_detection_has_found_may_be_shifted(world, tmp_path):
    labels = read_labels_of(name_of(world))
    results = read_detections([found_in(world, labels, tmp_path)], labels.class_names)
    x, y, width, height = json.loads((world / "boxes.json").read_text())["annotations"][20]["bbox"]
    spoiled = changed(world, 20, [x + 7, y, width, height])
    first = ordered(shifted(judged(spoiled, results), spoiled), 5)[0]
    across, down = width - 6, height - 1  # the detection lies a pixel beside the object
    overlap = across * down / (2 * width * height - across * down)
    assert overlap > 0.5 and first.box[0] == x + 7 and first.suspicion == pytest.approx(0.9 * (1 - overlap), abs=1e-5)


@pytest.mark.parametrize(("count", "ends"), [(0, "no suspects: suspects.html, .csv and .json"), (2, ".json and .png")])
def test_the_last_line_names_what_is_there(monkeypatch, capsys, tmp_path, count, ends):
    monkeypatch.setattr("projects.Labels.checking.check", lambda args: {"missing": count})
    words = ["check_labels.py", "--data", "x", "--weights", "random", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(f"{ROOT}/tools/check_labels.py")["main"]()
    assert f"{ends} are in {tmp_path}" in capsys.readouterr().out
