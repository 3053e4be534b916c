"""Image labels from the layouts of the original downloads."""

import hashlib
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image
from scipy.io import savemat

from revisit.data.catalog import get_records
from revisit.data.classification_datasets import (
    CIFAR10_CLASSES,
    cars_classes,
    load_cars,
    load_food101,
    load_pets,
    load_sun397,
    load_voc_labels,
    pets_classes,
    sun397_classes,
)
from revisit.errors import UserError

from detectron2.data import MetadataCatalog


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path, format="JPEG")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def food(tmp_path):
    write(tmp_path / "meta/classes.txt", "apple_pie\nwaffles\n")
    write(tmp_path / "meta/test.txt", "waffles/12\napple_pie/7\n")
    for name in ("waffles/12", "apple_pie/7"):
        touch(tmp_path / f"images/{name}.jpg")
    return tmp_path


def test_food101(food):
    assert load_food101(food, "test") == [
        {"file_name": str(food / "images/waffles/12.jpg"), "label": 1},
        {"file_name": str(food / "images/apple_pie/7.jpg"), "label": 0},
    ]


def test_a_data_set_by_name_knows_its_classes(food, tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    (tmp_path / "root/food-101").symlink_to(food)
    assert len(get_records("food101_test")) == 2
    assert MetadataCatalog.get("food101_test").thing_classes == ["apple_pie", "waffles"]


def test_what_is_missing_is_named(food):
    with pytest.raises(UserError, match="meta/train.txt not found"):
        load_food101(food, "train")
    (food / "images/apple_pie/7.jpg").unlink()
    with pytest.raises(UserError, match="1 of 2 images not found, the first is .*apple_pie/7.jpg"):
        load_food101(food, "test")
    write(food / "meta/test.txt", "gnocchi/1\n")
    with pytest.raises(UserError, match="class 'gnocchi', which the list of classes does not have"):
        load_food101(food, "test")


def test_cars_count_from_one(tmp_path):
    entries = np.array([("a.jpg", 196), ("b.jpg", 1)], dtype=[("fname", object), ("class", object)])
    (tmp_path / "devkit").mkdir()
    savemat(tmp_path / "devkit/cars_train_annos.mat", {"annotations": entries})
    for name in ("a", "b"):
        touch(tmp_path / f"cars_train/{name}.jpg")
    assert [record["label"] for record in load_cars(tmp_path, "train")] == [195, 0]
    assert cars_classes(tmp_path) == []
    savemat(tmp_path / "devkit/cars_meta.mat", {"class_names": np.array(["Acura RL", "Audi S5"], dtype=object)})
    assert cars_classes(tmp_path) == ["Acura RL", "Audi S5"]
    (tmp_path / "devkit/cars_meta.mat").write_bytes(b"torn")
    with pytest.raises(UserError, match="cars_meta.mat cannot be read"):
        cars_classes(tmp_path)
    with pytest.raises(UserError, match="cars_test_annos_withlabels.mat not found"):
        load_cars(tmp_path, "test")
    (tmp_path / "cars_test_annos_withlabels.mat").write_bytes(b"torn")
    with pytest.raises(UserError, match="cars_test_annos_withlabels.mat cannot be read"):
        load_cars(tmp_path, "test")


def test_pets(tmp_path):
    write(tmp_path / "annotations/trainval.txt", "# a comment\nAbyssinian_100 1 1 1\npug_3 24 2 16\n")
    for name in ("Abyssinian_100", "pug_3"):
        touch(tmp_path / f"images/{name}.jpg")
    assert [record["label"] for record in load_pets(tmp_path, "trainval")] == [0, 23]
    assert pets_classes(tmp_path) == ["Abyssinian", "pug"]
    write(tmp_path / "annotations/trainval.txt", "pug_3 24\n")
    with pytest.raises(UserError, match="trainval.txt has other lines than NAME CLASS SPECIES BREED"):
        load_pets(tmp_path, "trainval")


def test_sun397_knows_classes_of_two_levels(tmp_path):
    write(tmp_path / "Partitions/ClassName.txt", "/a/abbey\n/c/church/indoor\n")
    write(tmp_path / "Partitions/Testing_01.txt", "/c/church/indoor/sun_b.jpg\n/a/abbey/sun_a.jpg\n")
    for name in ("c/church/indoor/sun_b", "a/abbey/sun_a"):
        touch(tmp_path / f"{name}.jpg")
    assert [record["label"] for record in load_sun397(tmp_path, "test")] == [1, 0]
    assert sun397_classes(tmp_path) == ["a/abbey", "c/church/indoor"]


def test_voc_tells_present_difficult_and_absent(tmp_path):
    def thing(name, difficult):
        return f"<object><name>{name}</name><difficult>{difficult}</difficult></object>"

    things = thing("cat", 1) + thing("dog", 1) + thing("dog", 0)
    write(tmp_path / "Annotations/1.xml", f"<annotation>{things}</annotation>")
    write(tmp_path / "ImageSets/Main/test.txt", "1\n")
    touch(tmp_path / "JPEGImages/1.jpg")
    (record,) = load_voc_labels(tmp_path, "test", ("bird", "cat", "dog"))
    assert record["labels"] == (-1, 0, 1)
    with pytest.raises(UserError, match="1.xml names an object of the class 'dog'"):
        load_voc_labels(tmp_path, "test", ("bird", "cat"))


def test_a_torn_annotation_is_named(tmp_path):
    write(tmp_path / "Annotations/1.xml", "<annotation>")
    write(tmp_path / "ImageSets/Main/test.txt", "1\n")
    with pytest.raises(UserError, match="1.xml cannot be read"):
        load_voc_labels(tmp_path, "test")


def test_toy_scenes_have_labels_of_several_classes(toy_datasets):
    records = get_records("toy_voc_labels_trainval")
    boxes = get_records("toy_voc_trainval")
    for record, boxed in zip(records, boxes, strict=True):
        shown = {thing["category_id"] for thing in boxed["annotations"]}
        assert {c for c, label in enumerate(record["labels"]) if label == 1} == shown


@pytest.fixture
def cifar10_folders(tmp_path, monkeypatch):
    """cifar10/train with two images a class, cifar10/test with one."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    for name in CIFAR10_CLASSES:
        for file in (f"train/{name}/0", f"train/{name}/1", f"test/{name}/0"):
            touch(tmp_path / f"cifar10/{file}.png")
    return tmp_path / "cifar10"


def test_cifar10_in_class_folders(cifar10_folders):
    train, test = get_records("cifar10_train"), get_records("cifar10_test")
    assert (len(train), [record["label"] for record in test]) == (20, list(range(10)))
    assert train[6] == {"file_name": str(cifar10_folders / "train/cat/0.png"), "label": 3}
    assert MetadataCatalog.get("cifar10_train").thing_classes == list(CIFAR10_CLASSES)
    shutil.rmtree(cifar10_folders / "train/airplane")
    with pytest.raises(UserError, match="cifar10/train/airplane"):  # every class has to be there
        get_records("cifar10_train")


@pytest.fixture
def original_cifar10(tmp_path, monkeypatch):
    """cifar-10-batches-py with two images a file, and torchvision expecting exactly these files."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def write(name, content):
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    cifar10 = torchvision.datasets.CIFAR10
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    sums, images = {}, {}
    for n, name in enumerate(names):
        images[name] = np.random.default_rng(n).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
        sums[name] = write(name, {"data": images[name].reshape(2, -1), "labels": [n, n + 1]})
    meta = write("batches.meta", {"label_names": list(CIFAR10_CLASSES)})
    monkeypatch.setattr(cifar10, "train_list", [[name, sums[name]] for name in names[:5]])
    monkeypatch.setattr(cifar10, "test_list", [[name, sums[name]] for name in names[5:]])
    monkeypatch.setattr(cifar10, "meta", {**cifar10.meta, "md5": meta})
    return folder, images


def test_cifar10_as_downloaded(original_cifar10):
    _, images = original_cifar10
    train, test = get_records("cifar10_train"), get_records("cifar10_test")
    assert [record["label"] for record in train] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert [record["label"] for record in test] == [5, 6]
    planes = images["data_batch_2"][1]  # red, green and blue, each (32, 32)
    assert train[3]["image"].shape == (32, 32, 3) and train[3]["image"].dtype == np.uint8
    for channel in range(3):
        assert np.array_equal(train[3]["image"][..., channel], planes[channel])


def test_a_damaged_cifar10_download_is_refused(original_cifar10):
    folder, _ = original_cifar10
    (folder / "data_batch_3").write_bytes(b"half a download")
    with pytest.raises(UserError, match="cifar-10-batches-py is not the complete CIFAR-10"):
        get_records("cifar10_train")
