"""What is found in windows: small objects, once each, in px of the whole image, and in the files of whole images."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from checkpoints import run_checkpoint, write_converted
from commands import one_line_error, run
from pycocotools import mask as run_lengths

from projects.Discover.discovery import FOUND, discover
from projects.Discover.tiled import in_whole_images, to_look_at, windows_of_images
from projects.Tiles.windows import Tiling
from revisit.boxes.boxes import corners_of, iou
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import picture_of

SIDE, CELLS = 512, 48
# Of 24 px, 0.2 % of the image, so that the whole image's parts are larger: inside of windows of 128 px and on seams.
PLACES = [(20, 30), (116, 40), (250, 250), (300, 116), (400, 420), (60, 372), (430, 200)]


def colours(image: np.ndarray) -> list[np.ndarray]:
    """Features of 48 x 48 cells: their colours next to a grey, of length 1."""
    cells = cv2.resize(image, (CELLS, CELLS), interpolation=cv2.INTER_AREA).astype(np.float32)
    cells -= cells.mean(axis=(0, 1)) - 40
    return [cells / np.linalg.norm(cells, axis=2, keepdims=True)]


@pytest.fixture
def planted(tmp_path) -> tuple[dict, np.ndarray]:
    """The record of a grey image with red squares, and their (N, 4) boxes."""
    image = np.full((SIDE, SIDE, 3), 120, np.uint8)
    for x, y in PLACES:
        image[y : y + 24, x : x + 24] = (30, 40, 230)
    cv2.imwrite(str(tmp_path / "scan.png"), image)
    boxes = np.array([[x, y, x + 24, y + 24] for x, y in PLACES], float)
    return {"file_name": str(tmp_path / "scan.png")}, boxes


def found_in(record: dict, tiling: Tiling, output: Path, count: int = 30) -> list[dict]:
    output.mkdir()
    windows = windows_of_images([record], tiling)
    found = discover(windows, PHOTOGRAPHS, lambda: colours, output, count)
    return list(in_whole_images([record], windows, found, count))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("tiling", [Tiling(128), Tiling(128, 32)])
def test_small_objects_of_windows_are_found_once_in_px_of_the_whole_image(planted, tiling, tmp_path):
    record, boxes = planted
    (image,) = found_in(record, tiling, tmp_path / "out")
    assert (image["height"], image["width"]) == (SIDE, SIDE) and image["file_name"] == record["file_name"]
    overlap = iou(boxes, corners_of(image["objects"]))
    assert overlap.max(axis=1).min() > 0.5 and ((overlap > 0.5).sum(axis=1) == 1).all()
    for each in image["objects"]:
        x, y, width, height = (round(side) for side in each["bbox"])
        mask = run_lengths.decode(each["segmentation"])
        assert mask.shape == (SIDE, SIDE) and mask.sum() == mask[y : y + height, x : x + width].sum() > 0
    scores = [each["score"] for each in image["objects"]]
    assert scores == sorted(scores, reverse=True) and len(scores) <= 30
    (whole,) = discover([record], PHOTOGRAPHS, lambda: colours, tmp_path, 30)
    assert iou(boxes, corners_of(whole["objects"])).max(axis=1).min() < 0.5


def test_an_image_of_which_a_window_cannot_be_read_is_left_out(planted, tmp_path):
    record, _ = planted
    windows = windows_of_images([record], Tiling(256))
    assert len(windows) == 5  # the last is the whole image, half as large
    found = discover(windows, PHOTOGRAPHS, lambda: colours, tmp_path, 5)
    assert len(found) == 5 and found[-1]["height"] == 256
    assert len(list(in_whole_images([record], windows, found, 5))) == 1
    assert list(in_whole_images([record], windows, found[1:], 5)) == []


def test_a_picture_of_a_large_image_is_reduced_with_its_boxes(planted):
    record, _ = planted
    objects = [{"bbox": [100, 200, 50, 60], "score": 1.0, "segmentation": {}}]
    shown = to_look_at({**record, "height": SIDE, "width": SIDE, "objects": objects})
    assert picture_of(shown, PHOTOGRAPHS).shape == (SIDE, SIDE, 3)
    half = to_look_at({**record, "height": 2 * SIDE, "width": 2 * SIDE, "objects": objects})
    assert half["objects"] == [{"bbox": [50, 100, 25, 30], "score": 1.0}]


def test_the_command_writes_files_of_whole_images(write_pictures, tmp_path):
    weights = write_converted(run_checkpoint(), tmp_path / "backbone.pth")
    write_pictures(tmp_path / "photos", 2, size=(90, 120))
    words = f"python tools/discover.py --weights {weights} --short-side 128 --output {tmp_path}/out --data"
    text = run(f"{words} tiles:64+16:folder:{tmp_path}/photos", tmp_path)
    data_set = json.loads((tmp_path / "out/data_set.json").read_text())
    names = [(image["file_name"], image["height"], image["width"]) for image in data_set["images"]]
    assert names == [("000.png", 90, 120), ("001.png", 90, 120)] and "in 2 of 2 images" in text
    boxes = corners_of(data_set["annotations"])
    assert (boxes >= 0).all() and (boxes <= (120, 90, 120, 90)).all() and len(boxes) > 30
    proposals = json.loads((tmp_path / "out/proposals.json").read_text())
    assert {each["image_id"] for each in proposals} == {"000", "001"} and len(proposals) == len(boxes) <= 60
    lines = [json.loads(line) for line in (tmp_path / "out" / FOUND).read_text().splitlines()]
    assert len(lines) == 14 and cv2.imread(str(tmp_path / "out/found.png")) is not None
    message = one_line_error(f"{words} tiles:64:folder:{tmp_path}/photos", tmp_path)
    assert "give another --output" in message
