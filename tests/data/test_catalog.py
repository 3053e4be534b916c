"""Data sets by name: fixed names under DETECTRON2_DATASETS, and KIND:PATH for any data on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import revisit  # noqa: F401  (registers the fixed names)
from projects.ToyScenes import CLASS_NAMES as TOY_CLASSES
from revisit.data.catalog import get_records
from revisit.data.image_folders import load_folder
from revisit.data.sources import KINDS
from revisit.errors import UserError

from detectron2.data import DatasetCatalog, MetadataCatalog


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names_under(folder, records):
    return [Path(record["file_name"]).relative_to(folder).as_posix() for record in records]


def test_a_folder_gives_its_images_in_sorted_order(tmp_path):
    wanted = ["b.jpg", "a/2.PNG", "a/10.jpeg", "a/deep/er/x.webp", "c.tiff"]
    touch(*(tmp_path / name for name in wanted))
    touch(tmp_path / "notes.txt", tmp_path / "a" / "labels.json", tmp_path / "jpg", tmp_path / "movie.mp4")
    records = get_records(f"folder:{tmp_path}")
    assert names_under(tmp_path, records) == sorted(wanted)
    assert all(record.keys() == {"file_name"} for record in records)


def test_a_folder_can_be_named_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    touch(tmp_path / "from_home" / "a.jpg")
    assert len(get_records("folder:~/from_home")) == 1


def test_a_loop_of_links_ends(tmp_path):
    touch(tmp_path / "a" / "1.jpg")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a")
    assert names_under(tmp_path, get_records(f"folder:{tmp_path}")) == ["a/1.jpg"]


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)], ids=["sorted", "reversed"])
def test_a_folder_met_twice_counts_once_whatever_order_the_disk_has(tmp_path, monkeypatch, order):
    touch(tmp_path / "elsewhere" / "1.jpg")
    for name in ("b", "a", "c"):
        (tmp_path / "root" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "root" / name).symlink_to(tmp_path / "elsewhere")
    walk = os.walk

    def walk_in_order(top, **options):
        for folder, subfolders, names in walk(top, **options):
            subfolders[:] = order(subfolders)
            yield folder, subfolders, names

    monkeypatch.setattr(os, "walk", walk_in_order)
    assert names_under(tmp_path / "root", load_folder(tmp_path / "root")) == ["a/1.jpg"]


@pytest.mark.parametrize("kind", ["folder", "list", "class_folders"])
def test_a_path_that_is_missing_is_named(tmp_path, kind):
    with pytest.raises(UserError, match=f"{tmp_path}/nowhere"):
        get_records(f"{kind}:{tmp_path}/nowhere")


def test_an_empty_folder_is_refused_with_the_suffixes(tmp_path):
    touch(tmp_path / "readme.txt")
    with pytest.raises(UserError, match=f"no images in {tmp_path}: .*jpg"):
        get_records(f"folder:{tmp_path}")


def test_a_list_names_images_from_its_own_folder(tmp_path):
    touch(tmp_path / "images" / "a b.jpg", tmp_path / "ü.png", tmp_path / "other" / "c.jpg")
    lines = ["# a comment", "images/a b.jpg", "", "  ü.png  ", str(tmp_path / "other" / "c.jpg"), "images/a b.jpg"]
    expected = ["images/a b.jpg", "ü.png", "other/c.jpg", "images/a b.jpg"]  # in the order of the file
    for n, (newline, mark) in enumerate([("\n", b""), ("\r\n", b""), ("\n", b"\xef\xbb\xbf")]):
        path = tmp_path / f"{n}.txt"
        path.write_bytes(mark + newline.join(lines).encode())  # no newline at the end
        assert names_under(tmp_path, get_records(f"list:{path}")) == expected


def test_a_list_that_names_a_missing_image_is_refused(tmp_path):
    touch(tmp_path / "here.jpg")
    (tmp_path / "list.txt").write_text("here.jpg\nsub/gone.jpg\n")
    with pytest.raises(UserError, match=r"list\.txt names sub/gone\.jpg"):
        get_records(f"list:{tmp_path}/list.txt")


@pytest.mark.parametrize(
    "content, match", [(b"", "names no image"), (b"# a\n\n", "names no image"), (b"\xff\xd8", "UTF-8")]
)
def test_a_list_without_paths_is_refused(tmp_path, content, match):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UserError, match=match):
        get_records(f"list:{tmp_path}/list.txt")


def test_class_folders_are_labelled_in_sorted_order(tmp_path):
    touch(tmp_path / "wren" / "1.jpg", tmp_path / "Auk" / "2.jpg", tmp_path / "kite" / "sub" / "3.jpg")
    touch(tmp_path / "kite" / "0.jpg", tmp_path / "licence.txt")
    name = f"class_folders:{tmp_path}"
    records = get_records(name)
    labels = [(path, record["label"]) for path, record in zip(names_under(tmp_path, records), records, strict=True)]
    assert labels == [("Auk/2.jpg", 0), ("kite/0.jpg", 1), ("kite/sub/3.jpg", 1), ("wren/1.jpg", 2)]
    assert MetadataCatalog.get(name).thing_classes == ["Auk", "kite", "wren"]


def test_a_class_folder_without_images_is_named(tmp_path):
    touch(tmp_path / "auk" / "1.jpg", tmp_path / "dodo" / "extinct.txt")
    with pytest.raises(UserError, match=f"{tmp_path}/dodo"):
        get_records(f"class_folders:{tmp_path}")


def test_a_folder_without_class_folders_is_refused(tmp_path):
    touch(tmp_path / "1.jpg")
    with pytest.raises(UserError, match="no class folders"):
        get_records(f"class_folders:{tmp_path}")


@pytest.mark.parametrize("name", ["no_such_data", "folders:/tmp", "folder:", "", "voc"])
def test_an_unknown_name_is_answered_with_what_there_is(name):
    with pytest.raises(UserError) as error:
        get_records(name)
    for expected in (repr(name), "coco_2017_train_images", "cifar10_train", "toy_scenes_train", *KINDS):
        assert expected in str(error.value)
    assert name not in DatasetCatalog.list()


def test_toy_data_that_nothing_imported_are_answered_with_what_imports_them():
    with pytest.raises(UserError, match=r"""unknown data set 'toy_x': add IMPORTS "\('projects.ToyScenes',\)\""""):
        get_records("toy_x")


def test_the_core_imports_no_project():
    loaded = "import sys, revisit.engine.trainer; print([name for name in sys.modules if name.startswith('projects')])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_name_may_be_asked_for_twice(tmp_path):
    touch(tmp_path / "a.jpg")
    assert get_records(f"folder:{tmp_path}") == get_records(f"folder:{tmp_path}")


FIXED = [
    "coco_2017_train_images",
    "cifar10_train",
    "cifar10_test",
    "toy_scenes_train",
    "toy_objects_heldout",
    "toy_voc_test",
]


@pytest.mark.parametrize("name", FIXED)
def test_fixed_data_that_is_missing_says_where_it_belongs_and_what_else_to_try(tmp_path, monkeypatch, name):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    folder = "coco/train2017" if name.startswith("coco") else name.split("_")[0]
    with pytest.raises(UserError) as error:
        get_records(name)
    for expected in (f"{tmp_path}/{folder}", f"DETECTRON2_DATASETS={tmp_path}", "make_toy_scenes.py"):
        assert expected in str(error.value)


def test_without_the_variable_data_are_looked_for_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DETECTRON2_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="datasets/coco/train2017 .*unset"):
        get_records("coco_2017_train_images")
    touch(tmp_path / "datasets" / "coco" / "train2017" / "1.jpg")
    assert len(get_records("coco_2017_train_images")) == 1


def test_coco_images_need_no_annotations(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    touch(tmp_path / "coco" / "train2017" / "2.jpg", tmp_path / "coco" / "train2017" / "1.jpg")
    records = get_records("coco_2017_train_images")
    assert names_under(tmp_path, records) == ["coco/train2017/1.jpg", "coco/train2017/2.jpg"]
    assert MetadataCatalog.get("coco_2017_train_images").expected_images == 118287


def test_data_of_detectron2_that_are_missing_are_answered_alike(tmp_path, monkeypatch):
    def load():
        return (tmp_path / "instances.json").read_text()

    DatasetCatalog.register(f"theirs_{tmp_path.name}", load)
    with pytest.raises(UserError, match="instances.json"):
        get_records(f"theirs_{tmp_path.name}")


def test_the_toy_world_is_found_by_its_fixed_names(toy_datasets):
    objects = {split: get_records(f"toy_objects_{split}") for split in ("train", "heldout")}
    for records in objects.values():
        assert all(
            Path(r["file_name"]).is_file() and Path(r["file_name"]).parent.name == TOY_CLASSES[r["label"]]
            for r in records
        )
    assert MetadataCatalog.get("toy_objects_train").thing_classes == list(TOY_CLASSES)
    scenes = get_records("toy_scenes_train")
    assert scenes and all(Path(record["file_name"]).is_file() for record in scenes)
    for split in ("trainval", "test"):
        assert all(Path(record["file_name"]).is_file() for record in get_records(f"toy_voc_{split}"))
