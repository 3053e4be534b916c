"""Data sets with a label or a depth per pixel: what is read from where, and what is said of bad trees."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trees import logged, one_line_error, refusal, touch, write

import revisit.data  # noqa: F401  (registers the fixed names)
from projects.ToyScenes import CLASS_NAMES as TOY_CLASSES
from revisit.config import add_revisit_config
from revisit.data.sources.catalog import get_records
from revisit.data.sources.inspection import inspect
from revisit.data.sources.labels import read_labels
from revisit.data.sources.pixel_datasets import load_masks
from revisit.data.sources.split_files import check_split, read_split, write_split

from detectron2.config import get_cfg
from detectron2.data import MetadataCatalog


def make_voc(root, **splits):
    for split, names in splits.items():
        write(root / f"ImageSets/Segmentation/{split}.txt", names)
        for name in names:
            touch(root / f"JPEGImages/{name}.jpg", root / f"SegmentationClass/{name}.png")


def make_nyud(root, **splits):
    for split, names in splits.items():
        write(root / f"gt_sets/{split}.txt", names)
        for name in names:
            touch(root / f"images/{name}.jpg", root / f"segmentation/{name}.png", root / f"depth/{name}.npy")


def make_cityscapes(root, names=("bonn/bonn_000001_000019", "aachen/aachen_000000_000019"), split="val"):
    for name in names:
        labels = f"{root}/gtFine/{split}/{name}_gtFine_"
        touch(root / f"leftImg8bit/{split}/{name}_leftImg8bit.png")
        touch(*(Path(f"{labels}{kind}.png") for kind in ("labelIds", "labelTrainIds", "instanceIds")))
        write(Path(f"{labels}polygons.json"), json.dumps({"imgHeight": 4, "imgWidth": 8, "objects": []}))


def test_train_aug_takes_the_masks_of_sbd_and_val_those_of_voc(tmp_path):
    make_voc(tmp_path, train_aug=["both", "only_voc"], val=["both_val"])
    touch(*(tmp_path / f"SegmentationClassAug/{name}.png" for name in ("both", "only_sbd", "both_val")))
    touch(tmp_path / "JPEGImages/only_sbd.jpg")
    write(tmp_path / "ImageSets/Segmentation/train_aug.txt", ["both", "only_voc", "only_sbd"])

    def folders(split):
        records = get_records(f"voc_segmentation:{tmp_path}:{split}")
        return [Path(record["sem_seg_file_name"]).parent.name for record in records]

    assert folders("train_aug") == ["SegmentationClassAug", "SegmentationClass", "SegmentationClassAug"]
    assert folders("val") == ["SegmentationClass"]


@pytest.mark.parametrize(
    ("kind", "images", "key", "maps"),
    [
        ("voc_segmentation", "JPEGImages", "sem_seg_file_name", "SegmentationClass/{}.png"),
        ("nyud_segmentation", "images", "sem_seg_file_name", "segmentation/{}.png"),
        ("nyud_depth", "images", "depth_file_name", "depth/{}.npy"),
    ],
)
def test_a_split_gives_photographs_and_what_the_task_needs_in_its_order(tmp_path, kind, images, key, maps):
    make_voc(tmp_path, val=["2008_2", "2007_1"])
    make_nyud(tmp_path, val=["2008_2", "2007_1"])
    task = kind.partition("_")[2]
    for other in {"segmentation", "depth"} - {task}:
        shutil.rmtree(tmp_path / other)
    assert get_records(f"{kind}:{tmp_path}:val") == [
        {"file_name": f"{tmp_path}/{images}/{name}.jpg", "image_id": name, key: f"{tmp_path}/{maps.format(name)}"}
        for name in ("2008_2", "2007_1")
    ]
    metadata = MetadataCatalog.get(f"{kind}:{tmp_path}:val")
    assert (metadata.evaluator_type == "depth") == (metadata.get("stuff_classes") is None) == (task == "depth")
    assert metadata.get("label_offset", 1) == int(kind != "voc_segmentation")
    split_file = f"{tmp_path}/{'ImageSets/Segmentation' if kind == 'voc_segmentation' else 'gt_sets'}/val.txt"
    for missing in (maps.format("2007_1"), f"{images}/2007_1.jpg"):
        (tmp_path / missing).unlink()
        message = f"{split_file} names 2007_1, but {tmp_path}/{missing} is not there"
        assert message in one_line_error(f"{kind}:{tmp_path}:val")


def test_cityscapes_gives_masks_of_train_ids_in_sorted_order(tmp_path):
    make_cityscapes(tmp_path)
    aachen, bonn = get_records(f"cityscapes:{tmp_path}:val")
    assert aachen["image_id"] == "aachen_000000_000019_leftImg8bit"
    stem = "val/bonn/bonn_000001_000019"
    assert bonn["file_name"] == f"{tmp_path}/leftImg8bit/{stem}_leftImg8bit.png"
    assert bonn["sem_seg_file_name"] == f"{tmp_path}/gtFine/{stem}_gtFine_labelTrainIds.png"


@pytest.mark.parametrize("content", [b"a b\r\n2007_1\r\n", b"a b\n2007_1", b"\xef\xbb\xbfa b  \n\n  2007_1\t\n\n"])
def test_line_ends_and_blanks_of_a_split_mean_nothing(tmp_path, content):
    make_voc(tmp_path, val=["a b", "2007_1"])
    write(tmp_path / "ImageSets/Segmentation/val.txt", content)
    records = get_records(f"voc_segmentation:{tmp_path}:val")
    assert [record["image_id"] for record in records] == ["a b", "2007_1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"1\n2\n1\n", "names 1 2 times"), (b"\xff\xfe1\x00", "is not there")],
)
def test_a_split_that_cannot_be_meant_is_named(tmp_path, content, message):
    make_voc(tmp_path, val=["1", "2"])
    write(tmp_path / "ImageSets/Segmentation/val.txt", content)
    line = one_line_error(f"voc_segmentation:{tmp_path}:val")
    assert f"{tmp_path}/ImageSets/Segmentation/val.txt" in line and message in line
    assert f"{tmp_path}/gt_sets/val.txt" in one_line_error(f"nyud_depth:{tmp_path}:val")


@pytest.mark.parametrize(
    ("pattern", "damage", "named"),
    [
        ("leftImg8bit/val", shutil.rmtree, "leftImg8bit/val"),
        ("gtFine/val", shutil.rmtree, "gtFine/val"),
        ("gtFine/val/bonn/*_labelTrainIds.png", Path.unlink, "labelTrainIds.png"),
        ("leftImg8bit/val", lambda path: touch(path / ".DS_Store"), ".DS_Store"),
    ],
)
def test_a_cityscapes_tree_that_detectron2_cannot_read_ends_in_one_line(tmp_path, pattern, damage, named):
    make_cityscapes(tmp_path)
    for path in list(tmp_path.glob(pattern)):
        damage(path)
    line = one_line_error(f"cityscapes:{tmp_path}:val")
    assert named in line and f"python datasets/prepare_cityscapes.py --cityscapes {tmp_path}" in line


@pytest.mark.parametrize(
    ("name", "count", "some", "offset"),
    [
        ("voc_2012_sem_seg_train_aug", 21, {0: "background", 1: "aeroplane", 15: "person", 20: "tvmonitor"}, 0),
        ("nyud_segmentation_val", 40, {0: "wall", 1: "floor", 20: "clothes", 36: "bag", 39: "other prop"}, 1),
        ("cityscapes_fine_sem_seg_val", 19, {0: "road", 11: "person", 18: "bicycle"}, 0),
        ("toy_voc_sem_seg_val", 11, {0: "background", 1: TOY_CLASSES[0], 10: TOY_CLASSES[9]}, 0),
        ("toy_nyud_segmentation_train", 40, {0: "background", 10: TOY_CLASSES[9], 11: "unused 12"}, 1),
    ],
)
def test_classes_are_named_by_their_train_ids(name, count, some, offset):
    metadata = MetadataCatalog.get(name)
    assert len(set(metadata.stuff_classes)) == len(metadata.stuff_classes) == count
    assert {n: metadata.stuff_classes[n] for n in some} == some
    assert (metadata.label_offset, metadata.ignore_label) == (offset, 255)
    assert metadata.evaluator_type == ("cityscapes_sem_seg" if name.startswith("cityscapes") else "sem_seg")


def test_a_split_is_written_sorted_and_never_over_another(tmp_path):
    path = tmp_path / "val.txt"
    write_split(path, ["b", "a"])
    assert path.read_text() == "a\nb\n"
    write_split(path, ["a", "b"])
    for call in (write_split, check_split):
        assert "names other images than the 1 to be written" in refusal(call, path, ["a"])
    assert read_split(path) == ["a", "b"]


def image(path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (100, 50)).save(path)


def mask(path, ids: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.resize(np.array(ids, np.uint8), (50, 100))).save(path)


@pytest.fixture
def masks(tmp_path):
    for name in ("a.jpg", "below/b.png"):
        image(tmp_path / "images" / name)
    mask(tmp_path / "masks/a.png", [0, 2, 255])
    mask(tmp_path / "masks/below/b.png", [1])
    return f"masks:{tmp_path}/images:{tmp_path}/masks"


def test_masks_lie_at_the_places_of_their_images_and_the_highest_id_says_how_many_classes(masks, tmp_path, caplog):
    image(tmp_path / "images/c.png")
    a, b = get_records(masks)
    assert (a["sem_seg_file_name"], b["image_id"]) == (f"{tmp_path}/masks/a.png", "b")
    metadata = MetadataCatalog.get(masks)
    assert metadata.stuff_classes == ["class 0", "class 1", "class 2"]
    assert (metadata.evaluator_type, metadata.ignore_label) == ("sem_seg", 255)
    assert "1 of 3 images" in caplog.text and "images/c.png" in caplog.text


def test_masks_whose_suffix_is_in_capitals_count_and_a_macs_extra_files_do_not(masks, tmp_path):
    (tmp_path / "masks/a.png").rename(tmp_path / "masks/a.PNG")
    touch(tmp_path / "masks/._a.png", tmp_path / "masks/__MACOSX/below/b.png")
    assert [record["sem_seg_file_name"] for record in get_records(masks)] == [
        f"{tmp_path}/masks/a.PNG", f"{tmp_path}/masks/below/b.png",
    ]  # fmt: skip
    assert MetadataCatalog.get(masks).stuff_classes == ["class 0", "class 1", "class 2"]


@pytest.mark.parametrize("place", ["masks/classes.txt", "classes.txt", "names/mine.yaml"])
def test_names_of_masks_come_from_a_file_beside_them_or_the_third_part(masks, tmp_path, place):
    lines = ["names: [floor, wall, door]"] if place.endswith("yaml") else ["floor", "wall", "door"]
    write(tmp_path / place, lines)
    name = masks + (f":{tmp_path}/{place}" if place.startswith("names") else "")
    get_records(name)
    assert MetadataCatalog.get(name).stuff_classes == ["floor", "wall", "door"]


def test_more_classes_than_masks_have_ids_are_refused(masks, tmp_path):
    write(tmp_path / "classes.txt", [f"class {n}" for n in range(256)])
    assert "classes.txt has 256 classes: expected at most 255" in refusal(get_records, masks)
    write(tmp_path / "classes.txt", [f"class {n}" for n in range(255)])
    assert len(get_records(masks)) == 2


def test_masks_as_jpegs_and_folders_that_are_not_there_are_named(masks, tmp_path):
    images = masks.split(":")[1]
    assert f"folder of labels {tmp_path}/nothing not found" in one_line_error(f"masks:{images}:{tmp_path}/nothing")
    image(tmp_path / "jpegs/a.jpg")
    line = one_line_error(f"masks:{images}:{tmp_path}/jpegs")
    assert (
        "no file of labels, *.png or *.tif or *.tiff, but .jpg" in line
        and "masks are PNGs or TIFFs, because JPEG would change" in line
    )


def test_masks_of_other_images_are_refused(masks, tmp_path):
    image(tmp_path / "others/z.png")
    assert "2 of 2" in refusal(get_records, f"masks:{tmp_path}/others:{tmp_path}/masks")
    assert f"{tmp_path}/nothing" in refusal(get_records, f"masks:{tmp_path}/images:{tmp_path}/nothing")
    assert f"{tmp_path}/masks" in refusal(get_records, f"masks:{tmp_path}/masks:{tmp_path}/masks")


def segmentation(name, num_classes):
    cfg = get_cfg()
    add_revisit_config(cfg)
    cfg.merge_from_list(["MODEL.META_ARCHITECTURE", "SemanticSegmentor", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", num_classes])
    cfg.merge_from_list(["DATASETS.TRAIN", (name,), "DATASETS.TEST", (name,)])
    return cfg


SOFT = [0] * 60 + [255] * 60 + list(range(1, 255, 10))


@pytest.mark.parametrize(
    ("ids", "again"),
    [([0, 255], "but 0, 255, of"), ([0, 128, 255], "0, 1, 2 in place"), ([0, 85, 170, 255], "0, 1, 2, 3 in place")]
    + [([1, 255], "0, 1 in place"), ([255], "0 in place"), (SOFT, "but 0, 255 with soft edges between, of")],
)
@pytest.mark.parametrize("names", [[], ["background", "scratch"]])
def test_masks_whose_white_is_a_class_are_refused_with_what_to_write(masks, tmp_path, ids, again, names):
    for n, file in enumerate(("a.png", "below/b.png")):
        mask(tmp_path / "masks" / file, ids[n:] or ids)  # one of them shows a part
    if names:
        write(tmp_path / "masks/classes.txt", names)
    assert again in refusal(inspect, segmentation(masks, 2), masks, to_learn=True)


@pytest.mark.parametrize("ids", [[0, 255], SOFT])
def test_white_masks_of_vocs_layout_are_refused(tmp_path, ids):
    make_voc(tmp_path, val=["a"])
    mask(tmp_path / "SegmentationClass/a.png", ids)
    name = f"voc_segmentation:{tmp_path}:val"
    assert "but 0, 255" in refusal(inspect, segmentation(name, 21), name, to_learn=False)


@pytest.mark.parametrize("ids", [[0, 15, 255], [0, 1, 255], [0, 1], [0, 128], [0] * 100 + [255] * 9 + [1, 2, 3]])
def test_ids_that_may_be_classes_are_read_with_and_without_void(masks, tmp_path, ids):
    mask(tmp_path / "masks/a.png", ids)
    mask(tmp_path / "masks/below/b.png", [0])
    highest = max(set(ids) - {255})
    assert len(inspect(segmentation(masks, highest + 1), masks, to_learn=False)) == 2


def test_the_log_says_how_many_masks_and_pixels_each_class_has_and_warns_of_those_without(masks, tmp_path):
    write(tmp_path / "classes.txt", ["floor", "wall", "door", "lamp"])
    mask(tmp_path / "masks/a.png", [0, 2, 255, 0])  # of 5,000 px half are floor, a quarter door, a quarter void
    notes = logged(inspect, segmentation(masks, 4), masks, to_learn=True)
    (_, summary), (level, warning) = notes
    assert "2 of 2 masks read" in summary
    assert "floor 1 (25.0 %), wall 1 (50.0 %), door 1 (12.5 %), lamp 0 (0.0 %); void 1 (12.5 %)" in summary
    assert level == logging.WARNING and "no pixel of 1 of 4 classes: lamp" in warning


@pytest.mark.parametrize(
    ("size", "orientation", "is_said"), [((50, 50), 6, True), ((50, 40), 3, True), ((50, 50), 1, False)]
)
def test_images_that_exif_turns_within_their_size_are_named(size, orientation, is_said, masks, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(tmp_path / "images/a.jpg", exif=exif)
    mask(tmp_path / "masks/a.png", [0, 1])
    mask(tmp_path / "masks/below/b.png", [0, 1])
    notes = [text for _, text in logged(inspect, segmentation(masks, 2), masks, to_learn=True) if "EXIF" in text]
    assert len(notes) == is_said and all("1 of 2 images looked at" in text and "a.jpg" in text for text in notes)


def test_masks_of_one_class_are_not_learned_from_however_many_classes_have_names(masks, tmp_path):
    for file in ("a.png", "below/b.png"):
        mask(tmp_path / "masks" / file, [0])
    assert "has one class, class 0" in refusal(inspect, segmentation(masks, 1), masks, to_learn=True)
    named = f"{masks}:{tmp_path}/names.txt"
    write(tmp_path / "names.txt", ["floor", "wall"])
    assert "no pixel of 1 of 2 classes: wall" in refusal(inspect, segmentation(named, 2), named, to_learn=True)
    notes = logged(inspect, segmentation(named, 2), named, to_learn=False)
    assert "no pixel of 1 of 2 classes: wall" in notes[1][1]


def test_masks_may_be_tiffs_one_for_each_image(tmp_path):
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / folder).mkdir()
        Image.new(mode, (6, 4), 1 if mode == "L" else (9, 9, 9)).save(tmp_path / folder / "a.tif")
    (record,) = get_records(f"masks:{tmp_path}/images:{tmp_path}/masks")
    assert record["sem_seg_file_name"] == str(tmp_path / "masks/a.tif")
    assert (read_labels(record["sem_seg_file_name"], 2) == 1).all()
    Image.new("L", (6, 4)).save(tmp_path / "masks/a.png")
    line = refusal(load_masks, tmp_path / "images", tmp_path / "masks")
    assert "two files of labels for one image: expected *.png or *.tif or *.tiff, one for each" in line
