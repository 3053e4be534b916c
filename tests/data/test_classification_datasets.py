"""Image labels from the layouts of the original downloads."""

import hashlib
import pickle
import shutil

import numpy as np
import pytest
import torchvision
from scipy.io import savemat
from trees import one_line_error, touch, write

from revisit.data import classification_datasets as whole
from revisit.data.catalog import get_records
from revisit.errors import UserError

from detectron2.data import MetadataCatalog


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder of all data sets."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    return tmp_path


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
    assert MetadataCatalog.get("food101_test").thing_classes == ["apple_pie", "waffles"]
    assert "meta/train.txt not found" in one_line_error("food101_train")
    (food / "images/apple_pie/7.jpg").unlink()
    missing = f"1 of 2 images not found, the first is {food}/images/apple_pie/7.jpg"
    assert missing in one_line_error("food101_test")
    write(food / "meta/test.txt", ["gnocchi/1"])
    assert "class 'gnocchi', which the list of classes does not have" in one_line_error("food101_test")


def test_cars_count_from_one(root):
    cars = root / "stanford_cars"
    touch(cars / "cars_train/a.jpg", cars / "cars_train/b.jpg", cars / "devkit/cars_meta.mat")
    entries = np.array([("a.jpg", 196), ("b.jpg", 1)], dtype=[("fname", object), ("class", object)])
    savemat(cars / "devkit/cars_train_annos.mat", {"annotations": entries})
    savemat(cars / "devkit/cars_meta.mat", {"class_names": np.array(["Acura RL", "Audi S5"], dtype=object)})
    assert labels_of("cars_train") == [195, 0]
    assert MetadataCatalog.get("cars_train").thing_classes == ["Acura RL", "Audi S5"]
    write(cars / "devkit/cars_meta.mat", b"torn")
    assert "cars_meta.mat cannot be read" in one_line_error("cars_train")
    (cars / "devkit/cars_meta.mat").unlink()
    assert whole.cars_classes(cars) == []
    assert "cars_test_annos_withlabels.mat not found" in one_line_error("cars_test")
    write(cars / "cars_test_annos_withlabels.mat", b"torn")
    assert "cars_test_annos_withlabels.mat cannot be read" in one_line_error("cars_test")


def test_pets(root):
    pets = root / "oxford-iiit-pet"
    write(pets / "annotations/trainval.txt", ["# a comment", "Abyssinian_100 1 1 1", "pug_3 24 2 16"])
    touch(pets / "images/Abyssinian_100.jpg", pets / "images/pug_3.jpg")
    assert labels_of("pets_trainval") == [0, 23]
    assert MetadataCatalog.get("pets_trainval").thing_classes == ["Abyssinian", "pug"]
    write(pets / "annotations/trainval.txt", ["pug_3 24"])
    assert "trainval.txt has other lines than NAME CLASS SPECIES BREED" in one_line_error("pets_trainval")


def test_sun397_knows_classes_of_two_levels(root):
    write(root / "SUN397/Partitions/ClassName.txt", ["/a/abbey", "/c/church/indoor"])
    write(root / "SUN397/Partitions/Testing_01.txt", ["/c/church/indoor/sun_b.jpg", "/a/abbey/sun_a.jpg"])
    touch(root / "SUN397/c/church/indoor/sun_b.jpg", root / "SUN397/a/abbey/sun_a.jpg")
    assert labels_of("sun397_test") == [1, 0]
    assert MetadataCatalog.get("sun397_test").thing_classes == ["a/abbey", "c/church/indoor"]


def test_voc_tells_present_difficult_and_absent(tmp_path):
    things = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult></object>"
        for name, difficult in (("cat", 1), ("dog", 1), ("dog", 0))
    )
    write(tmp_path / "Annotations/1.xml", f"<annotation>{things}</annotation>")
    write(tmp_path / "ImageSets/Main/test.txt", "1\n")
    touch(tmp_path / "JPEGImages/1.jpg")
    (record,) = whole.load_voc_labels(tmp_path, "test", ("bird", "cat", "dog"))
    assert record["labels"] == (-1, 0, 1)
    with pytest.raises(UserError, match="1.xml names an object of the class 'dog'"):
        whole.load_voc_labels(tmp_path, "test", ("bird", "cat"))
    write(tmp_path / "Annotations/1.xml", "<annotation>")
    with pytest.raises(UserError, match="1.xml cannot be read"):
        whole.load_voc_labels(tmp_path, "test")


def test_toy_scenes_have_labels_of_several_classes(toy_datasets):
    records = get_records("toy_voc_labels_trainval")
    boxes = get_records("toy_voc_trainval")
    for record, boxed in zip(records, boxes, strict=True):
        shown = {thing["category_id"] for thing in boxed["annotations"]}
        assert {c for c, label in enumerate(record["labels"]) if label == 1} == shown


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
    """Two images a file, and torchvision expecting exactly these files."""
    folder = root / "cifar-10-batches-py"

    def write_pickle(name, content):
        write(folder / name, pickle.dumps(content))
        return [name, hashlib.md5(pickle.dumps(content)).hexdigest()]

    images = np.random.default_rng(0).integers(0, 256, (6, 2, 3, 32, 32), dtype=np.uint8)
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    files = [
        write_pickle(name, {"data": images[n].reshape(2, -1), "labels": [n, n + 1]}) for n, name in enumerate(names)
    ]
    _, meta = write_pickle("batches.meta", {"label_names": list(whole.CIFAR10_CLASSES)})
    cifar10 = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar10, "train_list", files[:5])
    monkeypatch.setattr(cifar10, "test_list", files[5:])
    monkeypatch.setattr(cifar10, "meta", {**cifar10.meta, "md5": meta})
    train = get_records("cifar10_train")
    assert [record["label"] for record in train] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert labels_of("cifar10_test") == [5, 6]
    assert train[3]["image"].dtype == np.uint8
    assert np.array_equal(train[3]["image"], images[1, 1].transpose(1, 2, 0))  # stored as red, green and blue planes
    write(folder / "data_batch_3", b"half a download")
    assert "cifar-10-batches-py is not the complete CIFAR-10" in one_line_error("cifar10_train")
