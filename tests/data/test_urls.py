"""Weights with their flags, files of boxes, lists and names at URLs, through Detectron2's PathManager."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import torch
from checkpoints import load_into, run_checkpoint, write_converted
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_config
from trees import refused

from revisit.checkpoint.flags import read_flags
from revisit.data.sources.catalog import get_records
from revisit.data.sources.layouts import split_parts
from revisit.files import local_copy


def test_weights_at_a_url_come_with_their_flags(served, tmp_path):
    write_converted(run_checkpoint(), tmp_path / "served/backbone.pth")
    model = load_into(tiny_config(), f"{served}/backbone.pth")
    expected = torch.load(tmp_path / "served/backbone.pth")["model"]["stem.conv1.weight"]
    assert torch.equal(model.backbone.stem.conv1.weight, expected)
    refused("INPUT.FORMAT", load_into, tiny_config("INPUT.FORMAT", "BGR"), f"{served}/backbone.pth")
    assert read_flags(f"{served}/gone.pth") == (None, "", "")
    refused(f"MODEL.WEIGHTS {served}/gone.pth cannot be fetched", load_into, tiny_config(), f"{served}/gone.pth")


def test_a_query_is_asked_for_and_is_no_part_of_the_files_name(served, tmp_path):
    write_converted(run_checkpoint(), tmp_path / "served/backbone.pth")
    copies = [local_copy(f"{served}/backbone.pth?sig={'a' * 200}%2F{n}") for n in (1, 1, 2)]
    assert {copy.name for copy in copies} == {"backbone.pth"} and len(set(copies)) == 2
    load_into(tiny_config(), f"{served}/backbone.pth?sig=1")
    refused("gone.pth cannot be fetched", local_copy, f"{served}/gone.pth?sig=1")


def test_flags_of_a_server_that_does_not_answer_are_not_taken_for_none():
    refused("flags of the weights .*backbone.yaml cannot be fetched", read_flags, "http://127.0.0.1:1/backbone.pth")


def write_boxes(folder: Path) -> None:
    """Two images in ``folder``, and their boxes, names and list below served/ beside it."""
    folder.mkdir()
    images, boxes = [], []
    for number in range(2):
        cv2.imwrite(str(folder / f"{number}.jpg"), np.full((40, 50, 3), 90 * number, np.uint8))
        images.append({"id": number, "file_name": f"{number}.jpg", "height": 40, "width": 50})
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [1, 2, 10, 20], "iscrowd": 0})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "crate"}]}
    served = folder.parent / "served"
    (served / "boxes.json").write_text(json.dumps(content))
    (served / "list.txt").write_text(f"{folder}/1.jpg\n")


def test_boxes_and_lists_at_a_url_are_those_of_the_file(served, tmp_path):
    write_boxes(tmp_path / "photos")
    records = get_records(f"coco:{tmp_path}/photos:{served}/boxes.json")
    assert [(record["file_name"], len(record["annotations"])) for record in records] == [
        (f"{tmp_path}/photos/0.jpg", 1),
        (f"{tmp_path}/photos/1.jpg", 1),
    ]
    assert get_records(f"list:{served}/list.txt") == [{"file_name": f"{tmp_path}/photos/1.jpg"}]
    refused(
        f"data set .*: {served}/gone.json cannot be fetched", get_records, f"coco:{tmp_path}/photos:{served}/gone.json"
    )
    refused("is a URL", get_records, f"coco:{served}/photos:{tmp_path}/served/boxes.json")


def test_a_checkpoint_at_a_url_is_converted(served, tmp_path):
    torch.save(run_checkpoint(), tmp_path / "served/model.pth")
    text = run(f"python tools/convert_to_d2.py {served}/model.pth {tmp_path}/backbone.pth", tmp_path)
    assert "revisit layout" in text and (tmp_path / "backbone.yaml").is_file()


# Not like 80/, which after s3://host is a port.
PLAIN = st.text(st.characters(exclude_characters=":"), min_size=2).filter(lambda text: not re.match(r"\d+/", text))
PARTS = st.one_of(PLAIN, PLAIN.map("s3://{}".format), PLAIN.map("C:\\{}".format), PLAIN.map("http://h:80/{}".format))


@given(st.lists(PARTS, min_size=1, max_size=3))
def test_a_name_is_split_at_the_colons_between_its_parts_alone(parts):
    assert split_parts(":".join(parts), len(parts)) == parts


def test_an_earlier_colon_belongs_to_the_first_part():
    assert split_parts("/data/a:bc:/x.json", 2) == ["/data/a:bc", "/x.json"]
    assert split_parts("/data/a:b", 1) == ["/data/a:b"]
