"""The data set on disk, as the loaders of the real data sets see it."""

import hashlib
import json
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from projects.ToyScenes import CLASS_NAMES, GENERATOR_VERSION, Split, draw_scene, make_toy_scenes, plan_image
from projects.ToyScenes import write as write_module

COCO_SETS = (("train2017", Split.SCENE_TRAIN, 60), ("val2017", Split.SCENE_HELDOUT, 15))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("data") / "toy_scenes"
    assert make_toy_scenes(output, num_images=60, size=64, workers=1)
    return output


def test_record_says_what_was_drawn(root: Path):
    assert json.loads((root / "toy_scenes.json").read_text()) == {
        "generator_version": GENERATOR_VERSION,
        "layout_version": 3,
        "num_images": 60,
        "seed": 0,
        "size": 64,
        "long_tailed": False,
        "class_names": list(CLASS_NAMES),
        "counts": {
            "object_centric/train": 60,
            "object_centric/heldout": 15,
            "coco/train2017": 60,
            "coco/val2017": 15,
            "VOC2007/SegmentationClass": 75,
            "cityscapes/leftImg8bit/train": 60,
            "cityscapes/leftImg8bit/val": 15,
            "cityscapes/gtFine/train": 180,
            "cityscapes/gtFine/val": 45,
            "NYUD_MT/images": 75,
            "NYUD_MT/segmentation": 75,
            "NYUD_MT/depth": 75,
            "DAVIS/JPEGImages/480p": 40,
            "DAVIS/Annotations/480p": 40,
        },
    }


def test_class_folders_and_lists_hold_the_images_of_their_class(root: Path):
    for split, share in (("train", 60), ("heldout", 15)):
        folder = root / "object_centric" / split
        assert sorted(path.name for path in folder.iterdir()) == sorted(CLASS_NAMES)
        assert len(list(folder.glob("*/*.jpg"))) == share
    assert all(len(list((root / "object_centric/train" / name).iterdir())) == 6 for name in CLASS_NAMES)
    lists = {name: (root / f"object_centric/{name}.txt").read_text().split() for name in ("train", "val", "test")}
    assert {name: len(files) for name, files in lists.items()} == {"train": 50, "val": 10, "test": 15}
    files = {str(path.relative_to(root / "object_centric")) for path in (root / "object_centric").rglob("*.jpg")}
    assert sorted(files) == sorted(sum(lists.values(), []))
    assert {Path(file).parent.name for file in lists["val"]} == set(CLASS_NAMES)


@pytest.mark.parametrize(("name", "split", "share"), COCO_SETS)
def test_coco_annotations_are_the_exact_masks(root: Path, name: str, split: Split, share: int):
    coco = COCO(root / f"coco/annotations/instances_{name}.json")
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == list(CLASS_NAMES)
    assert len(coco.imgs) == share == len(list((root / "coco" / name).iterdir()))
    assert len(coco.anns) == len(coco.dataset["annotations"])  # their ids are unique
    for index, (image_id, image) in enumerate(coco.imgs.items()):
        scene = draw_scene(plan_image(0, split, index, 60), 64)
        assert (root / "coco" / name / image["file_name"]).is_file()
        annotations = coco.loadAnns(coco.getAnnIds(image_id))
        assert [annotation["category_id"] - 1 for annotation in annotations] == scene.class_ids
        for annotation, mask, (x0, y0, x1, y1) in zip(annotations, scene.masks, scene.boxes, strict=True):
            assert np.array_equal(coco.annToMask(annotation), mask)
            assert annotation["area"] == mask.sum()
            assert annotation["bbox"] == [x0, y0, x1 - x0, y1 - y0]
            assert annotation["iscrowd"] == 0


def test_voc_annotations_count_from_one_and_include_the_last_pixel(root: Path):
    voc = root / "VOC2007"
    for split_name, split, first in (("trainval", Split.SCENE_TRAIN, 1), ("test", Split.SCENE_HELDOUT, 61)):
        numbers = (voc / f"ImageSets/Main/{split_name}.txt").read_text().split()
        assert numbers[0] == f"{first:06d}" and len(numbers) == split.num_images(60)
        for index, number in enumerate(numbers):
            scene = draw_scene(plan_image(0, split, index, 60), 64)
            tree = ElementTree.parse(voc / "Annotations" / f"{number}.xml")
            assert tree.findtext("filename") == f"{number}.jpg"
            assert (tree.findtext("size/width"), tree.findtext("size/height")) == ("64", "64")
            objects = tree.findall("object")
            assert [item.findtext("name") for item in objects] == [CLASS_NAMES[c] for c in scene.class_ids]
            for item, (x0, y0, x1, y1) in zip(objects, scene.boxes.tolist(), strict=True):
                corners = [int(item.findtext(f"bndbox/{tag}")) for tag in ("xmin", "ymin", "xmax", "ymax")]
                assert corners == [x0 + 1, y0 + 1, x1, y1]
                assert item.findtext("difficult") == "0" and item.findtext("pose") == "Unspecified"
                touches_edge = 0 in (x0, y0) or 64 in (x1, y1)
                assert item.findtext("truncated") == str(int(touches_edge))


def test_bytes_do_not_depend_on_the_number_of_processes(root: Path, tmp_path: Path):
    make_toy_scenes(tmp_path / "two", num_images=60, size=64, workers=2)
    digests = _digests(root)
    assert _digests(tmp_path / "two") == digests
    # Per scene: 2 of COCO and VOC detection, 1 mask of VOC, 5 of Cityscapes, 3 of NYUD_MT. Two videos, the lists of
    # six layouts and the record.
    assert len(digests) == 75 + 75 * (3 + 1 + 5 + 3) + 2 * 20 * 2 + 3 + 2 + 2 + 4 + 1 + 1


def test_annotations_of_generator_1_keep_their_bytes(root: Path):
    """Layouts that are added must leave the older ones as they are, to the byte."""
    digest = hashlib.sha256()
    for path in [*sorted(root.glob("VOC2007/Annotations/*")), *sorted(root.glob("coco/annotations/*"))]:
        digest.update(path.read_bytes())
    assert digest.hexdigest() == "a966daf0a5c02f81f6510af830071fd32e7b001dcb280ca720ac1261d037e4e0"


def test_pictures_of_generator_1_are_jpeg_files_of_quality_92(root: Path):
    """Their bytes are the encoder's, which another build of OpenCV may change; the pictures are pinned elsewhere."""
    drawn = [(draw_scene(plan_image(0, split, 0, 60), 64), split) for split in Split]
    for scene, split in drawn:
        expected = cv2.imencode(".jpg", scene.image[:, :, ::-1], (cv2.IMWRITE_JPEG_QUALITY, 92))[1].tobytes()
        files = {
            Split.OBJECT_TRAIN: ["object_centric/train/striped_disk/000001.jpg"],
            Split.OBJECT_HELDOUT: ["object_centric/heldout/striped_disk/000001.jpg"],
            Split.SCENE_TRAIN: ["coco/train2017/000000000001.jpg", "VOC2007/JPEGImages/000001.jpg"],
            Split.SCENE_HELDOUT: ["coco/val2017/000000000061.jpg", "VOC2007/JPEGImages/000061.jpg"],
        }[split]
        assert all((root / name).read_bytes() == expected for name in files)


def test_long_tail_is_in_the_train_sets_alone(tmp_path: Path):
    make_toy_scenes(tmp_path / "tail", num_images=60, size=64, long_tailed=True, workers=1)
    train, heldout = (
        [len(list((tmp_path / f"tail/object_centric/{split}" / name).iterdir())) for name in CLASS_NAMES]
        for split in ("train", "heldout")
    )
    assert train == sorted(train, reverse=True) and train[0] >= 25
    assert max(heldout) == 2
    annotations = json.loads((tmp_path / "tail/coco/annotations/instances_train2017.json").read_text())
    drawn = np.bincount([item["category_id"] for item in annotations["annotations"]], minlength=11)
    assert drawn[1] > 5 * drawn[6:].max()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_leaves_nothing_but_what_was_there(error, root: Path, tmp_path: Path, monkeypatch):
    def fail(*_):
        raise error

    before = _digests(root)
    monkeypatch.setattr(write_module.layouts, "write_voc_set", fail)
    for output, overwrite in ((tmp_path / "toy_scenes", False), (root, True)):
        with pytest.raises(error):
            make_toy_scenes(output, num_images=10, size=64, workers=1, overwrite=overwrite)
    assert list(tmp_path.iterdir()) == []
    assert _digests(root) == before and [path.name for path in root.parent.iterdir()] == [root.name]


def _digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
