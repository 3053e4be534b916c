"""Shards whose images were made smaller: which were, that everybody knows it, and who may use them."""

import io
from functools import partial
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image
from tiny import tiny_config
from trees import logged, pack, refusal, write

import projects.FrozenEvaluations.linear  # noqa: F401  (declares LINEAR)
from projects.FrozenEvaluations.labelled_sets import read_set
from projects.LargeData.shards import load_shards
from projects.Weights.recalibration import recalibrate
from revisit.data.images.image_bytes import read_sample
from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.images.reader import UnreadableImageError, read_record
from revisit.data.sources.image_folders import load_class_folders
from revisit.engine.data_checks import inspect_evaluation, inspect_training

SIDE = 24
COMMAND = "--data class_folders:{} --output {} --count 4 --short-side {}"


def jpeg(picture: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Nine images in three classes: large, small and turned JPEGs, a PNG of each size; one is broken, one empty."""
    root = tmp_path_factory.mktemp("images")
    y, x = np.mgrid[0:96, 0:131]
    large = np.stack([y * 2, x * 1.5, 200 - y], -1).astype(np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    files = [
        *(jpeg(large), jpeg(large[:SIDE]), jpeg(large, exif=turned), jpeg(large[:, :25]), jpeg(large)[:-300], b""),
        *(cv2.imencode(".png", each[..., ::-1])[1].tobytes() for each in (large, large[:20], large[..., 0])),
    ]
    for n, data in enumerate(files):
        write(root / f"class{n % 3}/{n}.{'png' if n > 5 else 'jpg'}", data)
    return root


@pytest.fixture(scope="module")
def made(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    pack(COMMAND.format(images, folder, SIDE))
    return folder


def is_whole(record: dict) -> bool:
    try:
        return read_record(record, PHOTOGRAPHS) is not None
    except UnreadableImageError:
        return False


def test_images_whose_short_side_is_longer_become_upright_jpegs_of_it_and_others_keep_their_bytes(images, made):
    changed = 0
    originals = [each for each in load_class_folders(images) if is_whole(each)]
    for record, original in zip(load_shards(str(made)).records, originals, strict=True):
        data, whole = read_sample(record), read_record(original, PHOTOGRAPHS)
        assert record["label"] == original["label"]
        if min(whole.shape[:2]) <= SIDE:
            with open(original["file_name"], "rb") as file:
                assert data == file.read()
            continue
        small, changed = read_record(record, PHOTOGRAPHS), changed + 1
        height, width = whole.shape[:2]
        assert small.shape == (*(round(side * SIDE / min(height, width)) for side in (height, width)), 3)
        assert min(small.shape[:2]) == SIDE and data.startswith(b"\xff\xd8\xff") and b"Exif" not in data
        expected = cv2.resize(whole, small.shape[1::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(small.astype(int) - expected).mean() < 3
    assert changed == 5


def test_a_call_with_other_options_is_refused(images, made):
    command = COMMAND.format(images, made, SIDE)
    for words in (
        f"{command} --rule quality=50",
        command.replace(f"de {SIDE}", "de 25"),
        command.partition(" --short")[0],
    ):
        assert "--short-side, --rule quality" in refusal(pack, words)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--short-side 9", "--data"),
        ("--data folder:{0} --rule quality=80", "--short-side"),
        ("--data folder:{0} --short-side 8 --rule quality=101", "--rule quality=101"),
        ("--data folder:{0} --short-side 20000", "--short-side is 20000"),
        ("--data folder:{0} --short-side 8", "deep.png"),
        ("--data folder:{0}/long --short-side 20", "68000 x 20 px"),
    ],
)
def test_what_cannot_be_made_smaller_is_refused_in_one_line(tmp_path, options, named):
    deep, long = np.full((30, 40), 4000, np.uint16), np.zeros((30, 102000), np.uint8)
    write(tmp_path / "images/deep.png", cv2.imencode(".png", deep)[1].tobytes())
    write(tmp_path / "images/long/1.png", cv2.imencode(".png", long)[1].tobytes())
    options = options.format(tmp_path / "images")
    assert named in refusal(pack, f"--output {tmp_path}/s --processes 1 {options}")


@pytest.mark.parametrize(
    ("key", "options", "size", "least"),
    [
        ("KNN_EVAL.BANK", ("DATASETS.TEST", ("{}",)), 21, 26),  # 256 / 224 of 21 px are 24
        ("MONITOR.IMAGES", (), 21, 26),
        (None, (), 24, 25),
        (None, ("LINEAR.TRANSFORM", "center_crop"), 21, 26),
        (None, ("LINEAR.METHOD", "sgd"), 21, 26),
    ],
)
def test_an_evaluation_takes_them_where_it_enlarges_none(made, monkeypatch, key, options, size, least):
    name, cfg = f"shards:{made}", tiny_config("KNN_EVAL.NUM_NEIGHBORS", 2)
    cfg.merge_from_list([(name,) if word == ("{}",) else word for word in (*options, *((key, name) if key else ()))])
    node, read = (cfg.KNN_EVAL, partial(inspect_evaluation, cfg)) if key else (cfg.LINEAR, partial(read_set, cfg, name))
    node.IMAGE_SIZE = size
    monkeypatch.setattr("revisit.engine.data_checks.look_at_images", lambda *_, **options: [])  # one of them is broken
    read()
    node.IMAGE_SIZE = size + 1
    line = refusal(read)
    assert f"short side of {SIDE} px" in line and f"IMAGE_SIZE {size + 1}" in line and f"{least} px" in line


def test_a_training_notes_smaller_images_and_statistics_refuse_them(made, monkeypatch):
    monkeypatch.setattr("revisit.engine.data_checks.look_at_images", lambda *_, **options: [])  # one of them is broken
    cfg = tiny_config("DATASETS.TRAIN", (f"shards:{made}",))
    notes = logged(inspect_training, cfg)
    assert f"made smaller, to a short side of {SIDE} px" in str(notes)
    folded = {"MODEL.RESNETS.NORM": "FrozenBN"}
    weights = SimpleNamespace(description=SimpleNamespace(FOLDED=folded), flags=folded)
    assert "expected at least 256 px" in refusal(recalibrate, weights, f"shards:{made}")
