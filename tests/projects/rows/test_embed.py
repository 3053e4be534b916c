"""Rows of images and boxes are those of the network itself; neighbours are those of all cosines; the commands."""

import csv
import hashlib
import json
import pickle
import runpy
import shlex
import shutil
import sys
import tracemalloc
from argparse import Namespace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from checkpoints import finetuned_checkpoint
from commands import ROOT, one_line_error, run
from PIL import Image
from torch.nn.functional import normalize
from trees import refused

from projects.Predict.predictions import finetuned_config, load_finetuned
from projects.Rows import embedding
from projects.Rows.embedders import OPTIONS, BoxesOfMaps, Named, WholeImages, embedder_of
from projects.Rows.embedding import embed
from projects.Rows.own_features import of_maps, own_features
from projects.Rows.regions import Places, boxes_of, whole_images
from projects.Rows.row_table import RowTable, load_table, save_parquet
from projects.Rows.similar import similar_to
from revisit.api import embed as embed_in_python
from revisit.api import load_backbone
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.images.reader import read_image
from revisit.errors import UserError
from revisit.evaluation.nearest import nearest, nearest_others
from revisit.jobs import parts
from revisit.network.network_maps import network_maps, resized

from detectron2.modeling import build_model


@pytest.fixture
def boxes_file(write_pictures, tmp_path):
    """A data set of three images, 90 x 120 px, the last without boxes; its name."""
    pictures = write_pictures(tmp_path / "photos", 3, size=(90, 120))
    images = [{"id": n, "file_name": path.name, "height": 90, "width": 120} for n, path in enumerate(pictures)]
    annotations = [
        {"id": n, "image_id": image, "category_id": category, "bbox": box, "iscrowd": 0, "area": 1}
        for n, (image, category, box) in enumerate(
            [(0, 1, [10, 20, 30, 40]), (0, 2, [60, 5, 50, 50]), (1, 1, [0, 0, 120, 90])], start=1
        )
    ]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return f"coco:{tmp_path}/photos:{tmp_path}/boxes.json"


def unit_rows(count, width, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def table_of(*names: str) -> RowTable:
    rows = unit_rows(len(names), 4)
    about = {"of": "image", "weights": "https://host/b.pth?X-Amz-Signature=SECRET"}
    return RowTable(rows, np.array(names), np.zeros((len(names), 4)), np.zeros(len(names), np.int64), about)


def test_parquet_has_no_secret_and_no_name_that_is_no_text(tmp_path, monkeypatch):
    arrow, parquet = Mock(), Mock()  # which most environments lack
    parquet.write_table.side_effect = lambda content, path: Path(path).touch()
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    save_parquet(tmp_path / "rows.parquet", table_of("a.jpg", "\u00e9.jpg"))
    (metadata,) = arrow.table.return_value.replace_schema_metadata.call_args.args
    assert json.loads(metadata["about"]) == {"of": "image", "weights": "https://host/b.pth"}
    odd = table_of("a.jpg", "b\udcff.jpg")
    refused("not b.udcff.jpg: rename the files, or take npz", save_parquet, tmp_path / "odd", odd)


def test_parquet_without_its_package_is_refused_before_anything_is_embedded(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = shlex.split("embed.py --weights random --data x --format parquet --output o")
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(UserError, match="needs pyarrow"):
        runpy.run_path(f"{ROOT}/tools/embed.py")["main"]()


def test_neighbours_are_those_of_all_cosines():
    rows = unit_rows(2500, 16)
    rows[7] = rows[1234]  # twice the same
    cosines = rows.astype(np.float64) @ rows.astype(np.float64).T
    indices, similar = (each.numpy() for each in nearest(rows[:5], rows, 10))
    expected = np.argsort(-cosines[:5], axis=1, kind="stable")[:, :10]
    assert (indices == expected).all()
    assert similar == pytest.approx(np.take_along_axis(cosines[:5], expected, axis=1), abs=1e-6)
    np.fill_diagonal(cosines, -2)
    others = nearest_others(rows, 3).places.numpy()
    assert (np.sort(others) == np.sort(np.argsort(-cosines, axis=1, kind="stable")[:, :3])).all()
    assert others[7, 0] == 1234 and others[1234, 0] == 7


def test_rows_that_are_all_alike_have_others_as_neighbours():
    others, cosines = (each.numpy() for each in nearest_others(np.tile(unit_rows(1, 4), (6, 1)), 2))
    assert others.shape == (6, 2) and (others != np.arange(6)[:, None]).all()
    assert cosines == pytest.approx(np.ones((6, 2)))
    assert nearest_others(unit_rows(1, 4), 2).places.shape == (1, 0)


def test_rows_of_images_are_those_of_python(weights, write_pictures, tmp_path):
    pictures = write_pictures(tmp_path / "photos", 5)
    table = embed(whole_images(f"folder:{tmp_path}/photos"), WholeImages(weights, 32, "cpu"), tmp_path)
    assert table.files.tolist() == list(map(str, pictures)) and table.boxes[0].tolist() == [0, 0, 40, 30]
    expected = embed_in_python(load_backbone(weights), f"folder:{tmp_path}/photos", size=32)
    assert table.rows == pytest.approx(expected, abs=1e-6)
    of_one_file = embed_in_python(load_backbone(weights), pictures[2], size=32)
    assert of_one_file == pytest.approx(expected[2:3], abs=1e-6)


def test_rows_of_boxes_are_those_of_a_probe(weights, boxes_file, tmp_path):
    table = embed(boxes_of(boxes_file), BoxesOfMaps(weights, 8, 96, False, "cpu"), tmp_path)
    assert table.classes.tolist() == ["cat", "dog", "cat"]
    assert table.boxes.tolist() == [[10, 20, 40, 60], [60, 5, 110, 55], [0, 0, 120, 90]]
    image = resized(read_image(table.files[0]), 96, 32)
    assert image.shape == (96, 128, 3)
    network = network_maps(weights, 8, count=3)
    maps = network(torch.from_numpy(image).permute(2, 0, 1)[None])
    boxes = torch.from_numpy(table.boxes[:2]) * torch.tensor([128 / 120, 96 / 90] * 2)
    strides = {"res3": 8, "res4": 16, "res5": 32}
    expected = normalize(of_maps(maps, strides, boxes))  # what projects/CompareStarts probes
    assert table.rows[:2] == pytest.approx(expected.numpy(), abs=1e-6)


def test_boxes_of_an_image_that_exif_turns_are_left_out_where_they_are_not_turned(weights, boxes_file, tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    picture = Image.open(tmp_path / "photos/001.png")
    picture.save(tmp_path / "photos/001.png", exif=turned)
    table = embed(boxes_of(boxes_file), BoxesOfMaps(weights, 8, 96, False, "cpu"), tmp_path)
    assert table.files.tolist() == [str(tmp_path / "photos/000.png")] * 2
    (line,) = table.about["left out"]
    assert "001.png has 90 x 120 px and its annotation 120 x 90 px (width x height, upright as EXIF turns it)" in line


def test_rows_of_a_box_head_are_those_of_a_probe(boxes_file, tmp_path):
    weights = finetuned_checkpoint("faster_rcnn_fpn", tmp_path)
    arguments = Namespace(**dict.fromkeys(OPTIONS), device="cpu")
    vars(arguments).update(weights=str(weights), box_head=True, config_file="", opts=["MODEL.DEVICE", "cuda"])
    table = embed(boxes_of(boxes_file), embedder_of(arguments, []), tmp_path / "photos")  # --device comes last
    cfg = finetuned_config(Namespace(weights=str(weights), config_file="", opts=["MODEL.DEVICE", "cpu"]))
    model, drawn = load_finetuned(cfg)[0], build_model(cfg)
    features = own_features(model, drawn)
    assert features.title == "neck and box head" and table.rows.shape == (3, cfg.MODEL.ROI_BOX_HEAD.FC_DIM)
    image = DetectionMapper(cfg, is_train=False)({"file_name": table.files[0]})["image"]
    pixels = ((image - model.pixel_mean) / model.pixel_std)[None]
    padded = torch.nn.functional.pad(pixels, (0, -pixels.shape[3] % 32, 0, -pixels.shape[2] % 32))
    boxes = torch.from_numpy(table.boxes[:2]) * torch.tensor([image.shape[2] / 120, image.shape[1] / 90] * 2)
    with torch.no_grad():
        expected = normalize(features.rows(padded, boxes))
    assert table.rows[:2] == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_worker_gets_what_prepares_an_image_without_the_network(weights, make_picture):
    image = make_picture(90, 120)
    for embedder in (WholeImages(weights, 32, "cpu"), BoxesOfMaps(weights, 8, 96, False, "cpu")):
        content = pickle.dumps(embedder.prepare)
        assert len(content) < 1000
        assert np.array_equal(pickle.loads(content)({}, image), embedder.prepare({}, image))


def test_a_box_of_the_table_is_most_similar_to_others_than_itself(weights, boxes_file, tmp_path):
    embedder = BoxesOfMaps(weights, 8, 96, False, "cpu")
    options = {"weights": weights, "boxes": boxes_file, "box_head": False, "size": 224, "stride": 8}
    embedder.about["options"] = {**options, "short_side": 96, "pyramid": False, "config_file": "", "opts": []}
    table = embed(boxes_of(boxes_file), embedder, tmp_path / "photos")
    similar = similar_to(table, Path(table.files[0]), [10, 20, 40, 60], 5, Named(weights))
    assert sorted(similar.places.tolist()) == [1, 2]
    cosines = table.rows[similar.places] @ table.rows[0]
    assert similar.cosines == pytest.approx(cosines, abs=1e-5) and cosines[0] >= cosines[1]
    for box in ([40, 60, 10, 20], [20, 20, 20, 20], [5000, 5000, 5050, 5050]):
        refused(
            "has no area in an image of .*: expected X0 Y0 X1 Y1",
            similar_to,
            table,
            Path(table.files[0]),
            box,
            5,
            Named(weights),
        )


def test_an_interrupted_command_continues_with_the_same_bytes(weights, write_pictures, tmp_path, monkeypatch):
    write_pictures(tmp_path / "photos", 7)
    (tmp_path / "photos/003.png").write_bytes(b"no image")
    monkeypatch.setattr(embedding, "PART", 2)
    monkeypatch.setattr(parts, "SECONDS", 0)
    places = whole_images(f"folder:{tmp_path}/photos")
    outputs = [tmp_path / name for name in ("whole", "killed")]
    for output in outputs:
        output.mkdir()
    embedder = WholeImages(weights, 32, "cpu")
    whole = embed(places, embedder, outputs[0])
    assert len(whole.rows) == 6 and "003.png" in whole.about["left out"][0]
    rows, calls = embedder.rows, []

    def killed(batch):
        calls.append(len(batch))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rows(batch)

    monkeypatch.setattr(embedder, "rows", killed)
    with pytest.raises(KeyboardInterrupt):
        embed(places, embedder, outputs[1])
    assert len(list((outputs[1] / "parts").iterdir())) == 2
    embed(places, embedder, outputs[1])
    assert calls == [2, 1, 2, 2, 1]  # of seven images one cannot be read; the first two parts are not made again
    assert (outputs[0] / "embeddings.npz").read_bytes() == (outputs[1] / "embeddings.npz").read_bytes()


def test_the_commands_write_a_table_and_a_sheet(weights, write_pictures, tmp_path):
    pictures = write_pictures(tmp_path / "photos", 4)
    words = f"--weights {weights} --data folder:{tmp_path}/photos --size 32 --readers 0"
    command = f"python tools/embed.py {words} --format npz csv --output {tmp_path}/rows"
    assert f"4 rows of 64 numbers, of 4 images: {tmp_path}/rows" in run(command, tmp_path)
    assert "is there already" in run(command, tmp_path)
    shutil.copytree(tmp_path / "photos", tmp_path / "other/photos", copy_function=shutil.copy2)
    other = command.replace(f"folder:{tmp_path}/photos", f"folder:{tmp_path}/other/photos")
    assert "other settings (folder)" in run(other, tmp_path, expect=2)  # whose files are called and sized alike
    table = load_table(tmp_path / "rows")
    broken = tmp_path / "broken.npz"
    for size in (0, 1000):
        broken.write_bytes((tmp_path / "rows/embeddings.npz").read_bytes()[:size])
        refused("broken.npz is no table", load_table, broken)
    with open(tmp_path / "rows/embeddings.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header[:7] == ["file_name", "x0", "y0", "x1", "y1", "class", "v0"] and len(lines) == 4
    assert np.array([line[6:] for line in lines], np.float32) == pytest.approx(table.rows)
    find = f"python tools/similar.py --embeddings {tmp_path}/rows --data {pictures[0]} --output {tmp_path}/similar.png"
    find += f" --weights {weights}"
    lines = [line for line in run(find, tmp_path).splitlines() if ".png" in line and line[0].isdigit()]
    assert len(lines) == 3 and str(pictures[0]) not in "".join(lines)
    assert (tmp_path / "similar.png").stat().st_size > 1000


def test_a_table_names_the_same_files_wherever_it_is_read(weights, write_pictures, tmp_path, monkeypatch):
    """Of a query with the relative name of another folder its own row was the most similar one."""
    pictures = write_pictures(tmp_path / "photos", 3)
    monkeypatch.chdir(tmp_path)
    places = whole_images("folder:photos")
    table = embed(places, WholeImages(weights, 32, "cpu"), tmp_path)
    assert table.files.tolist() == [*map(str, pictures)] and not places[0].record["file_name"].startswith("/")


def test_boxes_of_predictions_are_read(weights, write_pictures, tmp_path):
    (picture,) = write_pictures(tmp_path / "photos", 1, size=(90, 120))
    images = {"images": [{"id": 1, "file_name": str(picture)}], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "images.json").write_text(json.dumps(images))
    objects = [{"image_id": 1, "category_id": 1, "bbox": [10, 20, 30, 40], "score": 0.9}]
    (tmp_path / "predictions.json").write_text(json.dumps(objects))
    (places,) = boxes_of(f"{tmp_path}/predictions.json")
    assert places.boxes.tolist() == [[10, 20, 40, 60]] and places.classes == ["cat"]


def test_refusals_say_what_to_do(weights, write_pictures, boxes_file, tmp_path):
    write_pictures(tmp_path / "others", 1)
    embed_others = f"python tools/embed.py --weights {weights} --readers 0 --output {tmp_path}/out"
    assert "expected --data, or --boxes" in one_line_error(embed_others, tmp_path)
    named = f"{embed_others} --data folder:{tmp_path}/others --size 32"
    run(named, tmp_path)
    changed = one_line_error(named.replace("others --size", "photos --size"), tmp_path)
    assert "was made with other settings (images" in changed and "another --output" in changed
    without = f"{embed_others}2 --boxes folder:{tmp_path}/others"
    assert "has no boxes: expected a data set with boxes" in one_line_error(without, tmp_path)
    none = f"{embed_others}3 --boxes {boxes_file} --data folder:{tmp_path}/others"
    assert "expected at least one" in one_line_error(none, tmp_path)
    broken = f"{embed_others}4 --boxes {tmp_path}/photos/predictions.json"
    assert "expected predictions.json and images.json" in one_line_error(broken, tmp_path)
    head = f"{embed_others}5 --features box-head --boxes {boxes_file}"
    assert "expected a run's checkpoint, such as model_final.pth" in one_line_error(head, tmp_path)
    query = f"python tools/similar.py --output {tmp_path}/s.png --data {tmp_path}/others/000.png --embeddings"
    assert "expected the output of tools/embed.py" in one_line_error(f"{query} {tmp_path}", tmp_path)
    assert "s.jpg: expected a name in .png" in one_line_error(f"{query} {tmp_path} --output {tmp_path}/s.jpg", tmp_path)
    boxed = one_line_error(f"{query} {tmp_path}/out --boxes 0 0 9 9", tmp_path)
    assert "the table has a row for each image: expected no --boxes" in boxed


def test_the_digest_of_boxes_is_that_of_their_list_in_json_which_is_not_kept():
    boxes = np.random.default_rng(0).random((10, 4), np.float32)
    places = [Places({}, boxes[: number % 10] if number % 7 else None, ["cat"]) for number in range(5000)]
    text = json.dumps([[None if each.boxes is None else each.boxes.tolist(), each.classes] for each in places])
    tracemalloc.start()
    try:
        digest, most = embedding._digest(places), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert digest == hashlib.sha256(text.encode()).hexdigest() and most < len(text)
