"""Data sets by name: fixed names under DETECTRON2_DATASETS, and KIND:PATH for any data on disk."""

import os
import re
from pathlib import Path

import pytest
from trees import one_line_error, touch, write

import revisit  # noqa: F401  (registers the fixed names)
from projects.ToyScenes import CLASS_NAMES as TOY_CLASSES
from revisit.data.catalog import get_records
from revisit.data.image_folders import load_folder
from revisit.data.sources import KINDS

from detectron2.data import DatasetCatalog, MetadataCatalog


def names_under(folder, records):
    return [Path(record["file_name"]).relative_to(folder).as_posix() for record in records]


def test_a_folder_gives_its_images_in_sorted_order(tmp_path):
    wanted = ["b.jpg", "a/2.PNG", "a/10.jpeg", "a/deep/er/x.webp", "c.tiff"]
    touch(*(tmp_path / name for name in (*wanted, "notes.txt", "a/labels.json", "jpg", "movie.mp4")))
    records = get_records(f"folder:{tmp_path}")
    assert names_under(tmp_path, records) == sorted(wanted)
    assert all(record.keys() == {"file_name"} for record in records)
    assert get_records(f"folder:{tmp_path}") == records  # a name may be asked for twice


def test_a_loop_of_links_ends(tmp_path):
    touch(tmp_path / "a/1.jpg")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "a/self").symlink_to(tmp_path / "a")
    assert names_under(tmp_path, get_records(f"folder:{tmp_path}")) == ["a/1.jpg"]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_folder_met_twice_counts_once_whatever_order_the_disk_has(tmp_path, monkeypatch, backwards):
    touch(tmp_path / "elsewhere/1.jpg")
    (tmp_path / "root").mkdir()
    for name in ("b", "a", "c"):
        (tmp_path / "root" / name).symlink_to(tmp_path / "elsewhere")
    walk = os.walk

    def walk_in_order(top, **options):
        for folder, subfolders, names in walk(top, **options):
            subfolders.sort(reverse=backwards)
            yield folder, subfolders, names

    monkeypatch.setattr(os, "walk", walk_in_order)
    assert names_under(tmp_path / "root", load_folder(tmp_path / "root")) == ["a/1.jpg"]


def test_a_list_names_images_from_its_own_folder(tmp_path):
    touch(tmp_path / "images/a b.jpg", tmp_path / "ü.png", tmp_path / "other/c.jpg")
    lines = ["# a comment", "images/a b.jpg", "", "  ü.png  ", f"{tmp_path}/other/c.jpg", "images/a b.jpg"]
    expected = ["images/a b.jpg", "ü.png", "other/c.jpg", "images/a b.jpg"]  # in the order of the file
    for n, (newline, mark) in enumerate([("\n", b""), ("\r\n", b""), ("\n", b"\xef\xbb\xbf")]):
        write(tmp_path / f"{n}.txt", mark + newline.join(lines).encode())  # no newline at the end
        assert names_under(tmp_path, get_records(f"list:{tmp_path}/{n}.txt")) == expected


def test_class_folders_are_labelled_in_sorted_order(tmp_path):
    touch(*(tmp_path / name for name in ("wren/1.jpg", "Auk/2.jpg", "kite/sub/3.jpg", "kite/0.jpg", "licence.txt")))
    records = get_records(f"class_folders:{tmp_path}")
    labels = [(path, record["label"]) for path, record in zip(names_under(tmp_path, records), records, strict=True)]
    assert labels == [("Auk/2.jpg", 0), ("kite/0.jpg", 1), ("kite/sub/3.jpg", 1), ("wren/1.jpg", 2)]
    assert MetadataCatalog.get(f"class_folders:{tmp_path}").thing_classes == ["Auk", "kite", "wren"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder:{root}/nowhere", "{root}/nowhere not found"),
        ("class_folders:{root}/nowhere", "{root}/nowhere not found"),
        ("list:{root}/nowhere", "{root}/nowhere not found"),
        ("folder:{root}/texts", "no images in {root}/texts: .*jpg"),
        ("class_folders:{root}/classes", "no images in {root}/classes/dodo"),
        ("class_folders:{root}/texts", "no class folders"),
        ("list:{root}/gone.txt", r"gone\.txt names sub/gone\.jpg"),
        ("list:{root}/empty.txt", "names no image"),
        ("list:{root}/comment.txt", "names no image"),
        ("list:{root}/binary.txt", "UTF-8"),
    ],
)
def test_what_is_no_folder_or_list_of_images_is_named(tmp_path, name, message):
    touch(tmp_path / "texts/readme.txt", tmp_path / "classes/auk/1.jpg", tmp_path / "classes/dodo/extinct.txt")
    files = {"gone": "texts/readme.txt\nsub/gone.jpg\n", "empty": "", "comment": "# a\n\n", "binary": b"\xff\xd8"}
    for file, content in files.items():
        write(tmp_path / f"{file}.txt", content)
    assert re.search(message.format(root=tmp_path), one_line_error(name.format(root=tmp_path)))


@pytest.mark.parametrize("name", ["no_such_data", "folders:/tmp", "folder:", "", "voc"])
def test_an_unknown_name_is_answered_with_what_there_is(name):
    line = one_line_error(name)
    for expected in (repr(name), "coco_2017_train_images", "cifar10_train", "toy_scenes_train", *KINDS):
        assert expected in line
    assert name not in DatasetCatalog.list()


def test_toy_data_that_nothing_imported_are_answered_with_what_imports_them():
    assert """unknown data set 'toy_x': add IMPORTS "('projects.ToyScenes',)\"""" in one_line_error("toy_x")


@pytest.mark.parametrize("name", ["voc_segmentation:/data", "nyud_depth:/data", "cityscapes:/data/x:", "voc:/data:"])
def test_a_kind_without_a_split_is_refused(name):
    assert f"expected {name.partition(':')[0]}:FOLDER:SPLIT" in one_line_error(name)


PREPARE_VOC = "VOC2012, which datasets/prepare_voc_train_aug.py"
PREPARE_NYUD = "NYUD_MT, which datasets/prepare_nyud.py"
PREPARE_CITYSCAPES = "cityscapes, which datasets/prepare_cityscapes.py"
PREPARE_TOY = "which projects/ToyScenes/make_toy_scenes.py"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("coco_2017_train_images", "coco/train2017"),
        ("cifar10_train", "cifar10/train"),
        ("imagenet_val", "imagenet/val"),
        ("places365_train", "places365_standard/train"),
        ("food101_train", "food-101"),
        ("cars_test", "stanford_cars"),
        ("pets_trainval", "oxford-iiit-pet"),
        ("sun397_test", "SUN397"),
        ("imagenet_118k_lt", "subsets/imagenet_118k_lt.txt"),
        ("toy_scenes_train", "toy_scenes/coco/train2017"),
        ("toy_voc_test", "toy_scenes/VOC2007"),
        *((f"voc_2012_sem_seg_{split}", PREPARE_VOC) for split in ("train_aug", "val")),
        *((f"nyud_{task}_{split}", PREPARE_NYUD) for task in ("segmentation", "depth") for split in ("train", "val")),
        *((f"cityscapes_fine_sem_seg_{split}", PREPARE_CITYSCAPES) for split in ("train", "val")),
        *((f"toy_voc_sem_seg_{split}", f"toy_scenes/VOC2007, {PREPARE_TOY}") for split in ("train_aug", "val")),
        ("toy_nyud_segmentation_val", f"toy_scenes/NYUD_MT, {PREPARE_TOY}"),
        ("toy_nyud_depth_train", f"toy_scenes/NYUD_MT, {PREPARE_TOY}"),
        ("toy_cityscapes_val", f"toy_scenes/cityscapes, {PREPARE_TOY}"),
    ],
)
def test_fixed_data_that_is_missing_says_where_it_belongs_and_what_else_to_try(tmp_path, monkeypatch, name, place):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    line = one_line_error(name)
    for expected in (name, f"{tmp_path}/{place}", f"DETECTRON2_DATASETS={tmp_path}", "make_toy_scenes.py"):
        assert expected in line


def test_without_the_variable_data_are_looked_for_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DETECTRON2_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert re.search("datasets/coco/train2017 .*unset", one_line_error("coco_2017_train_images"))
    touch(*(tmp_path / f"datasets/coco/train2017/{n}.jpg" for n in (2, 1)))
    records = get_records("coco_2017_train_images")  # the images alone: no annotations are there
    assert names_under("datasets", records) == ["coco/train2017/1.jpg", "coco/train2017/2.jpg"]
    assert MetadataCatalog.get("coco_2017_train_images").expected_images == 118287


def test_data_of_detectron2_that_are_missing_are_answered_alike(tmp_path):
    DatasetCatalog.register(f"theirs_{tmp_path.name}", (tmp_path / "instances.json").read_text)
    assert "instances.json" in one_line_error(f"theirs_{tmp_path.name}")


def test_the_toy_world_is_found_by_its_fixed_names(toy_datasets):
    for split in ("train", "heldout"):
        folders = {Path(r["file_name"]).parent.name: r["label"] for r in get_records(f"toy_objects_{split}")}
        assert folders == {name: label for label, name in enumerate(TOY_CLASSES)}
    assert MetadataCatalog.get("toy_objects_train").thing_classes == list(TOY_CLASSES)
    for name in ("toy_objects_train", "toy_scenes_train", "toy_voc_trainval", "toy_voc_test"):
        assert all(Path(record["file_name"]).is_file() for record in get_records(name))
