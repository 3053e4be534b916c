"""datasets/prepare_voc_train_aug.py: VOC and SBD become train_aug."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from revisit.data.catalog import get_records
from revisit.data.labels import read_labels
from revisit.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "datasets"))

import prepare_voc_train_aug
from prepare_voc_train_aug import main

SIZE = (4, 6)  # height, width


def write_mat(path, mask):
    structure = {"Segmentation": mask, "Boundaries": np.zeros((20, 1)), "CategoriesPresent": np.unique(mask)}
    savemat(path, {"GTcls": structure})


@pytest.fixture
def trees(tmp_path):
    """SBD knows a, b, c and v; VOC trains on b and t, and holds out v. The mask of the n-th of all is n."""
    sbd, voc = tmp_path / "sbd", tmp_path / "VOC2012"
    (sbd / "cls").mkdir(parents=True)
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc / folder).mkdir(parents=True)
    for n, name in enumerate("abcvt", start=1):
        Image.new("RGB", SIZE[::-1]).save(voc / f"JPEGImages/{name}.jpg")
        if name in "abcv":
            write_mat(sbd / f"cls/{name}.mat", np.full(SIZE, n, np.uint8))
        if name in "btv":
            Image.fromarray(np.full(SIZE, 10 + n, np.uint8)).save(voc / f"SegmentationClass/{name}.png")
    (sbd / "train.txt").write_text("c\nb\n")
    (sbd / "val.txt").write_text("v\na\n")
    (voc / "ImageSets/Segmentation/train.txt").write_text("t\nb\n")
    (voc / "ImageSets/Segmentation/val.txt").write_text("v\n")
    return sbd, voc


def prepare(trees):
    main(["--sbd", str(trees[0]), "--voc", str(trees[1])])


def test_train_aug_is_all_of_both_but_val_with_vocs_own_masks_where_there_are_any(trees, capsys):
    prepare(trees)
    _, voc = trees
    assert (voc / "ImageSets/Segmentation/train_aug.txt").read_text() == "a\nb\nc\nt\n"
    assert sorted(path.name for path in (voc / "SegmentationClassAug").iterdir()) == ["a.png", "c.png"]
    out = capsys.readouterr().out
    assert "4 images; wrote 2 masks" in out and "note: the published train_aug has 10582 images" in out
    records = get_records(f"voc_segmentation:{voc}:train_aug")
    masks = {r["image_id"]: read_labels(r["sem_seg_file_name"], 21) for r in records}
    ids = {name: np.unique(mask).tolist() for name, mask in masks.items()}
    assert ids == {"a": [1], "b": [12], "c": [3], "t": [15]}
    assert all(mask.shape == SIZE for mask in masks.values())


def test_the_published_count_needs_no_note(trees, capsys, monkeypatch):
    monkeypatch.setattr(prepare_voc_train_aug, "EXPECTED", 4)
    prepare(trees)
    assert "note" not in capsys.readouterr().out


def test_pixels_of_sbd_survive(trees):
    sbd, voc = trees
    mask = np.random.default_rng(0).integers(0, 21, SIZE, dtype=np.uint8)
    write_mat(sbd / "cls/a.mat", mask)
    prepare(trees)
    assert np.array_equal(read_labels(voc / "SegmentationClassAug/a.png", 21), mask)


def test_a_second_call_writes_nothing_again(trees, capsys):
    prepare(trees)
    (trees[0] / "cls/a.mat").write_bytes(b"no longer read")
    prepare(trees)
    assert "wrote 0 masks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda sbd, voc: (sbd / "cls/c.mat").unlink(), "1 images of train_aug have no mask, the first is c"),
        (lambda sbd, voc: (sbd / "cls/c.mat").write_bytes(b"MATLAB 5.0 torn"), "cls/c.mat cannot be read"),
        (lambda sbd, voc: savemat(sbd / "cls/c.mat", {"GTinst": 1}), "cls/c.mat cannot be read"),
        (lambda sbd, voc: write_mat(sbd / "cls/c.mat", np.full(SIZE, 21, np.uint8)), "c.mat has ids 21 to 21"),
        (lambda sbd, voc: write_mat(sbd / "cls/c.mat", np.full(SIZE, 0.5)), "a GTcls.Segmentation of float64"),
        (lambda sbd, voc: write_mat(sbd / "cls/c.mat", np.zeros((6, 4), np.uint8)), "is 4 x 6 pixels, .*c.jpg"),
        (lambda sbd, voc: (voc / "JPEGImages/c.jpg").unlink(), "1 of 4 images of train_aug are not in"),
        (lambda sbd, voc: (sbd / "val.txt").unlink(), "sbd/val.txt not found"),
        (lambda sbd, voc: (voc / "ImageSets/Segmentation/val.txt").unlink(), "Segmentation/val.txt not found"),
        (lambda sbd, voc: (voc / "ImageSets/Segmentation/train_aug.txt").write_text("a\n"), "names other images"),
    ],
)
def test_incomplete_downloads_are_named_and_leave_no_split(trees, damage, message):
    sbd, voc = trees
    damage(sbd, voc)
    before = sorted((voc / "ImageSets/Segmentation").iterdir())
    with pytest.raises(UserError, match=message) as error:
        prepare(trees)
    assert "\n" not in str(error.value)
    assert sorted((voc / "ImageSets/Segmentation").iterdir()) == before


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "python datasets/prepare_voc_train_aug.py --sbd" in capsys.readouterr().out
