"""datasets/prepare_nyud.py: any layout of NYU Depth v2 becomes NYUD_MT."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from revisit.data.catalog import get_records
from revisit.data.labels import read_depth, read_labels
from revisit.data.reader import read_image
from revisit.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "datasets"))

from prepare_nyud import main

SIZE = (4, 6)  # height, width
TRAIN_IDS = {"1": 0, "2": 39, "3": 7}  # the left half of each image; the right one is void
MILLIMETRES = {"1": 0, "2": 2500, "3": 65535}


def write_zeros(path, *shape, dtype=np.uint8):
    write_image(path, np.zeros(shape, dtype))


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def source(tmp_path):
    """Scene a with the images 1 and 2, b with 3; beside them masks of 0 to 39 and 255, and depth in millimetres."""
    root = tmp_path / "source"
    for name, scene in (("1", "a"), ("2", "a"), ("3", "b")):
        mask = np.full(SIZE, TRAIN_IDS[name], np.uint8)
        mask[:, 3:] = 255
        write_image(root / scene / f"{name}.png", np.full((*SIZE, 3), 40 * int(name), np.uint8))
        write_image(root / scene / f"{name}_mask.png", mask)
        write_image(root / scene / f"depth_{name}.png", np.full(SIZE, MILLIMETRES[name], np.uint16))
    return root


def prepare(source, output, *more, masks=True, depths=True, split="val"):
    options = ["--output", str(output), "--split", split, "--images", f"{source}/*/{{name}}.png"]
    if masks:
        options += ["--masks", f"{source}/*/{{name}}_mask.png", "--mask-ids", "zero_based"]
    if depths:
        options += ["--depths", f"{source}/*/depth_{{name}}.png", "--depth-scale", "1000"]
    main([*options, *more])


def test_masks_and_depths_arrive_as_nyud_mt_counts_them(source, tmp_path):
    prepare(source, tmp_path / "out")
    assert (tmp_path / "out/gt_sets/val.txt").read_text() == "1\n2\n3\n"
    for record in get_records(f"nyud_segmentation:{tmp_path}/out:val"):
        stored = np.asarray(Image.open(record["sem_seg_file_name"]))
        assert stored.tolist() == [[TRAIN_IDS[record["image_id"]] + 1] * 3 + [0] * 3] * 4
        labels = read_labels(record["sem_seg_file_name"], 40, offset=1)
        assert labels.tolist() == [[TRAIN_IDS[record["image_id"]]] * 3 + [255] * 3] * 4
        assert (read_image(record["file_name"]) == 40 * int(record["image_id"])).all()
    for record in get_records(f"nyud_depth:{tmp_path}/out:val"):
        depth = read_depth(record["depth_file_name"])
        assert np.load(record["depth_file_name"]).dtype == np.float32
        assert depth.shape == SIZE and np.allclose(depth, MILLIMETRES[record["image_id"]] / 1000, rtol=1e-6)


def test_masks_that_count_from_one_are_kept(tmp_path):
    write_image(tmp_path / "in/x.jpg", np.zeros((*SIZE, 3), np.uint8))
    mask = np.arange(24, dtype=np.uint8).reshape(SIZE)
    write_image(tmp_path / "in/x.png", mask)
    main([
        "--output", str(tmp_path / "out"), "--split", "train", "--images", f"{tmp_path}/in/{{name}}.jpg",
        "--masks", f"{tmp_path}/in/{{name}}.png", "--mask-ids", "one_based",
    ])  # fmt: skip
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out/segmentation/x.png")), mask)
    assert (tmp_path / "out/images/x.jpg").read_bytes() == (tmp_path / "in/x.jpg").read_bytes()


def test_depth_in_metres_is_copied(source, tmp_path):
    metres = np.random.default_rng(0).uniform(0, 9, SIZE)
    for name in TRAIN_IDS:
        np.save(source / f"{name}.npy", metres)
    prepare(source, tmp_path / "out", "--depths", f"{source}/{{name}}.npy", depths=False)
    assert np.array_equal(read_depth(tmp_path / "out/depth/2.npy"), metres.astype(np.float32))


def test_each_kind_can_be_left_out(source, tmp_path):
    prepare(source, tmp_path / "out", masks=False, split="train")
    assert len(get_records(f"nyud_depth:{tmp_path}/out:train")) == 3
    with pytest.raises(UserError, match="segmentation/1.png is not there"):
        get_records(f"nyud_segmentation:{tmp_path}/out:train")


def test_a_list_of_names_says_what_the_split_is_and_splits_lie_side_by_side(source, tmp_path):
    for split, names in (("train", "3\n1\n"), ("val", "2\n")):
        (tmp_path / "names.txt").write_text(names)
        prepare(source, tmp_path / "out", "--names", str(tmp_path / "names.txt"), split=split)
    ids = {s: [r["image_id"] for r in get_records(f"nyud_depth:{tmp_path}/out:{s}")] for s in ("train", "val")}
    assert ids == {"train": ["1", "3"], "val": ["2"]}


def test_a_split_of_other_images_is_not_replaced(source, tmp_path):
    prepare(source, tmp_path / "out")
    prepare(source, tmp_path / "out")
    (tmp_path / "names.txt").write_text("2\n")
    with pytest.raises(UserError, match=r"val.txt is there already and names other images"):
        prepare(source, tmp_path / "out", "--names", str(tmp_path / "names.txt"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "a/2.png").unlink(), r"--images: 1 of 3 files not found, .*/2\.png"),
        (lambda root: (root / "b/3_mask.png").unlink(), r"--masks: 1 of 3 files not found, .*/3_mask\.png"),
        (lambda root: write_zeros(root / "b/1.png", *SIZE, 3), "finds 1 twice: .*a/1.png and .*b"),
        (lambda root: (root / "a/1.png").write_bytes(b"torn"), r"unreadable image .*a/1\.png"),
        (lambda root: write_image(root / "a/1_mask.png", np.full(SIZE, 40, np.uint8)), "1_mask.png has ids 40"),
        (lambda root: write_zeros(root / "a/1_mask.png", 6, 4), "is 4 x 6 pixels, but .* is 6 x 4"),
        (lambda root: write_zeros(root / "a/depth_1.png", *SIZE), "depth_1.png is an image in mode L"),
        (lambda root: (root / "a/depth_1.png").write_bytes(b"torn"), "depth_1.png cannot be read"),
        (lambda root: write_zeros(root / "a/depth_1.png", 6, 4, dtype=np.uint16), "depth_1.png is 4 x 6 pixels"),
    ],
)
def test_files_that_do_not_fit_are_named_and_leave_no_split(source, tmp_path, damage, message):
    damage(source)
    with pytest.raises(UserError, match=message) as error:
        prepare(source, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out/gt_sets/val.txt").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected --masks or --depths"),
        (["--masks", "m/{name}.png"], "--masks needs --mask-ids, one of zero_based, one_based"),
        (["--depths", "d/{name}.png"], "--depths of PNGs needs a positive --depth-scale"),
        (["--depths", "d/{name}.png", "--depth-scale", "-1"], "--depths of PNGs needs a positive --depth-scale"),
        (["--depths", "d/{name}.npy"], "--depths d/{name}.npy: no such file"),
        (["--depths", "d.npy"], "--depths d.npy: expected {name} once"),
        (["--depths", "{name}/{name}.npy"], "expected {name} once, in the last part"),
        (["--depths", "d/{name}.npy", "--split", "../x"], "--split '../x': expected a name"),
    ],
)
def test_options_that_leave_a_question_open_are_refused(source, tmp_path, options, message):
    with pytest.raises(UserError) as error:
        prepare(source, tmp_path / "out", *options, masks=False, depths=False)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "python datasets/prepare_nyud.py --output $DETECTRON2_DATASETS/NYUD_MT" in text and "5000" in text
