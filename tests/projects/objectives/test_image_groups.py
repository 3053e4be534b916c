"""The file of NEIGHBORS.GROUPS: which names it may have, and what is refused."""

import logging
import os
from pathlib import Path

import pytest
from commands import TINY, one_line_error
from runs import run_config
from tiny import tiny_config
from trees import blank_image, refusal, write

from projects.Objectives.image_groups import WithGroups, group_number, groups_of, have_groups
from projects.Objectives.object_boxes import ObjectBoxes
from revisit.data.loading.loader import ResumableLoader
from revisit.data.sources.catalog import get_records
from revisit.data.views.annotation import ViewAnnotator
from revisit.keys import check_values

HEADER = "file_name,group"
NAMES = ("a.jpg", "below/b.jpg", "c.jpg")


@pytest.fixture
def records(tmp_path) -> list[dict]:
    return [{"file_name": str(tmp_path / name)} for name in NAMES]


def file_of(folder: Path, *lines: str) -> str:
    path = folder / "groups.csv"
    write(path, [HEADER, *lines])
    return str(path)


def test_names_are_from_the_files_folder_or_absolute(records, tmp_path):
    path = file_of(tmp_path, "c.jpg,y", f"{tmp_path}/a.jpg,x", "./below/b.jpg,y")
    assert groups_of(path, records) == (["x", "y", "y"], [])


def test_names_may_be_those_of_the_data_set(tmp_path, monkeypatch):
    """Which are then from the working directory."""
    monkeypatch.chdir(tmp_path)
    names = [{"file_name": f"photos/{name}"} for name in NAMES]
    path = file_of(tmp_path / "elsewhere", *(f"photos/{name},{n // 2}" for n, name in enumerate(NAMES)))
    assert groups_of(path, names)[0] == ["0", "0", "1"]


def test_other_columns_and_the_mark_of_a_spreadsheet_do_no_harm(records, tmp_path):
    path = tmp_path / "groups.csv"
    lines = ["\ufeffplate,file_name,group", *(f"7,{name},z" for name in NAMES)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert groups_of(str(path), records)[0] == ["z"] * 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file_name,plate", "a.jpg,x"], "its first line has file_name, plate: expected file_name,group"),
        ([], "its first line has nothing: expected file_name,group"),
        ([HEADER, "a.jpg,x"], "has no group for 2 of 3 images, such as {folder}/below/b.jpg: expected a line"),
        ([HEADER, "a.jpg,x", "b.jpg"], "line 3 lacks a value: expected file_name,group"),
        ([HEADER, "a.jpg,x", ",y"], "line 3 lacks a value"),
        ([HEADER, "a.jpg,x", "a.jpg,y"], "a.jpg is of groups x and y: expected one line for each image"),
        (b"\xff\xfe\x00\xff", "groups.csv: 'utf-8' codec can't decode"),
    ],
)
def test_a_wrong_file_is_one_line(records, tmp_path, lines, message):
    write(tmp_path / "groups.csv", lines)
    line = refusal(groups_of, str(tmp_path / "groups.csv"), records)
    assert line.startswith(f"NEIGHBORS.GROUPS {tmp_path}/groups.csv") and message.format(folder=tmp_path) in line


def test_two_names_of_one_image_are_of_one_group(records, tmp_path):
    path = file_of(tmp_path, "a.jpg,x", "c.jpg,y", "below/b.jpg,y", f"{tmp_path}/a.jpg,y")
    assert f"{tmp_path}/a.jpg is of groups x and y: expected one line for each" in refusal(groups_of, path, records)
    same = file_of(tmp_path, "a.jpg,x", "c.jpg,y", "below/b.jpg,y", f"{tmp_path}/a.jpg,x")
    assert groups_of(same, records)[0] == ["x", "y", "y"]


def test_no_file_and_images_without_names_of_their_own_are_one_line(records):
    assert "nowhere.csv is no file: expected a CSV file with file_name,group, or self" in refusal(
        groups_of, "nowhere.csv", records
    )
    shard = [{"file_name": "shard.tar", "offset": 0, "size": 9}]
    assert "images in shards have no names: expected self" in refusal(groups_of, "nowhere.csv", shard)


def test_a_single_group_is_refused(records, tmp_path):
    path = file_of(tmp_path, *(f"{name},x" for name in NAMES))
    assert "all images are of group x" in refusal(WithGroups(ViewAnnotator(), path).prepare, records)


def test_images_that_the_data_set_lacks_are_warned_of(records, tmp_path, caplog):
    path = file_of(tmp_path, *(f"{name},{n}" for n, name in enumerate([*NAMES, "d.jpg", "e.jpg"])))
    with caplog.at_level(logging.INFO):
        grouped = WithGroups(ViewAnnotator(), path).prepare(records)
    assert "names 2 images that DATASETS.TRAIN lacks: d.jpg, e.jpg" in caplog.text
    assert "3 groups of 1 to 1 images" in caplog.text
    assert [record["group"] for record in grouped] == [group_number("0"), group_number("1"), group_number("2")]
    assert "group" not in records[0]


def test_a_groups_number_follows_from_its_name_alone():
    numbers = [group_number(str(n)) for n in range(10_000)]
    assert len(set(numbers)) == 10_000 and 0 <= min(numbers) and max(numbers) < 2**63
    assert group_number("plate 7") == group_number("plate 7")


def test_each_image_may_be_a_group(records):
    assert [record["group"] for record in WithGroups(ViewAnnotator(), "self").prepare(records)] == [0, 1, 2]


def test_only_images_to_learn_from_need_a_group(records, tmp_path):
    path = file_of(tmp_path, "a.jpg,x")
    options = ("DATASETS.TRAIN", ("photos",), "NEIGHBORS.GROUPS", path)
    cfg = tiny_config("MODEL.META_ARCHITECTURE", "GroupedKNNMoCo", *options)
    assert "has no group for 2 of 3" in refusal(have_groups, cfg, "photos", records, True)
    have_groups(cfg, "bank", records, True)
    have_groups(tiny_config(*options), "photos", records, True)  # which reads no groups


def test_an_unknown_rule_is_refused(tmp_path):
    cfg = tiny_config("NEIGHBORS.GROUP_RULE", "attrakt")
    assert "NEIGHBORS.GROUP_RULE is 'attrakt': expected one of exclude, attract, across" in refusal(check_values, cfg)


def test_a_batch_has_the_group_of_the_image_that_it_shows(tmp_path, write_pictures):
    """Also of one that stands in for an unreadable one."""
    paths = write_pictures(tmp_path / "photos", 8, size=(40, 40))
    path = file_of(tmp_path, *(f"photos/{file.name},{n % 3}" for n, file in enumerate(paths)))
    paths[2].write_bytes(b"no image")
    cfg = run_config(
        tmp_path, "MODEL.META_ARCHITECTURE", "GroupedKNNMoCo", "NEIGHBORS.GROUPS", path, "VIEWS.NUM_SMALL", 0
    )
    cfg.defrost()
    cfg.DATASETS.TRAIN = (f"folder:{tmp_path}/photos",)
    batch = ResumableLoader(cfg).batch_of(0)
    shown = [3 if n == 2 else n for n in batch["index"].tolist()]
    assert batch["group"].tolist() == [group_number(str(n % 3)) for n in shown]


def test_groups_come_with_the_boxes_of_objects(toy_datasets, tmp_path):
    records = get_records("toy_scenes_train")
    boxes = ObjectBoxes(3, (0.3, 0.8), 0.05)
    grouped = WithGroups(boxes, "self").prepare(records)
    assert [record["group"] for record in grouped] == list(range(60))


def test_a_command_ends_before_any_process_starts(toy_datasets, tmp_path):
    blank_image(tmp_path / "photos/a.png", (64, 64))
    blank_image(tmp_path / "photos/b.png", (64, 64))
    path = file_of(tmp_path, "photos/a.png,x")
    command = f"python tools/train_net.py --config-file configs/toy/pretrain.yaml {TINY} OUTPUT_DIR {tmp_path}/run"
    command += f" DATASETS.TRAIN \"('folder:{tmp_path}/photos',)\" MODEL.META_ARCHITECTURE GroupedKNNMoCo"
    line = one_line_error(f"{command} NEIGHBORS.GROUPS {path} SOLVER.IMS_PER_BATCH 2", toy_datasets)
    assert f"NEIGHBORS.GROUPS {path} has no group for 1 of 2 images, such as {tmp_path}/photos/b.png" in line


def test_a_group_whose_name_is_no_text_has_a_number():
    assert group_number(os.fsdecode(b"\xff.jpg")) != group_number("x.jpg")
