"""Predictions for files that are no data set: pictures, videos, and JSON that pycocotools reads."""

import json
import os
from argparse import Namespace
from pathlib import Path

import cv2
import numpy as np
import pytest
from checkpoints import finetuned_checkpoint as weights_of
from commands import one_line_error, run
from kills import ALL, kill_at_every_change, tool
from pycocotools.coco import COCO
from trees import refused

from projects.Predict.file_predictions import find_sources
from projects.Predict.predictions import set_score_threshold
from revisit.engine.setup import make_config


@pytest.fixture
def inputs(tmp_path) -> Path:
    """Three images in folders with odd names, a damaged one, a link to itself, and a video of three frames."""
    folder = tmp_path / "meine Fotos"
    (folder / "ä b").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, size in (("one.png", (90, 120)), ("ä b/one.jpg", (120, 70))):
        (folder / name).write_bytes(cv2.imencode(Path(name).suffix, rng.integers(0, 256, (*size, 3), np.uint8))[1])
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "loop.png").symlink_to("loop.png")
    os.rename(folder / "one.png", os.fsencode(folder) + b"/caf\xe9.png")  # not UTF-8, of which OpenCV's names are
    (folder / "one.png").write_bytes((folder / os.fsdecode(b"caf\xe9.png")).read_bytes())
    (folder / "odd.tif").write_bytes(cv2.imencode(".tif", np.full((9, 9), 1e6, np.float32))[1])
    writer = cv2.VideoWriter(str(tmp_path / "film.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (96, 64))
    for _ in range(3):
        writer.write(rng.integers(0, 256, (64, 96, 3), np.uint8))
    writer.release()
    return folder


def predict(recipe: str, inputs: Path, tmp_path: Path) -> tuple[str, Path]:
    output, weights = tmp_path / "found", weights_of(recipe, tmp_path)
    command = f"python tools/predict.py --weights {weights} --output {output} --score-threshold 0.05"
    return run(f"{command} '{inputs}' {tmp_path / 'film.mp4'} --opts MODEL.DEVICE cpu", tmp_path), output


@pytest.mark.parametrize("recipe", ["mask_rcnn_fpn", "retinanet_fpn"])
def test_what_a_detector_finds_is_drawn_and_read_by_pycocotools(recipe, inputs, tmp_path):
    (inputs / "thin.png").write_bytes(cv2.imencode(".png", np.zeros((1, 20000, 3), np.uint8))[1])
    text, output = predict(recipe, inputs, tmp_path)
    assert "4 of 8 files" in text and all(
        f"{name}: " in text for name in ("broken.jpg", "loop.png", "odd.tif", "thin.png")
    )
    written, cafe = {path.name for path in output.iterdir()}, os.fsdecode(b"caf\xe9.png")
    assert written == {"film.mp4", "images.json", "one.png", "predictions.json", "ä b_one.png", cafe}
    images = json.loads((output / "images.json").read_text())
    names = [image["file_name"].rpartition("/")[2] for image in images["images"]]
    assert names == [cafe, "one.png", "one.jpg", "film.mp4#1", "film.mp4#2", "film.mp4#3"]
    assert images["images"][2]["height"] == 120 and images["categories"][9]["name"] == "dotted_cross"
    objects = json.loads((output / "predictions.json").read_text())
    assert f"\n{len(objects)} objects score at least 0.05 (--score-threshold)" in text
    if objects:
        loaded = COCO(str(output / "images.json")).loadRes(str(output / "predictions.json"))
        assert len(loaded.getAnnIds()) == len(objects)
        assert all(("segmentation" in result) == ("mask" in recipe) for result in objects)
    assert objects or recipe == "retinanet_fpn"
    assert cv2.imdecode(np.frombuffer((output / "ä b_one.png").read_bytes(), np.uint8), 1).shape == (420, 245, 3)
    video = cv2.VideoCapture(str(output / "film.mp4"))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 3


@pytest.mark.parametrize(("recipe", "kind"), [("segmentation_nyud", "classes"), ("depth", "depth")])
def test_maps_of_pixels_are_written_in_the_size_of_their_images(recipe, kind, inputs, tmp_path):
    (tmp_path / "found").mkdir()
    (tmp_path / "found/predictions.json").write_text("[]")  # of a detector before
    _, output = predict(recipe, inputs, tmp_path)
    assert not (output / "predictions.json").exists()
    pixels = cv2.imread(str(output / f"{kind}/one.png"), cv2.IMREAD_UNCHANGED)
    assert pixels.shape == (90, 120) and pixels.dtype == (np.uint8 if kind == "classes" else np.uint16)
    assert (output / f"{kind}/film_000003.png").is_file()


def test_sources_have_names_of_their_own_and_what_is_none_is_refused(inputs, tmp_path):
    paths = [inputs / "one.png", inputs, tmp_path / "film.mp4"]
    names = [source.name for source in find_sources(paths, tmp_path / "x")]
    assert names == ["one", "broken", "caf\udce9", "loop", "odd", "ä b_one", "film"]  # each file once
    refused("nothing.png", find_sources, [tmp_path / "nothing.png"], tmp_path / "x")
    (tmp_path / "a.txt").touch()
    refused("a.txt", find_sources, [tmp_path / "a.txt"], tmp_path / "x")
    for output in (inputs, inputs / "found", tmp_path):
        refused("--output", find_sources, [inputs, tmp_path / "film.mp4"], output)


@pytest.mark.parametrize(("given", "typed", "expected"), [(None, None, 0.5), (None, 0.3, 0.3), (0.2, 0.3, 0.2)])
@pytest.mark.parametrize(("recipe", "heads"), [("detection", "ROI_HEADS"), ("retinanet_fpn", "RETINANET")])
def test_objects_score_what_the_command_asks_for(recipe, heads, given, typed, expected):
    opts = [f"MODEL.{heads}.SCORE_THRESH_TEST", str(typed)] if typed else []
    cfg = make_config(f"configs/toy/{recipe}.yaml", opts)
    assert set_score_threshold(cfg, Namespace(score_threshold=given, opts=opts)) == expected
    assert cfg.MODEL[heads].SCORE_THRESH_TEST == expected


def test_mistakes_are_reported_in_one_line(inputs, tmp_path):
    command = f"python tools/predict.py --weights {weights_of('detection', tmp_path)} --output {tmp_path}/x"
    assert "none of the inputs can be read" in one_line_error(f"{command} '{inputs}/broken.jpg'", tmp_path)


@pytest.mark.fuzz
def test_a_killed_prediction_has_no_images_json_or_all_that_it_means(write_pictures, tmp_path):
    """``make fuzz`` kills it at every change, ``make test`` at every 15th."""
    files = write_pictures(tmp_path / "photos", 2, size=(90, 120))
    output, earlier = tmp_path / "out", {}
    output.mkdir()

    def begin() -> None:
        for path in output.glob("*"):
            path.unlink()
        for name, content in earlier.items():
            (output / name).write_bytes(content)

    def look() -> None:
        if (output / "images.json").exists() and (output / "images.json").read_bytes() != earlier["images.json"]:
            whole()

    def whole() -> None:
        images = json.loads((output / "images.json").read_text())["images"]
        assert [image["file_name"] for image in images] == list(map(str, files))
        objects = json.loads((output / "predictions.json").read_text())
        assert {thing["image_id"] for thing in objects} == {1, 2}
        assert all(cv2.imread(str(output / file.name)) is not None for file in files)

    command = f"tools/predict.py --weights {weights_of('retinanet_fpn', tmp_path)} --score-threshold 0"
    words = "--opts MODEL.DEVICE cpu"
    tool(f"{command} --output {output} {files[0]} {words}")()
    earlier |= {name: (output / name).read_bytes() for name in ("images.json", "predictions.json")}
    call = tool(f"{command} --output {output} {tmp_path}/photos {words}")
    kill_at_every_change(call, output, begin=begin, look=look, whole=whole, step=1 if ALL else 15)
