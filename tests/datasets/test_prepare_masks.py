"""The scripts of datasets/ that make masks and depth maps: of Cityscapes, of NYU Depth v2, and of VOC with SBD."""

from functools import partial

import numpy as np
import prepare_cityscapes
import prepare_nyud
import prepare_voc_train_aug
import pytest
from PIL import Image
from scipy.io import savemat
from trees import refused

from revisit.data.images.reader import read_image
from revisit.data.sources.catalog import get_records
from revisit.data.sources.labels import read_depth, read_labels

from detectron2.data.datasets.builtin_meta import CITYSCAPES_CATEGORIES

SIZE = (4, 6)  # height, width


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path)


def write_zeros(path, *shape, dtype=np.uint8):
    write(path, np.zeros(shape, dtype))


def stored(path):
    return np.asarray(Image.open(path))


FRAME = "gtFine/val/bonn/bonn_000001_000019_gtFine"


def prepare_train_ids(root):
    prepare_cityscapes.main(["--cityscapes", str(root)])


def test_every_label_id_becomes_its_train_id_or_255(tmp_path):
    label_ids = np.arange(34, dtype=np.uint8).reshape(2, 17)
    write(tmp_path / f"{FRAME}_labelIds.png", label_ids)
    prepare_train_ids(tmp_path)
    expected = {category["id"]: category["trainId"] for category in CITYSCAPES_CATEGORIES}
    assert len(expected) == 19
    train_ids = stored(tmp_path / f"{FRAME}_labelTrainIds.png")
    assert train_ids.dtype == np.uint8
    assert train_ids.tolist() == [[expected.get(n, 255) for n in row] for row in label_ids.tolist()]


def test_masks_that_are_there_stay_as_they_are(tmp_path, capsys):
    for frame in ("train/aachen/aachen_0", "val/bonn/bonn_0", "test/mainz/mainz_0"):
        write(tmp_path / f"gtFine/{frame}_gtFine_labelIds.png", np.uint8([[7, 8]]))
    added = tmp_path / "gtFine/train/aachen/._aachen_0_gtFine_labelIds.png"  # by a Mac
    added.write_bytes(b"resource fork")
    done = tmp_path / "gtFine/train/aachen/aachen_0_gtFine_labelTrainIds.png"
    write(done, np.uint8([[5, 5]]))
    prepare_train_ids(tmp_path)
    assert "wrote 2 masks of train ids, 1 were there already" in capsys.readouterr().out
    assert stored(done).tolist() == [[5, 5]]
    added.unlink()
    assert len(list(tmp_path.rglob("*"))) == 4 + 3 + 6  # folders, cities, masks: nothing temporary is left


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [("labelIds", b"torn", "19_gtFine_labelIds.png"), ("labelIds", 34, "has ids 34"), ("color", 8, "no masks in")],
)
def test_masks_that_do_not_fit_are_named_and_leave_no_half_written_one(tmp_path, name, data, named):
    file = tmp_path / f"{FRAME}_{name}.png"
    write(file, np.uint8([[7, 8 if data == b"torn" else data]]))
    if data == b"torn":
        file.write_bytes(file.read_bytes()[:40])
    refused(named, prepare_train_ids, tmp_path)
    assert list(file.parent.iterdir()) == [file]


TRAIN_IDS = {"1": 0, "2": 39, "3": 7}  # the left half of each image; the right one is void
MILLIMETRES = {"1": 0, "2": 2500, "3": 65535}


@pytest.fixture
def source(tmp_path):
    """Scene a with the images 1 and 2, b with 3; beside them masks of 0 to 39 and 255, and depth in millimetres."""
    root = tmp_path / "source"
    for name, scene in (("1", "a"), ("2", "a"), ("3", "b")):
        mask = np.full(SIZE, TRAIN_IDS[name], np.uint8)
        mask[:, 3:] = 255
        write(root / scene / f"{name}.png", np.full((*SIZE, 3), 40 * int(name), np.uint8))
        write(root / scene / f"{name}_mask.png", mask)
        write(root / scene / f"depth_{name}.png", np.full(SIZE, MILLIMETRES[name], np.uint16))
    return root


def prepare_nyud_mt(source, *more, masks=True, depths=True, split="val"):
    """Into the folder ``out`` beside ``source``, which it returns."""
    output = source.parent / "out"
    options = ["--output", str(output), "--split", split, "--images", f"{source}/*/{{name}}.png"]
    if masks:
        options += ["--masks", f"{source}/*/{{name}}_mask.png", "--mask-ids", "zero_based"]
    if depths:
        options += ["--depths", f"{source}/*/depth_{{name}}.png", "--depth-scale", "1000"]
    prepare_nyud.main([*options, *more])
    return output


def test_masks_and_depths_arrive_as_nyud_mt_counts_them(source):
    out = prepare_nyud_mt(source)
    assert (out / "gt_sets/val.txt").read_text() == "1\n2\n3\n"
    for record in get_records(f"nyud_segmentation:{out}:val"):
        train_id = TRAIN_IDS[record["image_id"]]
        assert stored(record["sem_seg_file_name"]).tolist() == [[train_id + 1] * 3 + [0] * 3] * 4
        assert read_labels(record["sem_seg_file_name"], 40, offset=1).tolist() == [[train_id] * 3 + [255] * 3] * 4
        assert (read_image(record["file_name"]) == 40 * int(record["image_id"])).all()
    for record in get_records(f"nyud_depth:{out}:val"):
        depth = read_depth(record["depth_file_name"])
        assert np.load(record["depth_file_name"]).dtype == np.float32
        assert depth.shape == SIZE and np.allclose(depth, MILLIMETRES[record["image_id"]] / 1000, rtol=1e-6)


def test_masks_that_count_from_one_and_jpegs_are_kept(tmp_path):
    write_zeros(tmp_path / "in/x.jpg", *SIZE, 3)
    write(tmp_path / "in/x.png", np.arange(24, dtype=np.uint8).reshape(SIZE))
    patterns = ["--images", f"{tmp_path}/in/{{name}}.jpg", "--masks", f"{tmp_path}/in/{{name}}.png"]
    prepare_nyud.main(["--output", f"{tmp_path}/out", "--split", "train", *patterns, "--mask-ids", "one_based"])
    assert np.array_equal(stored(tmp_path / "out/segmentation/x.png"), stored(tmp_path / "in/x.png"))
    assert (tmp_path / "out/images/x.jpg").read_bytes() == (tmp_path / "in/x.jpg").read_bytes()


def test_depth_in_metres_is_copied_and_each_kind_can_be_left_out(source):
    metres = np.random.default_rng(0).uniform(0, 9, SIZE)
    for name in TRAIN_IDS:
        np.save(source / f"{name}.npy", metres)
    out = prepare_nyud_mt(source, "--depths", f"{source}/{{name}}.npy", masks=False, depths=False, split="train")
    assert np.array_equal(read_depth(out / "depth/2.npy"), metres.astype(np.float32))
    assert len(get_records(f"nyud_depth:{out}:train")) == 3
    refused("segmentation/1.png", get_records, f"nyud_segmentation:{out}:train")


def test_a_list_of_names_says_what_the_split_is_and_none_is_replaced(source, tmp_path):
    file = tmp_path / "names.txt"
    for split, names in (("train", "3\n1\n"), ("val", "2\n"), ("val", "2\n")):
        file.write_text(names)
        out = prepare_nyud_mt(source, "--names", str(file), split=split)
    ids = {s: [r["image_id"] for r in get_records(f"nyud_depth:{out}:{s}")] for s in ("train", "val")}
    assert ids == {"train": ["1", "3"], "val": ["2"]}
    refused(r"val.txt exists and names other images", prepare_nyud_mt, source)


def test_another_image_of_a_name_in_another_split_replaces_none(source):
    out = prepare_nyud_mt(source, split="train")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    prepare_nyud_mt(source, split="trainval")  # of the same images
    (out / "gt_sets/trainval.txt").unlink()
    write(source / "a/2.png", np.full((*SIZE, 3), 200, np.uint8))
    write(source / "a/2_mask.png", np.full(SIZE, 30, np.uint8))
    refused("a/2.png is another image than .*images/2.jpg, which is in the split train", prepare_nyud_mt, source)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    prepare_nyud_mt(source, split="train")  # again, where it was mended
    assert (read_image(out / "images/2.jpg") == 200).all()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda root: (root / "a/2.png").unlink(), "/2.png"),
        (lambda root: (root / "b/3_mask.png").unlink(), "3_mask.png"),
        (lambda root: write_zeros(root / "b/1.png", *SIZE, 3), "a/1.png .*b/1.png"),
        (lambda root: (root / "a/1.png").write_bytes(b"torn"), "a/1.png"),
        (lambda root: write(root / "a/1_mask.png", np.full(SIZE, 40, np.uint8)), "1_mask.png has ids 40"),
        (lambda root: write_zeros(root / "a/1_mask.png", 6, 4), "1_mask.png is 4 x 6"),
        (lambda root: write_zeros(root / "a/depth_1.png", *SIZE), "depth_1.png is an image in mode L"),
        (lambda root: (root / "a/depth_1.png").write_bytes(b"torn"), "depth_1.png"),
        (lambda root: write_zeros(root / "a/depth_1.png", 6, 4, dtype=np.uint16), "depth_1.png is 4 x 6"),
    ],
)
def test_files_that_do_not_fit_are_named_and_leave_no_split(source, damage, named):
    damage(source)
    refused(named, prepare_nyud_mt, source)
    assert not (source.parent / "out/gt_sets/val.txt").exists()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ([], "--masks"),
        (["--masks", "m/{name}.png"], "--mask-ids"),
        (["--depths", "d/{name}.png", "--depth-scale", "-1"], "--depth-scale"),
        (["--depths", "d/{name}.npy"], "--depths d/"),
        (["--depths", "d.npy"], "--depths d.npy"),
        (["--depths", "{name}/{name}.npy"], "--depths "),
        (["--depths", "d/{name}.npy", "--split", "../x"], "--split '../x'"),
    ],
)
def test_options_that_leave_a_question_open_are_refused(source, options, key):
    refused(key, partial(prepare_nyud_mt, masks=False, depths=False), source, *options)
    assert not (source.parent / "out").exists()


def write_mat(path, mask):
    structure = {"Segmentation": mask, "Boundaries": np.zeros((20, 1)), "CategoriesPresent": np.unique(mask)}
    savemat(path, {"GTcls": structure})


@pytest.fixture
def trees(tmp_path):
    """SBD knows a, b, c and v; VOC trains on b and t, and holds out v. The mask of the n-th of all is n."""
    sbd, voc = tmp_path / "sbd", tmp_path / "VOC2012"
    splits = voc / "ImageSets/Segmentation"
    for folder in (sbd / "cls", splits):
        folder.mkdir(parents=True)
    for n, name in enumerate("abcvt", start=1):
        write_zeros(voc / f"JPEGImages/{name}.jpg", *SIZE, 3)
        if name in "abcv":
            write_mat(sbd / f"cls/{name}.mat", np.full(SIZE, n, np.uint8))
        if name in "btv":
            write(voc / f"SegmentationClass/{name}.png", np.full(SIZE, 10 + n, np.uint8))
    for file, names in ((sbd / "train", "cb"), (sbd / "val", "va"), (splits / "train", "tb"), (splits / "val", "v")):
        file.with_suffix(".txt").write_text("".join(f"{name}\n" for name in names))
    return sbd, voc


def prepare_train_aug(trees):
    prepare_voc_train_aug.main(["--sbd", str(trees[0]), "--voc", str(trees[1])])


def test_train_aug_is_all_of_both_but_val_with_vocs_own_masks_where_there_are_any(trees, capsys, monkeypatch):
    sbd, voc = trees
    prepare_train_aug(trees)
    assert (voc / "ImageSets/Segmentation/train_aug.txt").read_text() == "a\nb\nc\nt\n"
    assert sorted(path.name for path in (voc / "SegmentationClassAug").iterdir()) == ["a.png", "c.png"]
    out = capsys.readouterr().out
    assert "4 images; wrote 2 masks" in out and "note: the published train_aug has 10582 images" in out
    records = get_records(f"voc_segmentation:{voc}:train_aug")
    masks = {r["image_id"]: read_labels(r["sem_seg_file_name"], 21) for r in records}
    ids = {name: np.unique(mask).tolist() for name, mask in masks.items()}
    assert ids == {"a": [1], "b": [12], "c": [3], "t": [15]}
    assert all(mask.shape == SIZE for mask in masks.values())
    (sbd / "cls/a.mat").write_bytes(b"no longer read")
    monkeypatch.setattr(prepare_voc_train_aug, "EXPECTED", 4)
    prepare_train_aug(trees)
    out = capsys.readouterr().out
    assert "wrote 0 masks" in out and "note" not in out


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda sbd, voc: (sbd / "cls/c.mat").unlink(), "no mask in .*: c"),
        (lambda sbd, voc: (sbd / "cls/c.mat").write_bytes(b"MATLAB 5.0 torn"), "cls/c.mat"),
        (lambda sbd, voc: savemat(sbd / "cls/c.mat", {"GTinst": 1}), "cls/c.mat"),
        (lambda sbd, voc: write_mat(sbd / "cls/c.mat", np.full(SIZE, 21, np.uint8)), "cls/c.mat: .* 21 to 21"),
        (lambda sbd, voc: write_mat(sbd / "cls/c.mat", np.full(SIZE, 0.5)), "cls/c.mat: .* 0.5 to 0.5"),
        (lambda sbd, voc: write_mat(sbd / "cls/c.mat", np.zeros((6, 4), np.uint8)), "is 4 x 6 pixels, .*c.jpg"),
        (lambda sbd, voc: (voc / "JPEGImages/c.jpg").unlink(), "1 of 4 images of train_aug .*: c"),
        (lambda sbd, voc: (sbd / "val.txt").unlink(), "sbd/val.txt"),
        (lambda sbd, voc: (voc / "ImageSets/Segmentation/val.txt").unlink(), "Segmentation/val.txt"),
        (lambda sbd, voc: (voc / "ImageSets/Segmentation/train_aug.txt").write_text("a\n"), "train_aug.txt"),
    ],
)
def test_incomplete_downloads_are_named_and_leave_no_split(trees, damage, named):
    sbd, voc = trees
    damage(sbd, voc)
    before = sorted((voc / "ImageSets/Segmentation").iterdir())
    refused(named, prepare_train_aug, trees)
    assert sorted((voc / "ImageSets/Segmentation").iterdir()) == before
