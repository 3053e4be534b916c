"""Data sets by name: fixed names under DETECTRON2_DATASETS, KIND:PATH, and image labels in their downloads' layouts."""

import gc
import pickle
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from trees import one_line_error, refusal, touch, write

import revisit.data  # noqa: F401  (registers the fixed names)
from projects.FrozenEvaluations import classification_datasets as whole
from revisit.data.sources.catalog import get_records
from revisit.data.sources.layouts import LABEL_LAYOUT_REGISTRY
from revisit.data.sources.records import keeping_all

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.pascal_voc import load_voc_instances


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder of all data sets."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    return tmp_path


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


def test_an_image_is_where_it_lies_and_not_where_a_link_to_its_folder_does(tmp_path):
    """A link in another class took it with it."""
    touch(tmp_path / "cat/1.jpg", tmp_path / "dog/puppies/2.jpg", tmp_path / "dog/3.jpg")
    (tmp_path / "cat/see also").symlink_to(tmp_path / "dog/puppies")
    (tmp_path / "cat/dogs").symlink_to(tmp_path / "dog")
    records = get_records(f"class_folders:{tmp_path}")
    assert names_under(tmp_path, records) == ["cat/1.jpg", "dog/3.jpg", "dog/puppies/2.jpg"]
    assert [record["label"] for record in records] == [0, 1, 1]


def test_images_next_to_class_folders_are_counted(tmp_path, caplog):
    touch(tmp_path / "cat/1.jpg", tmp_path / "2.jpg", tmp_path / "3.jpg")
    assert names_under(tmp_path, get_records(f"class_folders:{tmp_path}")) == ["cat/1.jpg"]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.endswith(f"2 of 3 images are in no class folder, such as {tmp_path}/2.jpg: left out")


def test_of_two_links_to_a_folder_elsewhere_the_first_by_name_counts(tmp_path):
    touch(tmp_path / "elsewhere/1.jpg", tmp_path / "photos/c/2.jpg")
    for link in ("photos/b", "photos/c/a", "photos/a"):
        (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    assert names_under(tmp_path / "photos", get_records(f"folder:{tmp_path}/photos")) == ["a/1.jpg", "c/2.jpg"]


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
    "place",
    ["folder:{}/nowhere", "class_folders:{}/nowhere", "list:{}/nowhere", "folder:{}/texts", "class_folders:{}/classes"]
    + ["class_folders:{}/texts", "list:{}/gone.txt", "list:{}/empty.txt", "list:{}/comment.txt", "list:{}/binary.txt"],
)
def test_what_is_no_folder_or_list_of_images_is_named(tmp_path, place):
    touch(tmp_path / "texts/readme.txt", tmp_path / "classes/auk/1.jpg", tmp_path / "classes/dodo/extinct.txt")
    files = {"gone": "texts/readme.txt\nsub/gone.jpg\n", "empty": "", "comment": "# a\n\n", "binary": b"\xff\xd8"}
    for file, content in files.items():
        write(tmp_path / f"{file}.txt", content)
    name = place.format(tmp_path)
    named = {"classes": "classes/dodo", "gone.txt": "sub/gone.jpg"}.get(name.rpartition("/")[2], name.partition(":")[2])
    assert named in one_line_error(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("zzz", ""),
        ("folders:/tmp", "; did you mean folder?"),
        ("cifar_train", "; did you mean cifar10_train?"),
        ("folder:", ""),
        ("", ""),
        ("voc", ""),
    ],
)
def test_an_unknown_name_is_answered_with_the_kinds_and_what_is_like_it(name, meant):
    line = one_line_error(name)
    for expected in (repr(name), "datasets/README.md", *(kind for kind, _ in LABEL_LAYOUT_REGISTRY)):
        assert expected in line
    assert line.endswith(f"or Detectron2{meant}")
    assert name not in DatasetCatalog.list()


@pytest.mark.parametrize("name", ["voc_segmentation:/data", "nyud_depth:/data", "cityscapes:/data/x:", "voc:/data:"])
def test_a_kind_without_a_split_is_refused(name):
    assert f"expected {name.partition(':')[0]}:FOLDER:SPLIT" in one_line_error(name)


@pytest.mark.parametrize(
    ("name", "place", "script"),
    [
        ("cifar10_train", "cifar10/train", ""),
        ("imagenet_118k_lt", "subsets/imagenet_118k_lt.txt", ""),
        ("voc_2012_sem_seg_train_aug", "VOC2012", "datasets/prepare_voc_train_aug.py"),
        ("toy_nyud_depth_train", "toy_scenes/NYUD_MT", "projects/ToyScenes/make_toy_scenes.py"),
    ],
)
def test_fixed_data_that_is_missing_says_where_it_belongs_and_what_else_to_try(root, name, place, script):
    line = one_line_error(name)
    for expected in (name, f"{root}/{place}", f"DETECTRON2_DATASETS={root}", "make_toy_scenes.py", script):
        assert expected in line


def test_without_the_variable_data_are_looked_for_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DETECTRON2_DATASETS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert re.search("datasets/coco/train2017 .*unset", one_line_error("coco_2017_train_images"))
    touch(*(tmp_path / f"datasets/coco/train2017/{n}.jpg" for n in (2, 1)))
    records = get_records("coco_2017_train_images")  # the images alone: no annotations are there
    assert names_under("datasets", records) == ["coco/train2017/1.jpg", "coco/train2017/2.jpg"]
    assert MetadataCatalog.get("coco_2017_train_images").expected_images == 118287


def test_missing_and_damaged_annotations_that_detectron2_reads_are_said_in_one_line(tmp_path):
    write(tmp_path / "ImageSets/Main/train.txt", ["000001", "000002"])  # of one, Detectron2 makes no list
    name = f"theirs:{tmp_path.name}"
    DatasetCatalog.register(name, partial(load_voc_instances, str(tmp_path), "train", ("cat",)))
    assert "000001.xml" in one_line_error(name)
    write(tmp_path / "Annotations/000001.xml", "<annotation><size>")
    assert "ParseError" in one_line_error(name)


def labels_of(name):
    return [record["label"] for record in get_records(name)]


def test_food101(root):
    food = root / "food-101"
    write(food / "meta/classes.txt", ["apple_pie", "waffles"])
    write(food / "meta/test.txt", ["waffles/12", "apple_pie/7"])
    touch(food / "images/waffles/12.jpg", food / "images/apple_pie/7.jpg")
    assert get_records("food101_test") == [
        {"file_name": f"{food}/images/waffles/12.jpg", "label": 1},
        {"file_name": f"{food}/images/apple_pie/7.jpg", "label": 0},
    ]
    metadata = MetadataCatalog.get("food101_test")
    assert (metadata.thing_classes, metadata.expected_images) == (["apple_pie", "waffles"], 25250)
    assert "meta/train.txt" in one_line_error("food101_train")
    (food / "images/apple_pie/7.jpg").unlink()
    assert f"{food}/images/apple_pie/7.jpg" in one_line_error("food101_test")
    write(food / "meta/test.txt", ["gnocchi/1"])
    assert "gnocchi" in one_line_error("food101_test")


def test_cars_count_from_one(root):
    cars = root / "stanford_cars"
    touch(cars / "cars_train/a.jpg", cars / "cars_train/b.jpg", cars / "devkit/cars_meta.mat")
    entries = np.array([("a.jpg", 196), ("b.jpg", 1)], dtype=[("fname", object), ("class", object)])
    savemat(cars / "devkit/cars_train_annos.mat", {"annotations": entries})
    savemat(cars / "devkit/cars_meta.mat", {"class_names": np.array(["Acura RL", "Audi S5"], dtype=object)})
    assert labels_of("cars_train") == [195, 0]
    assert MetadataCatalog.get("cars_train").thing_classes == ["Acura RL", "Audi S5"]
    (cars / "devkit/cars_meta.mat").unlink()
    assert whole.cars_classes(cars) == []
    write(cars / "cars_test_annos_withlabels.mat", b"torn")
    assert "cars_test_annos_withlabels.mat" in one_line_error("cars_test")


def test_pets(root):
    pets = root / "oxford-iiit-pet"
    write(pets / "annotations/trainval.txt", ["# a comment", "Abyssinian_100 1 1 1", "pug_3 24 2 16"])
    touch(pets / "images/Abyssinian_100.jpg", pets / "images/pug_3.jpg")
    assert labels_of("pets_trainval") == [0, 23]
    assert MetadataCatalog.get("pets_trainval").thing_classes == ["Abyssinian", "pug"]
    write(pets / "annotations/trainval.txt", ["pug_3 24"])
    assert "annotations/trainval.txt" in one_line_error("pets_trainval")


def test_sun397_knows_classes_of_two_levels(root):
    write(root / "SUN397/Partitions/ClassName.txt", ["/a/abbey", "/c/church/indoor"])
    write(root / "SUN397/Partitions/Testing_01.txt", ["/c/church/indoor/sun_b.jpg", "/a/abbey/sun_a.jpg"])
    touch(root / "SUN397/c/church/indoor/sun_b.jpg", root / "SUN397/a/abbey/sun_a.jpg")
    assert labels_of("sun397_test") == [1, 0]
    assert MetadataCatalog.get("sun397_test").thing_classes == ["a/abbey", "c/church/indoor"]


def test_voc_tells_present_difficult_and_absent(tmp_path):
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
    size = "<size><width>4</width><height>4</height></size>"
    things = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult>{box}</object>"
        for name, difficult in (("cat", 1), ("dog", 1), ("dog", 0))
    )
    write(tmp_path / "Annotations/1.xml", f"<annotation>{size}{things}</annotation>")
    write(tmp_path / "ImageSets/Main/test.txt", "1\n")
    touch(tmp_path / "JPEGImages/1.jpg")
    (record,) = whole.load_voc_labels(tmp_path, "test", ("bird", "cat", "dog"))
    assert record["labels"] == (-1, 0, 1)
    assert "1.xml" in refusal(whole.load_voc_labels, tmp_path, "test", ("bird", "cat"))


def test_cifar10_in_class_folders(root):
    for name in whole.CIFAR10_CLASSES:
        touch(*(root / f"cifar10/{file}.png" for file in (f"train/{name}/0", f"train/{name}/1", f"test/{name}/0")))
    train = get_records("cifar10_train")
    assert (len(train), labels_of("cifar10_test")) == (20, list(range(10)))
    assert train[6] == {"file_name": f"{root}/cifar10/train/cat/0.png", "label": 3}
    assert MetadataCatalog.get("cifar10_train").thing_classes == list(whole.CIFAR10_CLASSES)
    shutil.rmtree(root / "cifar10/train/airplane")
    assert "cifar10/train/airplane" in one_line_error("cifar10_train")  # every class has to be there


def test_cifar10_as_downloaded(root, monkeypatch):
    """Two images a file, which torchvision takes for whole."""
    folder = root / "cifar-10-batches-py"
    images = np.random.default_rng(0).integers(0, 256, (6, 2, 3, 32, 32), dtype=np.uint8)
    for n, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        write(folder / name, pickle.dumps({"data": images[n].reshape(2, -1), "labels": [n, n + 1]}))
    write(folder / "batches.meta", pickle.dumps({"label_names": list(whole.CIFAR10_CLASSES)}))
    assert "'cifar10_train': RuntimeError" in one_line_error("cifar10_train")  # not the files that were published
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    train = get_records("cifar10_train")
    assert [record["label"] for record in train] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert labels_of("cifar10_test") == [5, 6]
    assert train[3]["image"].dtype == np.uint8
    assert np.array_equal(train[3]["image"], images[1, 1].transpose(1, 2, 0))  # stored as red, green and blue planes


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_looked_for_again_after_records_are_read(is_enabled):
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), keeping_all():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
