"""Predictions for files that are no data set: pictures, videos, and JSON that pycocotools reads."""

import json
import os
import re
import shutil
from argparse import Namespace
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from checkpoints import finetuned_checkpoint as weights_of
from commands import one_line_error, run
from kills import ALL, kill_at_every_change, tool
from pycocotools.coco import COCO
from trees import refusal, refused, touch

from projects.Pictures.prediction_sheet import draw_objects
from projects.Predict import amounts, file_predictions
from projects.Predict.file_predictions import FilePredictor, find_sources
from projects.Predict.prediction_files import write_images, write_objects
from projects.Predict.predictions import finetuned_config, set_score_threshold
from projects.Predict.videos import VideoFile
from revisit.data.sources.catalog import get_records
from revisit.engine.setup import make_config
from revisit.files import expect_uncorrected
from revisit.jobs import parts
from revisit.jobs.shares import Share

from detectron2.data import DatasetCatalog

FEW = "MODEL.DEVICE cpu TEST.DETECTIONS_PER_IMAGE 5"  # drawing takes longer than finding


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
    return run(f"{command} '{inputs}' {tmp_path / 'film.mp4'} --opts {FEW}", tmp_path), output


@pytest.mark.parametrize("recipe", ["mask_rcnn_fpn", "retinanet_fpn"])
def test_what_a_detector_finds_is_drawn_and_read_by_pycocotools(recipe, inputs, tmp_path):
    (inputs / "thin.png").write_bytes(cv2.imencode(".png", np.zeros((1, 20000, 3), np.uint8))[1])
    text, output = predict(recipe, inputs, tmp_path)
    assert "4 of 8 files" in text and all(
        f"{name}: " in text for name in ("broken.jpg", "loop.png", "odd.tif", "thin.png")
    )
    written, cafe = {path.name for path in output.iterdir()}, os.fsdecode(b"caf\xe9.png")
    files = {"data_set.json", "images.json", "label_studio.json", "label_studio.xml", "predictions.json"}
    records = {"data_set.json.sha256", "written.sha256"}
    assert written == {"film.mp4", "one.png", "ä b_one.png", cafe, *records, *files}
    images = json.loads((output / "images.json").read_text())
    names = [image["file_name"].rpartition("/")[2] for image in images["images"]]
    assert names == [cafe, "one.png", "one.jpg", "film.mp4#1", "film.mp4#2", "film.mp4#3"]
    assert images["images"][2]["height"] == 120 and images["categories"][9]["name"] == "dotted_cross"
    objects = json.loads((output / "predictions.json").read_text())
    amount = f"{len(objects)} objects score" if objects else "none of 6 images has an object that scores"
    assert f"\n{amount} at least 0.05 (--score-threshold)" in text
    if objects:
        loaded = COCO(str(output / "images.json")).loadRes(str(output / "predictions.json"))
        assert len(loaded.getAnnIds()) == len(objects)
        assert all(("segmentation" in result) == ("mask" in recipe) for result in objects)
        assert_same_objects(output, text.partition("as a data set: ")[2].splitlines()[0])
    assert objects or recipe == "retinanet_fpn"
    assert cv2.imdecode(np.frombuffer((output / "ä b_one.png").read_bytes(), np.uint8), 1).shape == (420, 245, 3)
    video = cv2.VideoCapture(str(output / "film.mp4"))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 3


def test_a_video_with_fewer_frames_than_its_file_says_is_read_and_one_without_any_left_out(tmp_path, monkeypatch):
    (tmp_path / "films").mkdir()
    for suffix, codec in ((".mkv", "mp4v"), (".mpg", "PIM1"), (".ts", "mp4v"), (".flv", "FLV1")):
        path = tmp_path / f"films/film{suffix}"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 25, (96, 64))
        for gray in range(20):
            writer.write(np.random.default_rng(gray).integers(0, 256, (64, 96, 3), np.uint8))
        writer.release()
    whole = (tmp_path / "films/film.mkv").read_bytes()
    (tmp_path / "films/film.mkv").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "films/none.avi").write_bytes(b"no video")
    weights = str(weights_of("retinanet_fpn", tmp_path))
    cfg = finetuned_config(Namespace(weights=weights, config_file="", opts=["MODEL.DEVICE", "cpu"]))
    monkeypatch.setattr(FilePredictor, "_picture", lambda self, pixels, name, short, images: images.append(
        {"file_name": name, "height": 64, "width": 96, "objects": []}) or np.zeros((64, 96, 3), np.uint8)
    )  # fmt: skip
    predictor = FilePredictor(cfg, tmp_path)
    predictor.run(find_sources([tmp_path / "films"], tmp_path / "x"))
    assert [Path(line.partition(":")[0]).name for line in predictor.unreadable] == ["none.avi"]
    assert re.search(r"film.mkv: \d+ frames can be read, of 20 as its file says; of a trimmed", *predictor.shorter)
    films = Counter(image["file_name"].partition("#")[0].rpartition(".")[2] for image in predictor.images)
    assert films == {"flv": 20, "mpg": 20, "ts": 20, "mkv": films["mkv"]} and 0 < films["mkv"] < 20


def assert_same_objects(output: Path, name: str) -> None:
    """data_set.json and label_studio.json have the objects of predictions.json in files, not those in a video."""
    about = json.loads((output / "images.json").read_text())
    results = [box for box in json.loads((output / "predictions.json").read_text()) if box["image_id"] <= 3]
    coco = COCO(str(output / "data_set.json"))
    boxes = coco.loadAnns(coco.getAnnIds())
    assert [{key: box[key] for key in result} for box, result in zip(boxes, results, strict=True)] == results
    assert [coco.annToMask(box).sum() for box in boxes if "segmentation" in box] in ([], [box["area"] for box in boxes])
    assert coco.dataset["categories"] == about["categories"]
    records = get_records(name)
    paths = [os.path.realpath(image["file_name"]) for image in about["images"][:3]]
    assert [os.path.realpath(record["file_name"]) for record in records] == paths
    tasks = json.loads((output / "label_studio.json").read_text())
    assert [unquote_to_bytes(task["data"]["image"].partition("?d=")[2]) for task in tasks] == [
        os.fsencode(path[1:]) for path in paths
    ]
    drawn = [result for task in tasks for result in task["predictions"][0]["result"]]
    for box, result in zip(results, drawn, strict=True):
        sides = (result["original_width"], result["original_height"]) * 2
        percent = [result["value"][key] for key in ("x", "y", "width", "height")]
        assert [value * side / 100 for value, side in zip(percent, sides, strict=True)] == pytest.approx(box["bbox"])
        assert result["value"]["rectanglelabels"] == [about["categories"][box["category_id"] - 1]["name"]]
    interface = ElementTree.parse(output / "label_studio.xml")
    names = [label.get("value") for label in interface.iter("Label")]
    assert names == [category["name"] for category in about["categories"]]
    assert {(drawn[0]["from_name"], drawn[0]["to_name"])} == {
        (tag.get("name"), tag.get("toName")) for tag in interface.iter("RectangleLabels")
    }


@pytest.mark.parametrize(("recipe", "heads"), [("detection", "ROI_HEADS"), ("retinanet_fpn", "RETINANET")])
def test_where_nothing_is_found_a_lower_threshold_is_named(recipe, heads, write_pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(amounts, "LOWEST", 0.001)
    monkeypatch.setattr(amounts, "STEP", 0.001)
    files = write_pictures(tmp_path / "photos", 2, size=(90, 120))

    def words_at(threshold: float) -> str:
        opts = [f"MODEL.{heads}.SCORE_THRESH_TEST", str(threshold), "MODEL.DEVICE", "cpu"]
        cfg = finetuned_config(Namespace(weights=str(weights_of(recipe, tmp_path)), config_file="", opts=opts))
        predictor = FilePredictor(cfg, tmp_path)
        predictor.run(find_sources(files, tmp_path))
        return amounts.objects_in_words(cfg, predictor, threshold)

    text = words_at(0.9)
    assert text.startswith("none of 2 images has an object that scores at least 0.9 (--score-threshold); the highest")
    threshold, count = re.search(r"--score-threshold (\S+) would draw (\d+)", text).groups()
    assert words_at(float(threshold)).startswith(f"{count} objects score at least {threshold} ")


def test_processes_of_which_one_is_killed_write_the_bytes_of_one_and_mix_no_settings(
    write_pictures, tmp_path, monkeypatch
):
    monkeypatch.setattr(file_predictions, "PART", 1)
    monkeypatch.setattr(parts, "SECONDS", 0)
    files, weights = write_pictures(tmp_path / "photos", 5, size=(90, 120)), str(weights_of("retinanet_fpn", tmp_path))

    def predictor(name: str, threshold: float = 0.05) -> FilePredictor:
        opts = [*FEW.split(), "MODEL.RETINANET.SCORE_THRESH_TEST", str(threshold)]
        (tmp_path / name).mkdir(exist_ok=True)
        cfg = finetuned_config(Namespace(weights=weights, config_file="", opts=opts))
        return FilePredictor(cfg, tmp_path / name)

    calls = []

    def killed_at_second(*arguments: object) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return draw_objects(*arguments)

    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    sources = find_sources(files, tmp_path / "x")
    predictor("one").run(sources)
    with pytest.raises(SystemExit):
        predictor("two").run(sources, Share(1, 2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(file_predictions, "draw_objects", killed_at_second)
        predictor("two").run(sources, Share(0, 2))
    other = "SCORE_THRESH_TEST 0.05, now 0.3.: give those again to continue, or delete this folder"
    refused(other, predictor("two", 0.3).run, sources)
    compared = json.loads((tmp_path / "two/parts/settings.json").read_text())  # a key of another network is none of it
    assert compared["MODEL.RETINANET.IOU_LABELS"] and "DISTILLATION.TEACHER" not in compared
    predictor("two").run(sources, Share(0, 2))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


@pytest.mark.parametrize(("recipe", "kind"), [("segmentation_nyud", "classes"), ("depth", "depth")])
def test_maps_of_pixels_are_written_in_the_size_of_their_images(recipe, kind, inputs, tmp_path):
    (tmp_path / "found").mkdir()
    (tmp_path / "found/predictions.json").write_text("[]")  # of a detector before
    _, output = predict(recipe, inputs, tmp_path)
    assert not (output / "predictions.json").exists()
    pixels = cv2.imread(str(output / f"{kind}/one.png"), cv2.IMREAD_UNCHANGED)
    assert pixels.shape == (90, 120) and pixels.dtype == (np.uint8 if kind == "classes" else np.uint16)
    assert (output / f"{kind}/film_000003.png").is_file()
    for name in ("one", "film_000003"):
        path = output / kind / f"{name}.png"
        found = path.read_bytes()
        file_predictions.write_image(path, np.zeros_like(pixels))
        sources = find_sources([inputs / "ä b", tmp_path / "film.mp4"], output)
        message = refusal(FilePredictor.run, SimpleNamespace(output=output), sources)
        assert f"{path} has been changed since it was written" in message
        path.write_bytes(found)
    _, again = predict(recipe, inputs / "ä b", tmp_path)
    assert (again / "written.sha256").read_text(errors="replace").count(f"{kind}/one.png") == 1


def test_sources_have_names_of_their_own_and_what_is_none_is_refused(inputs, tmp_path):
    paths = [inputs / "one.png", inputs, tmp_path / "film.mp4"]
    names = [source.name for source in find_sources(paths, tmp_path / "x")]
    assert names == ["one", "broken", "caf\udce9", "loop", "odd", "ä b_one", "film"]  # each file once
    shutil.copy(tmp_path / "film.mp4", inputs / "ä b/clip.mp4")
    shutil.copy(tmp_path / "film.mp4", inputs / ".clip.mp4")
    assert [source.name for source in find_sources([inputs], tmp_path / "x")][-2:] == ["ä b_one", "ä b_clip"]
    (tmp_path / "films").mkdir()
    shutil.copy(tmp_path / "film.mp4", tmp_path / "films/b.mp4")
    assert [source.name for source in find_sources([tmp_path / "films"], tmp_path / "x")] == ["b"]
    refused("nothing.png", find_sources, [tmp_path / "nothing.png"], tmp_path / "x")
    (tmp_path / "a.txt").touch()
    refused("a.txt", find_sources, [tmp_path / "a.txt"], tmp_path / "x")
    for output in (inputs, inputs / "found", tmp_path):
        refused("--output", find_sources, [inputs, tmp_path / "film.mp4"], output)


def test_no_image_has_the_name_of_a_frame_of_a_video(tmp_path):
    films = tmp_path / "films"
    films.mkdir()
    for name in ("film.jpg", "film_000001.jpg", "film__1000000.jpg", "film_1.jpg", "other_000001.jpg", "film.mp4"):
        (films / name).touch()
    (films / "film_000002.mp4").touch()  # has no map but of its frames
    names = [source.name for source in find_sources([films], tmp_path / "x")]
    images = ["film", "film_000001_", "film_1", "film__1000000_", "other_000001"]
    assert sorted(names[:5]) == sorted(images) and names[5:] == ["film_", "film_000002"]
    one_by_one = [films / "film_000001.jpg", films / "film.mp4"]
    assert [source.name for source in find_sources(one_by_one, tmp_path / "x")] == ["film_000001_", "film"]


def test_a_data_set_is_an_input_too(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(cv2.imencode(".png", np.zeros((9, 9, 3), np.uint8))[1])
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a/2.png\n{tmp_path}/b/1.png\n")
    listed = [tmp_path / "a/2.png", tmp_path / "b/1.png"]
    for form in (f"list:{tmp_path}/list.txt", f"('list:{tmp_path}/list.txt',)", f"{tmp_path}/list.txt"):
        assert [source.path for source in find_sources([form], tmp_path / "x")] == listed
    DatasetCatalog.register("two_of_mine", lambda: [{"file_name": str(file), "image_id": 1} for file in listed])
    try:
        assert [source.path for source in find_sources(["two_of_mine"], tmp_path / "x")] == listed
    finally:
        DatasetCatalog.remove("two_of_mine")
    inside = [source.path for source in find_sources([f"folder:{tmp_path}/a"], tmp_path / "x")]
    assert inside == [tmp_path / "a/1.png", tmp_path / "a/2.png"]


@pytest.mark.parametrize(("given", "typed", "expected"), [(None, None, 0.5), (None, 0.3, 0.3), (0.2, 0.3, 0.2)])
@pytest.mark.parametrize(("recipe", "heads"), [("detection", "ROI_HEADS"), ("retinanet_fpn", "RETINANET")])
def test_objects_score_what_the_command_asks_for(recipe, heads, given, typed, expected):
    opts = [f"MODEL.{heads}.SCORE_THRESH_TEST", str(typed)] if typed else []
    cfg = make_config(f"configs/toy/{recipe}.yaml", opts)
    assert set_score_threshold(cfg, Namespace(score_threshold=given, opts=opts)) == expected
    assert cfg.MODEL[heads].SCORE_THRESH_TEST == expected


@pytest.mark.parametrize(("given", "count"), [(0.2, 1), (None, 0)])
def test_a_score_threshold_of_a_network_without_objects_is_said_to_change_nothing(given, count, caplog):
    set_score_threshold(make_config("configs/toy/depth.yaml", []), Namespace(score_threshold=given, opts=[]))
    assert [message for message in caplog.messages if "DepthEstimator finds no objects" in message] == caplog.messages
    assert len(caplog.messages) == count


def test_mistakes_are_reported_in_one_line(inputs, tmp_path):
    command = f"python tools/predict.py --weights {weights_of('detection', tmp_path)} --output {tmp_path}/x"
    assert "none of the inputs can be read" in one_line_error(f"{command} '{inputs}/broken.jpg'", tmp_path)
    expected = f"{tmp_path}/nowhere.png not found: expected an image, a video or a folder"
    assert expected in one_line_error(f"{command} {tmp_path}/nowhere.png", tmp_path)


@pytest.mark.parametrize(("rate", "written"), [(25, 25), (119.8413, 119.84), (239.7613, 239.76)])
def test_videos_of_any_rate_can_be_written_again(rate, written, tmp_path):
    frame = np.zeros((64, 64, 3), np.uint8)
    film = cv2.VideoWriter(str(tmp_path / "a.avi"), cv2.VideoWriter_fourcc(*"MJPG"), rate, (64, 64))
    film.write(frame)
    film.release()
    video = VideoFile(tmp_path / "a.avi")
    assert video.rate == written and len(list(video)) == 1
    assert cv2.VideoWriter(str(tmp_path / "b.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), video.rate, (64, 64)).isOpened()


def test_numbers_at_the_ends_of_names_are_no_suffixes(tmp_path):
    names = [f"1.2.840.{number}" for number in range(3)]
    for name in names:
        (tmp_path / name).write_bytes(bytes(128) + b"DICM")
    assert [source.name for source in find_sources([tmp_path], tmp_path.parent / "x")] == names


def test_names_of_deep_folders_are_cut_to_what_a_disk_holds(tmp_path):
    folder = tmp_path.joinpath(*["ä" * 60] * 3)
    touch(folder / "1.png", folder / "2.png")
    names = [source.name for source in find_sources([tmp_path], tmp_path.parent / "x")]
    assert [name[-3:] for name in names] == ["ä_1", "ä_2"] and all(len(os.fsencode(name)) <= 180 for name in names)
    touch(tmp_path / "dots" / f"{'a' * 50}.{'b' * 179}.png")  # what begins with a dot is hidden
    assert [source.name for source in find_sources([tmp_path / "dots"], tmp_path / "x")] == ["b" * 179]


@pytest.mark.parametrize("part", ["annotations", "categories", "images"])
def test_corrections_are_not_replaced(part, tmp_path):
    box = {"image_id": 1, "category_id": 1, "bbox": [0.1, 2.0, 3.3, 4.0], "score": 0.7}
    image = {"height": 9, "width": 12, "objects": [box, box]}
    images = [{**image, "id": number, "file_name": f"{tmp_path}/{number}.png"} for number in (1, 2)]
    images[1]["objects"] = [{**box, "image_id": 2}]
    write_objects(tmp_path, images, ["a"], 1, "weights")
    write_images(tmp_path, images, ["a"])
    expect_uncorrected(tmp_path / "data_set.json")
    path = tmp_path / "data_set.json"
    content = json.loads(path.read_text())
    if part == "categories":
        content[part][0]["name"] = "corrected"
    else:
        del content[part][0]
    path.write_text(json.dumps(content))
    message = refusal(FilePredictor.run, SimpleNamespace(output=tmp_path), [])
    assert f"{path} has been changed since it was written" in message


def test_maps_of_an_earlier_call_are_gone_where_the_next_one_writes_none(inputs, tmp_path):
    (tmp_path / "x").mkdir()
    earlier = [tmp_path / "x" / name for name in ("predictions.gpkg", "predictions.geojson", "data_set.json.sha256")]
    touch(*earlier)
    weights = str(weights_of("retinanet_fpn", tmp_path))
    cfg = finetuned_config(Namespace(weights=weights, config_file="", opts=FEW.split()))
    FilePredictor(cfg, tmp_path / "x").run(find_sources([tmp_path / "film.mp4"], tmp_path / "x"))
    assert (tmp_path / "x/predictions.json").is_file() and not any(path.exists() for path in earlier)


def test_pictures_of_an_earlier_call_are_named(inputs, tmp_path):
    command = f"python tools/predict.py --weights {weights_of('detection', tmp_path)} --output {tmp_path}/x"
    one, other = f"'{inputs}/one.png'", f"'{tmp_path}/film.mp4'"
    assert "other pictures" not in run(f"{command} {one} {other} MODEL.DEVICE cpu", tmp_path)
    note = "note: 1 other pictures are there, such as film.mp4: of an earlier call, or of others"
    assert note in run(f"{command} {one} MODEL.DEVICE cpu", tmp_path)


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
    words = f"--opts {FEW}"
    tool(f"{command} --output {output} {files[0]} {words}")()
    earlier |= {name: (output / name).read_bytes() for name in ("images.json", "predictions.json")}
    call = tool(f"{command} --output {output} {tmp_path}/photos {words}")
    assert kill_at_every_change(call, output, begin=begin, look=look, whole=whole, step=1 if ALL else 15) >= 1
