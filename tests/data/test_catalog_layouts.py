"""Data sets in other people's layouts: Pascal VOC and CIFAR-10."""

import hashlib
import pickle

import numpy as np
import pytest
import torchvision

from revisit.data.catalog import get_records
from revisit.data.classification_datasets import CIFAR10_CLASSES
from revisit.errors import UserError

from detectron2.data import MetadataCatalog
from detectron2.structures import BoxMode

ANNOTATION = """<annotation><size><width>60</width><height>40</height><depth>3</depth></size>
<object><name>{name}</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>11</ymin><xmax>60</xmax><ymax>40</ymax></bndbox></object></annotation>"""


@pytest.fixture
def voc(tmp_path):
    """A tree with the images 000001 (a dog) and 000002 (a cat) in the split trainval."""
    root = tmp_path / "VOC2007"
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (root / folder).mkdir(parents=True)
    for name, animal in (("000001", "dog"), ("000002", "cat")):
        (root / "Annotations" / f"{name}.xml").write_text(ANNOTATION.format(name=animal))
        (root / "JPEGImages" / f"{name}.jpg").touch()
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("000001\n000002\n")
    return root


def test_voc_gives_boxes_and_its_twenty_classes(voc):
    name = f"voc:{voc}:trainval"
    dog, cat = get_records(name)
    metadata = MetadataCatalog.get(name)
    assert len(metadata.thing_classes) == 20 and metadata.evaluator_type == "pascal_voc"
    assert (metadata.dirname, metadata.split) == (str(voc), "trainval")
    assert dog["file_name"] == str(voc / "JPEGImages" / "000001.jpg")
    assert (dog["height"], dog["width"]) == (40, 60)
    (annotation,) = dog["annotations"]
    # VOC counts pixels from 1 and includes the last: the box is the lower three quarters of the image.
    assert annotation["bbox"] == [0, 10, 60, 40] and annotation["bbox_mode"] == BoxMode.XYXY_ABS
    classes = [metadata.thing_classes[r["annotations"][0]["category_id"]] for r in (dog, cat)]
    assert classes == ["dog", "cat"]


def test_voc_can_be_named_from_home(voc, monkeypatch):
    monkeypatch.setenv("HOME", str(voc.parent))
    name = "voc:~/VOC2007:trainval"
    assert len(get_records(name)) == 2 and MetadataCatalog.get(name).dirname == str(voc)


@pytest.mark.parametrize("content", ["", "000001\n"])
def test_a_voc_split_that_detectron2_cannot_read_is_named(voc, content):
    (voc / "ImageSets" / "Main" / "few.txt").write_text(content)
    with pytest.raises(UserError, match="few.txt names fewer than two images"):
        get_records(f"voc:{voc}:few")


def test_a_missing_voc_split_is_named(voc):
    with pytest.raises(UserError, match="ImageSets/Main/test.txt"):
        get_records(f"voc:{voc}:test")


def test_a_missing_annotation_is_named(voc):
    (voc / "Annotations" / "000002.xml").unlink()
    with pytest.raises(UserError, match="Annotations/000002.xml"):
        get_records(f"voc:{voc}:trainval")


def test_an_object_of_an_unknown_class_is_named_with_its_file(voc):
    file = voc / "Annotations" / "000002.xml"
    first = file.read_text()
    name = first[first.index("<name>") + 6 : first.index("</name>")]
    file.write_text(first.replace(f"<name>{name}</name>", "<name>zebra</name>", 1))
    with pytest.raises(UserError, match="000002.xml names an object of the class 'zebra', expected one of aeroplane"):
        get_records(f"voc:{voc}:trainval")


def test_voc_without_a_split_is_refused(voc):
    with pytest.raises(UserError, match="voc:FOLDER:SPLIT"):
        get_records(f"voc:{voc}")


def test_cifar10_in_class_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    for split, count in (("train", 2), ("test", 1)):
        for name in CIFAR10_CLASSES:
            folder = tmp_path / "cifar10" / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                (folder / f"{n}.png").touch()
    train, test = get_records("cifar10_train"), get_records("cifar10_test")
    assert (len(train), len(test)) == (20, 10)
    assert [record["label"] for record in test] == list(range(10))
    assert train[6]["file_name"] == str(tmp_path / "cifar10" / "train" / "cat" / "0.png") and train[6]["label"] == 3
    assert MetadataCatalog.get("cifar10_train").thing_classes == list(CIFAR10_CLASSES)


def test_cifar10_in_class_folders_needs_every_class(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    for name in CIFAR10_CLASSES[1:]:
        (tmp_path / "cifar10" / "train" / name).mkdir(parents=True)
        (tmp_path / "cifar10" / "train" / name / "0.png").touch()
    with pytest.raises(UserError, match="cifar10/train/airplane"):
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
