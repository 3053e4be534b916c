"""Planted objects are found, by numbers that a loop in float64 has too; the command, its files, its continuation."""

import json
import os
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from checkpoints import run_checkpoint, write_converted
from commands import ROOT, one_line_error, run
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from scipy import ndimage
from trees import refused

from projects.Discover.cell_sums import CellBoxes, CellSums
from projects.Discover.discovery import (
    FOUND,
    REFERENCE,
    Candidates,
    discover,
    find_candidates,
    find_objects,
    reference_of,
)
from projects.Discover.doubt import doubt_of
from projects.Discover.parts import FINER, _divided, _regions, find_parts, part_of
from projects.Discover.plugin import found_boxes
from projects.Discover.ranking import best, boxes_of, contrast, scores_of
from projects.Discover.recurrence import WIDTH, Recurrence, descriptors
from projects.Discover.sheet import save_found
from projects.Discover.verdict import agreement, verdict
from projects.Discover.whole import find_whole
from projects.Objectives.proposals import with_proposals
from projects.Pictures.prediction_sheet import RANKS
from projects.Pictures.tiles import GAP, LINE, MARGIN, PANEL
from revisit.boxes.boxes import iou
from revisit.boxes.coco_files import write_data_set
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.sources.catalog import register
from revisit.jobs import parts

PLANTED = ((3, 4, 9, 10), (14, 3, 20, 9), (6, 14, 14, 20))  # x0, y0, x1, y1 in cells


@pytest.fixture(scope="module")
def planted() -> np.ndarray:
    """Features of 24 x 24 cells: noise, and three rectangles of another direction."""
    rng = np.random.default_rng(0)
    features = rng.normal(0, 0.05, (24, 24, 16)).astype(np.float32)
    features[..., 0] += 1
    for x0, y0, x1, y1 in PLANTED:
        features[y0:y1, x0:x1, 0] -= 2
    return features / np.linalg.norm(features, axis=2, keepdims=True)


def test_planted_objects_are_the_best_boxes(planted):
    candidates = find_candidates([planted])
    found = find_objects(candidates, 24 * 8, 24 * 8, 3, np.ones(len(candidates.parts)), whole_first=False)
    boxes = sorted(tuple(round(side / 8) for side in each["bbox"]) for each in found)
    assert boxes == sorted((x0, y0, x1 - x0, y1 - y0) for x0, y0, x1, y1 in PLANTED)
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)


def test_the_whole_object_comes_first_where_it_is_to(planted):
    mask = np.zeros((24 * FINER, 24 * FINER), bool)
    mask[-10 * FINER :, -5 * FINER :] = True  # where no part is
    candidates = find_candidates([planted])._replace(whole=[part_of(mask)])
    recurs = np.full(len(candidates.parts), 0.3)
    among, first = (find_objects(candidates, 96, 96, 5, recurs, whole_first) for whole_first in (False, True))
    assert [76, 56, 20, 40] not in [each["bbox"] for each in among]
    assert first[0]["bbox"] == [76, 56, 20, 40]
    assert first[0]["score"] == pytest.approx(1.001 * among[0]["score"])


def test_an_image_without_a_whole_object_keeps_its_parts_where_those_of_others_come_first(planted):
    candidates = find_candidates([planted])._replace(whole=[])
    recurs = np.full(len(candidates.parts), 0.3)
    usual, first = (find_objects(candidates, 192, 192, 3, recurs, whole_first) for whole_first in (False, True))
    assert len(usual) == 3 and first == usual
    nothing = find_candidates([np.ones((1, 1, 4), np.float32)])
    assert find_objects(nothing, 8, 8, 3, np.ones(0), whole_first=True) == []


def object_of(box: tuple[int, ...], strength: float) -> np.ndarray:
    """Features of 30 x 40 cells of length 1: those in a box differ from the others by ``strength``."""
    x0, y0, x1, y1 = box
    features = np.random.default_rng(0).normal(0, 0.05, (30, 40, 16)).astype(np.float32)
    features[..., 0] += 1
    features[y0:y1, x0:x1, 1] += strength
    return features / np.linalg.norm(features, axis=2, keepdims=True)


@pytest.mark.parametrize("box", [(8, 6, 34, 26), (4, 8, 30, 28), (10, 3, 38, 22)])
def test_the_whole_object_is_what_differs_from_the_frame(box):
    whole = find_whole(object_of(box, 2), (80, 60))
    assert whole and iou(boxes_of([whole.part]), 2 * np.array([box])) > 0.7


def test_the_second_split_of_the_whole_object_leaves_out_what_only_differs_from_the_frame():
    features = object_of((10, 6, 32, 24), 2)
    features[11:19, 3:10, 2] += 1.5  # differs from the frame, but not as the object does
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    whole = find_whole(features, (80, 60))
    truth = 2 * np.array([(10, 6, 32, 24)])
    assert whole and iou(boxes_of([whole.part]), truth) > 0.95 > 0.85 > iou(boxes_of([whole.rough]), truth)


def test_an_image_without_differences_has_no_whole_object():
    small = np.zeros((30, 40, 2), np.float32)
    small[..., 0] = 1
    small[12:18, 16:24] = (0, 1)  # what has less of the image is for parts
    assert find_whole(small, (80, 60)) is None
    checks = np.indices((30, 40)).sum(axis=0) % 2
    assert find_whole(checks[..., None].astype(np.float32), (80, 60)) is None  # the middle is like the frame
    assert find_whole(np.zeros((6, 6, 4), np.float32), (12, 12)) is None
    assert find_whole(np.ones((1, 1, 4), np.float32), (2, 2)) is None
    for seed in range(20):  # in float32 cosines of the same cells differ by a rounding
        cell = np.random.default_rng(seed).normal(size=16).astype(np.float32)
        same = np.tile(cell / np.linalg.norm(cell), (12, 16, 1))
        assert find_whole(same, (32, 24)) is None


def test_the_whole_object_stands_out_by_its_contrast_in_shares_of_the_best_parts():
    features = object_of((8, 6, 34, 26), 2)
    candidates = find_candidates([features])
    parts = find_parts([features])
    boxes = boxes_of(parts)
    sums = CellSums(features)
    usual = contrast(sums, boxes[best(boxes, scores_of(sums, parts), 5)] / FINER).mean()
    rough = find_whole(features, (40 * FINER, 30 * FINER)).rough
    whole = contrast(sums, boxes_of([rough]) / FINER).item()
    assert candidates.stands_out == pytest.approx(whole / usual)
    assert find_candidates([object_of((12, 18, 16, 22), 2)]).stands_out == 0  # too small for a whole object
    assert find_candidates([features], is_window=True).stands_out == 0
    of_whole = candidates.parts.index(*candidates.whole)
    alone = scores_of(sums, parts + candidates.whole)
    assert candidates.scores[of_whole] == pytest.approx(0.1 * alone[-1])


@pytest.mark.parametrize(("recurs", "height", "is_object"), [(0.5, 40, True), (0.5, 41, False), (0.3, 41, True)])
def test_a_part_whose_box_has_more_than_40_percent_of_the_image_is_no_object_where_much_recurs(
    recurs, height, is_object
):
    """The background between objects: a frame as wide as the image, and a square in it."""
    frame, square = np.zeros((2, 100, 100), bool)
    frame[[0, height - 1]] = frame[:height, [0, 99]] = True
    square[10:30, 10:30] = True
    of_image = [part_of(frame), part_of(square)]
    candidates = Candidates((100, 100), of_image, np.array([2.0, 1.0]), np.zeros((2, 5)), whole=[], stands_out=0)
    objects = find_objects(candidates, 100, 100, 5, np.full(2, recurs), whole_first=False)
    boxes = [each["bbox"] for each in objects]
    assert boxes == [[0, 0, 100, height]] * is_object + [[10, 10, 20, 20]]


def test_parts_have_their_masks_in_their_boxes(planted):
    for part in find_parts([planted]):
        x0, y0, x1, y1 = part.box
        assert part.mask.shape == (y1 - y0, x1 - x0)
        assert part.mask.any(axis=1)[[0, -1]].all() and part.mask.any(axis=0)[[0, -1]].all()
        assert 0.004 * (24 * FINER) ** 2 <= part.area <= 0.3 * (24 * FINER) ** 2


def regions_of(mask):
    return cv2.connectedComponents(np.asarray(mask, np.uint8), connectivity=4)[0] - 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_part_is_one_connected_region(seed):
    rng = np.random.default_rng(seed)
    features = cv2.resize(rng.normal(size=(9, 12, 8)), (36, 24), interpolation=cv2.INTER_CUBIC)
    features += 0.3 * rng.normal(size=(24, 36, 8))
    found = find_parts([features.astype(np.float32)])
    assert len(found) > 100 and {regions_of(part.mask) for part in found} == {1}


def test_regions_of_numbers_are_those_of_each_number_alone():
    """As scipy has them, four neighbours to a pixel, and 0 in none."""
    noise = np.random.default_rng(0).normal(size=(6, 8))
    labels = np.clip(cv2.resize(noise, (60, 40), interpolation=cv2.INTER_CUBIC).round() + 1, 0, 3).astype(np.int32)
    expected = set()
    for number in (1, 2, 3):
        alone, _ = ndimage.label(labels == number)
        for region, (rows, columns) in enumerate(ndimage.find_objects(alone), start=1):
            mask = alone[rows, columns] == region
            if 0.004 * labels.size <= mask.sum() <= 0.3 * labels.size:
                expected.add(((columns.start, rows.start, columns.stop, rows.stop), mask.tobytes()))
    regions = {(part.box, part.mask.tobytes()) for part in _regions(labels)}
    assert len(regions) > 5 and regions == expected


def test_an_image_of_one_number_is_not_divided():
    assert not _divided(np.ones((40, 60), np.uint8)).any()


def test_an_object_is_one_connected_region_in_an_image_smaller_than_its_mask():
    mask = np.zeros((80, 120), bool)
    mask[10:40, 10:40] = mask[20:30, 60:100] = mask[25, 40:60] = True  # two areas and a line of one pixel
    candidates = Candidates((120, 80), [part_of(mask)], np.array([1.0]), np.zeros((1, 5)), whole=[], stands_out=0)
    (found,) = find_objects(candidates, 20, 30, 5, np.ones(1), whole_first=False)
    assert regions_of(run_lengths.decode(found["segmentation"])) == 1
    assert found["bbox"] == [2, 2, 8, 8] or found["bbox"] == [3, 3, 7, 7]


def test_contrast_is_that_of_a_loop(planted):
    boxes = np.array([[3, 4, 9, 10], [0, 0, 5, 5], [20, 20, 24, 24], [7.4, 7.6, 7.8, 7.9]])
    expected = []
    for x0, y0, x1, y1 in np.round(boxes).astype(int):
        x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)
        ring_x, ring_y = max(1, round((x1 - x0) / 4)), max(1, round((y1 - y0) / 4))
        inside, around = np.zeros(16), np.zeros(16)
        for y in range(max(0, y0 - ring_y), min(24, y1 + ring_y)):
            for x in range(max(0, x0 - ring_x), min(24, x1 + ring_x)):
                is_inside = x0 <= x < x1 and y0 <= y < y1
                (inside if is_inside else around)[:] += planted[y, x].astype(np.float64)
        expected.append(1 - inside @ around / np.linalg.norm(inside) / np.linalg.norm(around))
    assert contrast(CellSums(planted), boxes) == pytest.approx(expected, abs=1e-9)


def test_of_overlapping_boxes_the_better_one_stays():
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10]])
    assert best(boxes, np.array([1.0, 2.0, 0.5]), count=30) == [1, 2]
    assert best(boxes, np.array([1.0, 2.0, 0.5]), count=1) == [1]


def test_descriptors_are_means_of_the_cells_and_sizes(planted):
    (found,) = descriptors(CellSums(planted), np.array([[4, 8, 12, 16]]))
    cells = planted.astype(np.float64)
    middle, whole, ring = cells[10:14, 6:10], cells[8:16, 4:12], cells[6:18, 2:14]
    rim = (whole.sum((0, 1)) - middle.sum((0, 1))) / (64 - 16)
    around = (ring.sum((0, 1)) - whole.sum((0, 1))) / (144 - 64)
    sizes = [6 * np.log(8 / 24)] * 2
    assert found == pytest.approx(np.concatenate([middle.mean((0, 1)), rim, around, sizes]), abs=1e-9)


def test_recurrence_is_the_mean_over_the_other_images():
    rng = np.random.default_rng(0)
    images = {name: rng.normal(size=(5, 4)) for name in "abc"}
    expected = [
        np.mean([max(np.exp(-((row - other) ** 2).sum() / (2 * WIDTH**2)) for other in images[name]) for name in "bc"])
        for row in images["a"]
    ]
    assert Recurrence(images)(images["a"], "a") == pytest.approx(expected, abs=1e-9)
    assert Recurrence({"a": images["a"]})(images["a"], "a").tolist() == [1] * 5
    assert Recurrence(images)(np.zeros((0, 4)), "an image without parts").shape == (0,)


def test_the_command_writes_a_data_set_and_proposals_and_continues(weights, write_pictures, tmp_path):
    pictures = write_pictures(tmp_path / "photos/day", 3, size=(90, 120))
    photos = os.path.relpath(tmp_path / "photos", ROOT)
    words = f"--weights {weights} --data folder:{photos} --short-side 192 --output {tmp_path}"
    command = f"python tools/discover.py {words}/out"
    text = run(command, tmp_path)
    assert re.search(r"^(likely objects|doubtful|background) \(evidence \d\.\d\d; ", text, re.MULTILINE)
    assert "in 3 of 3 images" in text and f"coco:{photos}:{tmp_path}/out/data_set.json" in text
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    whole = json.loads(first["data_set.json"])
    assert whole["info"]["verdict"] in text and list(whole)[0] == "info"
    assert [image["file_name"] for image in whole["images"]] == [f"day/{path.name}" for path in pictures]
    coco = COCO(str(tmp_path / "out/data_set.json"))
    for annotation in whole["annotations"]:
        mask = coco.annToMask(annotation)
        assert mask.shape == (90, 120) and mask.sum() == annotation["area"]
    records = [{"file_name": str(path)} for path in pictures]
    known = with_proposals(str(tmp_path / "out/proposals.json"), records)
    assert sum(len(record["proposal_boxes"]) for record in known) == len(whole["annotations"]) > 0
    (tmp_path / "out" / FOUND).unlink()
    assert "in 3 of 3 images" in run(f"{command} --processes 2", tmp_path)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == first


def test_two_images_of_one_name_have_no_proposals_and_all_else(weights, write_pictures, tmp_path):
    for day in ("monday", "tuesday"):
        write_pictures(tmp_path / "photos" / day, 2, size=(90, 120))
    words = f"--weights {weights} --data folder:{tmp_path}/photos --short-side 192 --output {tmp_path}/out"
    text = run(f"python tools/discover.py {words}", tmp_path)
    assert "no proposals.json: 2 names of files stand for two images each, such as 0" in text
    assert "in 4 of 4 images" in text and "(evidence " in text
    assert not (tmp_path / "out/proposals.json").exists() and (tmp_path / "out/data_set.json").is_file()


def test_the_picture_leaves_the_objects_to_be_seen(tmp_path):
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((PANEL, PANEL, 3), 128, np.uint8))
    whole = run_lengths.encode(np.asfortranarray(np.ones((PANEL, PANEL), np.uint8)))
    objects = [{"bbox": [20 + 30 * n, 40, 60, 300], "score": 1.0 - n / 10, "segmentation": whole} for n in range(10)]
    images = [{"file_name": str(tmp_path / "grey.png"), "height": PANEL, "width": PANEL, "objects": objects}] * 3
    save_found(tmp_path / "found.png", images, PHOTOGRAPHS)
    sheet = cv2.imread(str(tmp_path / "found.png"))[..., ::-1]
    assert sheet.shape[1] == 2 * (MARGIN + PANEL) + GAP  # a phone shows two tiles large enough
    assert sheet.shape[0] == 2 * (MARGIN + PANEL) + GAP + 3 * LINE
    tile = sheet[MARGIN + 2 * LINE :][:PANEL, MARGIN:][:, :PANEL]
    assert (tile == 128).all(axis=-1).mean() > 0.8
    assert all((tile == color).all(axis=-1).any() for color, _ in RANKS)


def test_two_rankings_agree_by_what_they_share_beyond_chance():
    boxes = np.array([[30.0 * n, 0, 30 * n + 20, 20] for n in range(600)])
    falling = np.arange(600.0, 0, -1)
    for shift, share in ((0, 1.0), (6, 0.6), (15, 0.0)):
        recurs = np.roll(falling, shift)  # the best 15 begin with box number ``shift``
        assert agreement(boxes, falling, recurs) == pytest.approx(share, abs=0.1)
    assert agreement(boxes[:15], falling[:15], falling[:15]) == 0  # as much as any order
    assert agreement(boxes[:0], falling[:0], falling[:0]) == 0


@pytest.mark.parametrize(
    ("agrees", "stands_out", "word", "evidence"),
    [(0.18, 0.515, "likely objects", 2), (0.0, 1.236, "likely objects", 1.2), (0.045, 0.927, "doubtful", 0.9)]
    + [(-0.1, 0.515, "background", 0.5)],
)
def test_the_verdict_is_kept_with_the_boxes_and_a_training_warns(agrees, stands_out, word, evidence, tmp_path, caplog):
    images = [{"agreement": agrees + d, "stands_out": stands_out + d} for d in (-0.1, 0, 0.1)]
    judged = verdict(images)
    assert judged == (word, pytest.approx(evidence))
    path = tmp_path / "data_set.json"
    image = {"file_name": f"{tmp_path}/a.png", "height": 30, "width": 40, "objects": []}
    write_data_set(path, [image], info=judged._asdict())
    name = f"coco:{tmp_path}:{path}"
    register(name)
    found_boxes(None, name, [], to_learn=True)
    expected = f"the found boxes of {name} are {word} (evidence {judged.evidence}): look at found.png"
    assert [expected in text for text in caplog.messages] == ([] if word == "likely objects" else [True])
    write_data_set(path, [image])
    assert doubt_of(path) == doubt_of(tmp_path / "none.json") == ""


def test_an_interrupted_comparison_continues_with_the_same_bytes(planted, write_pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SECONDS", 0)
    records = [{"file_name": str(path)} for path in write_pictures(tmp_path / "photos", 4)]
    Path(records[0]["file_name"]).write_bytes(b"no image")
    killed, calls = iter([False, True, False, False, False]), []

    def features(image: np.ndarray) -> list[np.ndarray]:
        calls.append(image)
        if next(killed, False):
            raise KeyboardInterrupt
        return [planted]

    outputs = [tmp_path / name for name in ("killed", "whole")]
    for output in outputs:
        output.mkdir()
    with pytest.raises(KeyboardInterrupt):
        reference_of(records, PHOTOGRAPHS, lambda: features, outputs[0])
    references, candidates = reference_of(records, PHOTOGRAPHS, lambda: features, outputs[0])
    assert len(calls) == 4 and list(references.descriptors) == [record["file_name"] for record in records[1:]]
    assert list(candidates) == list(references.descriptors)[1:]
    reference_of(records, PHOTOGRAPHS, lambda: features, outputs[1])
    files = [output / REFERENCE for output in outputs]
    assert files[0].read_bytes() == files[1].read_bytes() and os.listdir(outputs[0]) == [REFERENCE]


def test_a_picture_of_one_colour_has_no_object_whatever_its_border_does_to_features(planted, tmp_path):
    framed = np.full((60, 60, 3), (0, 90, 0), np.uint8)
    framed[:9] = framed[-9:] = 0  # bars are no part of a picture
    spotted = framed.copy()
    spotted[30, 30] = 255
    plain, icon = np.full((40, 50, 3), 255, np.uint8), np.full((1, 1, 3), 7, np.uint8)
    records = []
    for name, image in {"spotted": spotted, "framed": framed, "plain": plain, "icon": icon}.items():
        records.append({"file_name": str(tmp_path / f"{name}.png")})
        cv2.imwrite(records[-1]["file_name"], image)
    spots, *others = discover(records, PHOTOGRAPHS, lambda: lambda image: [planted], tmp_path, 5)
    assert len(spots["objects"]) == 5
    assert [(image["objects"], image["stands_out"]) for image in others] == [([], 0.0)] * 3


def test_what_is_found_is_scored_where_images_have_boxes(weights, write_pictures, tmp_path):
    (path,) = write_pictures(tmp_path / "photos", 1, size=(90, 120))
    drawn = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2], "iscrowd": 0}  # smaller than any part
    images = [{"id": 1, "file_name": path.name, "height": 90, "width": 120}]
    content = {"images": images, "annotations": [drawn], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    name = f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"
    command = f"python tools/discover.py --weights {weights} --data {name} --short-side 64 --output {tmp_path}/out"
    assert f"against the boxes of {name}: AP50 0.0, recall 0.0 %" in run(command, tmp_path)


def test_images_without_any_object_are_counted_and_refused_where_all_are(write_pictures, tmp_path):
    blind = run_checkpoint()
    for values in blind["model"].values():
        values.zero_()
    weights = write_converted(blind, tmp_path / "backbone.pth")
    write_pictures(tmp_path / "photos", 2)
    command = f"python tools/discover.py --weights {weights} --data folder:{tmp_path}/photos --output {tmp_path}/out"
    message = "no object in any of 2 images, which look the same all over: give other --weights"
    assert message in one_line_error(f"{command} --short-side 64", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "out" / FOUND).read_text().splitlines()]
    mask = {"size": [30, 40], "counts": run_lengths.encode(np.ones((30, 40), np.uint8, "F"))["counts"].decode()}
    lines[0]["objects"] = [{"bbox": [0, 0, 40, 30], "segmentation": mask, "area": 1200, "score": 1.0}]
    (tmp_path / "out" / FOUND).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "1 box in 2 of 2 images, 1 of them without any" in run(f"{command} --short-side 64", tmp_path)


def test_a_folder_of_other_rules_is_refused(weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 1)
    command = f"python tools/discover.py --weights {weights} --data folder:{tmp_path}/photos --output {tmp_path}/out"
    run(f"{command} --short-side 64", tmp_path)
    settings = tmp_path / "out/settings.json"
    before = json.loads(settings.read_text())
    assert before.pop("rules") > 1  # as the first version wrote them
    settings.write_text(json.dumps(before))
    assert "other settings (rules): give another --output" in one_line_error(f"{command} --short-side 64", tmp_path)


def test_corrected_boxes_are_kept_and_the_folder_is_no_other_command_s(weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 2)
    command = f"python tools/discover.py --weights {weights} --data folder:{tmp_path}/photos --output {tmp_path}/out"
    run(f"{command} --short-side 64", tmp_path)
    run(f"{command} --short-side 64", tmp_path)  # the same again
    path = tmp_path / "out/data_set.json"
    corrected = json.loads(path.read_text()) | {"info": {"corrected by": "me"}}
    path.write_text(json.dumps(corrected))
    line = one_line_error(f"{command} --short-side 64", tmp_path)
    assert "data_set.json has been changed since it was written" in line and json.loads(path.read_text()) == corrected
    path.write_bytes(b"\xff\xfe")  # of a tool that writes no UTF-8
    refused("has been changed since", write_data_set, path, [])


def test_refusals_say_what_to_do(weights, write_pictures, tmp_path):
    write_pictures(tmp_path / "photos", 1)
    write_pictures(tmp_path / "others", 1)
    words = f"python tools/discover.py --output {tmp_path}/out --short-side 64 --weights"
    assert "nowhere.pth" in one_line_error(f"{words} {tmp_path}/nowhere.pth --data folder:{tmp_path}/photos", tmp_path)
    assert "others" in one_line_error(f"{words} {weights} --data folder:{tmp_path}/none/others", tmp_path)
    run(f"{words} {weights} --data folder:{tmp_path}/photos", tmp_path)
    message = one_line_error(f"{words} {weights} --data folder:{tmp_path}/others", tmp_path)
    assert "give another --output" in message
    message = one_line_error(f"{words} {weights} --data folder:{tmp_path}/photos --count 5", tmp_path)
    assert "other settings (boxes 30, now 5): give another --output" in message
    write_pictures(tmp_path / "photos", 2)
    message = one_line_error(f"{words} {weights} --data folder:{tmp_path}/photos", tmp_path)
    assert "other settings (images): give another --output" in message  # not silence on the second


@pytest.mark.parametrize("content", ["{", "[1]\n", '{"objects": []}\n', '{"file_name": 3, "objects": 3}\n', "\0\xff"])
def test_damaged_lines_of_an_earlier_call_are_named(content, tmp_path):
    (tmp_path / "found.jsonl").write_text(content)
    refused(
        "found.jsonl is damaged .*: remove it, and give the same command again",
        discover,
        [],
        PHOTOGRAPHS,
        None,
        tmp_path,
        1,
    )


def test_a_ring_is_as_wide_as_a_quarter_of_the_side_along_which_it_lies():
    boxes = CellBoxes(np.array([[10, 10]]), np.array([[18, 30]]))
    ring = CellSums(np.zeros((50, 60, 1))).with_rings(boxes)
    assert ring.low.tolist() == [[8, 5]] and ring.high.tolist() == [[20, 35]]


@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_sizes_are_shares_of_the_shorter_side_of_the_image(shape):
    (found,) = descriptors(CellSums(np.ones((*shape, 2))), np.array([[4, 2, 12, 14]]))
    assert found[-2:] == pytest.approx([6 * np.log(8 / 16), 6 * np.log(12 / 16)])


def test_a_score_is_recurrence_squared_times_the_root_of_the_images_own():
    mask = np.zeros((60, 100), bool)
    mask[10:30, 20:50] = True
    candidates = Candidates((100, 60), [part_of(mask)], np.array([4.0]), np.zeros((1, 5)), whole=[], stands_out=0)
    (found,) = find_objects(candidates, 60, 100, 5, np.array([0.6]), whole_first=False)
    assert found["score"] == pytest.approx(0.6**2 * 2) and found["bbox"] == [20, 10, 30, 20]
