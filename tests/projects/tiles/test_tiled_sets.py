"""Data sets of windows: which there are, what a run learns from them, and what tells them from each other."""

import json
import tarfile

import numpy as np
import pytest
import tifffile
from commands import TINY, run
from labels import inspected
from PIL import Image
from tiny import tiny_config
from trees import logged, refused, voc_xml_of, write

from projects.Objectives.image_groups import groups_of
from projects.Tiles.tile_checks import windows_fit
from revisit.data.images.image_bytes import WINDOW_READER_REGISTRY, UnreadableImageError, read_bytes
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.reader import read_record
from revisit.data.loading.finetune_loader import FinetuneLoader
from revisit.data.sources.catalog import get_records
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.records import changes, equal_images, fingerprint, shared_pairs
from revisit.data.sources.subsets import is_labelled
from revisit.errors import UserError

from detectron2.data import MetadataCatalog
from detectron2.structures import BoxMode

LEAST = f"{TINY} SOLVER.MAX_ITER 3 SOLVER.IMS_PER_BATCH 4 NEIGHBORS.WEIGHT 0.0 DATASETS.TEST () KNN_EVAL.BANK ''"


def scan(size=(700, 900), bands=4, seed=0) -> np.ndarray:
    """(H, W, bands) uint16 that differs from place to place."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    waves = [1500 + 800 * np.sin(x / (20 + 7 * n)) * np.cos(y / 30) for n in range(bands)]
    return (np.stack(waves, axis=-1) + rng.normal(0, 50, (*size, bands))).astype(np.uint16)


def write_scan(path, values, **options) -> None:
    layout = {"planarconfig": "contig"} if values.ndim == 3 else {}
    how = {"photometric": "minisblack", "tile": (128, 128), "compression": "zlib", "metadata": None}
    tifffile.imwrite(path, values, **how | layout | options)


def photograph(size=(300, 400)) -> Image.Image:
    return Image.fromarray((scan(size, 3) >> 4).astype(np.uint8))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scans").mkdir()
    write_scan(tmp_path / "scans/a.tif", scan())
    write_scan(tmp_path / "scans/b.tif", scan((100, 520), seed=1))
    return tmp_path / "scans"


def test_windows_of_all_images_row_by_row(folder):
    records = get_records(f"tiles:512+64:folder:{folder}")
    assert [record["window"] for record in records] == [
        (0, 0, 512, 512),
        (388, 0, 900, 512),
        (0, 188, 512, 700),
        (388, 188, 900, 700),
        (0, 0, 512, 100),
        (8, 0, 520, 100),
    ]
    assert [record["file_name"][-5:] for record in records] == ["a.tif"] * 4 + ["b.tif"] * 2
    assert records[4] | {"file_name": ""} == {
        "file_name": "",
        "window": (0, 0, 512, 100),
        "padded_to": 512,
        "height": 100,
        "width": 512,
    }
    assert len(get_records(f"tiles:256@0.5:folder:{folder}")) == 6


def test_windows_of_mostly_no_data_are_left_out_and_counted(folder):
    values = scan()
    values[:, :500] = 0
    write_scan(folder / "a.tif", values, extratags=[(42113, "s", 0, "0", True)])
    name = f"tiles:300:folder:{folder}"
    lines = logged(get_records, name)
    kept = [record["window"] for record in get_records(name) if record["file_name"].endswith("a.tif")]
    assert kept == [(600, top, 900, top + 300) for top in (0, 300, 400)]
    assert any(
        "5 windows of 300 px in 2 images; 6 more are left out, in which more than half" in line for _, line in lines
    )
    write_scan(folder / "a.tif", values * 0, extratags=[(42113, "s", 0, "0", True)])
    (folder / "b.tif").unlink()
    with pytest.raises(UserError, match="no window has data in more than half of its pixels"):
        get_records(name)


def test_classes_of_images_are_those_of_their_windows(tmp_path):
    for kind in ("birch", "pine"):
        (tmp_path / kind).mkdir()
        photograph().save(tmp_path / kind / "a.png")
    records = get_records(f"tiles:256:class_folders:{tmp_path}")
    assert [record["label"] for record in records] == [0] * 4 + [1] * 4


def labelled_photographs(folder, *objects, size=(300, 400), **more) -> str:
    """A data set of one photograph; objects are boxes xywh."""
    folder.mkdir(exist_ok=True)
    photograph(size).save(folder / "a.png")
    usual = {"image_id": 1, "category_id": 7, "iscrowd": 0}
    annotations = [usual | {"id": n, "bbox": box} | more for n, box in enumerate(objects, start=1)]
    images = [{"id": 1, "file_name": "a.png", "height": size[0], "width": size[1]}]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 7, "name": "tree"}]}
    (folder / "boxes.json").write_text(json.dumps(content))
    return f"coco:{folder}:{folder}/boxes.json"


def test_boxes_of_windows(tmp_path):
    name = f"tiles:200:{labelled_photographs(tmp_path, [150, 20, 60, 40], [230, 130, 20, 20])}"
    first, second, third, fourth = get_records(name)
    usual = {"category_id": 0, "bbox_mode": BoxMode.XYXY_ABS}
    assert first["annotations"] == [usual | {"bbox": [150, 20, 200, 60], "iscrowd": 0}]
    cut_off, whole = second["annotations"]
    assert cut_off == usual | {"bbox": [0, 20, 10, 60], "iscrowd": 1, "ignored": True}
    assert whole == usual | {"bbox": [30, 130, 50, 150], "iscrowd": 0}
    assert third["annotations"] == [] and fourth["annotations"] == [usual | {"bbox": [30, 30, 50, 50], "iscrowd": 0}]
    assert MetadataCatalog.get(name).thing_classes == ["tree"]


def test_as_many_windows_teach_the_background_as_show_objects(tmp_path):
    name = f"tiles:50:{labelled_photographs(tmp_path, [10, 10, 20, 20], [60, 10, 20, 20], [390, 290, 5, 5])}"
    (line,) = [line for _, line in logged(get_records, name) if "windows of 50 px" in line]
    assert "; 3 show objects, and of 45 others 3 teach the background" in line
    records = get_records(name)
    assert len(records) == 48
    background = [number for number, record in enumerate(records) if record.get("background")]
    assert background == [2, 24, 46]  # the first, middle and last of 45
    assert [is_labelled(record) for record in records].count(True) == 6
    options = ["MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "DATASETS.TRAIN", (name,)]
    learned = FinetuneLoader(tiny_config(*options), dict).images
    assert learned[0]["count"] == 6
    of_all = FinetuneLoader(tiny_config(*options, "DATALOADER.FILTER_EMPTY_ANNOTATIONS", False), dict).images
    assert of_all[0]["count"] == 48


def test_images_nobody_labelled_teach_no_background(tmp_path):
    for name in "ab":
        write(tmp_path / f"labels/{name}.xml", voc_xml_of(("tree", 1, 1, 20, 20), size=(300, 400)))
        (tmp_path / "images").mkdir(exist_ok=True)
        photograph().save(tmp_path / f"images/{name}.png")
    (tmp_path / "labels/b.xml").unlink()
    records = get_records(f"tiles:100:voc_xml:{tmp_path}/images:{tmp_path}/labels")
    background = [record for record in records if record.get("background")]
    assert len(records) == 24 and len(background) == 1 and background[0]["file_name"].endswith("a.png")


def test_labels_of_another_size_than_the_file_are_refused(tmp_path):
    name = labelled_photographs(tmp_path, [10, 10, 20, 20])
    photograph((310, 400)).save(tmp_path / "a.png")
    refused(r"a\.png has 400 x 310 px, and its labels 400 x 300: expected", get_records, f"tiles:200:{name}")


def test_windows_smaller_than_objects_are_refused_with_the_size_that_fits(tmp_path):
    boxes = [[20, 20, 250, 90], [30, 30, 210, 90]] + 8 * [[5, 5, 20, 20]]
    name = labelled_photographs(tmp_path, *[[x + n, y, w, h] for n, (x, y, w, h) in enumerate(boxes)])
    problem = "20% of 10 objects are longer than a window, 200 px of a file: expected tiles of 256 px or more"
    refused(problem, inspected, f"tiles:200:{name}", to_learn=True)
    refused("expected tiles of 128 px or more", inspected, f"tiles:100@0.5:{name}", to_learn=True)
    inspected(f"tiles:220:{name}", to_learn=True)
    assert get_records(f"tiles:100:{name}")  # a pretraining may have them


def test_maps_of_labels_are_refused_where_a_detector_would_learn_them(tmp_path):
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / folder).mkdir()
        Image.new(mode, (60, 40)).save(tmp_path / f"{folder}/a.png")
    name = f"tiles:30:masks:{tmp_path}/images:{tmp_path}/masks"
    assert len(get_records(name)) == 4
    cfg = tiny_config("MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    problem = "maps of labels and depths are not cut into windows for detectors"
    refused(problem, windows_fit, cfg, name, get_records(name), to_learn=True)


def test_a_detector_learns_from_windows(tmp_path):
    boxes = [[x, y, 30, 24] for x in range(20, 380, 60) for y in range(20, 270, 60)]
    name = labelled_photographs(tmp_path, *boxes)
    train = "python tools/train_net.py --config-file configs/toy/detection.yaml MODEL.ROI_HEADS.NUM_CLASSES 1"
    data = f"DATASETS.TRAIN \"('tiles:100+20:{name}',)\" DATASETS.TEST () OUTPUT_DIR {tmp_path}/run"
    few = "SOLVER.MAX_ITER 2 SOLVER.IMS_PER_BATCH 2 SOLVER.STEPS () TEST.PRECISE_BN.NUM_ITER 1"
    log = run(f"{train} {data} {few} MODEL.RESNETS.STEM_OUT_CHANNELS 8 MODEL.RESNETS.RES2_OUT_CHANNELS 8", tmp_path)
    assert "show objects" in log
    *_, last = (tmp_path / "run/metrics.json").read_text().splitlines()
    assert np.isfinite(json.loads(last)["total_loss"])


@pytest.mark.parametrize(
    "name, problem",
    [
        ("tiles:wide:folder:{}", "tiles wide: expected px"),
        ("tiles:512", "expected tiles:SIZE:NAME"),
        ("tiles:512:nothing", "unknown data set 'nothing'"),
        ("tiles:512:tiles:600:folder:{}", "windows of one file have no names of their own"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_line(name, problem, folder):
    with pytest.raises(UserError) as error:
        get_records(name.format(folder))
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_windows_of_one_file_are_different_images_of_one_group(folder):
    records = get_records(f"tiles:256:folder:{folder}")
    others = get_records(f"tiles:300:folder:{folder}")
    assert changes(fingerprint(records), fingerprint(records)) == []
    moved = [record | {"window": tuple(place + 1 for place in record["window"])} for record in records]
    assert changes(fingerprint(records), fingerprint(moved)) == ["names"]
    assert len(shared_pairs(records, records)) == len(records) and len(shared_pairs(records, others)) == 0
    assert equal_images(records) == []
    groups, unused = groups_of("file", records)
    assert groups == [record["file_name"] for record in records] and len(set(groups)) == 2 and unused == []
    with pytest.raises(UserError, match="windows of one file have no names of their own"):
        expect_file_names(records, "tiles")


@pytest.mark.parametrize("form", ["tiles:20+4:files:{}:{}", "files:tiles:20+4:{}:{}"])
def test_windows_of_images_whose_channels_are_files(form, tmp_path):
    values = scan((30, 50), 3)
    for place, channel in enumerate("DFR"):
        write_scan(tmp_path / f"a_{channel}.tif", values[..., place], tile=None)
    name = form.format(f"folder:{tmp_path}", "{}_D.tif,{}_F.tif,{}_R.tif")
    records = get_records(name)
    pixels = PixelFormat(channels=("D", "F", "R"), ranges=((0.0, 2560.0),) * 3)
    assert len(records) == 6
    for record in records:
        left, top, right, bottom = record["window"]
        expected = np.minimum(values[top:bottom, left:right] // 10, 255)
        np.testing.assert_array_equal(read_record(record, pixels), expected)


def test_shards_are_made_of_windows(folder, tmp_path):
    (tmp_path / "photos").mkdir()
    photograph().save(tmp_path / "photos/a.jpg")
    for place, suffix in ((folder, ".tif"), (tmp_path / "photos", ".pnm")):
        records = get_records(f"tiles:256:folder:{place}")
        command = f"python tools/make_shards.py --data tiles:256:folder:{place} --output {tmp_path}/shards{suffix}"
        run(command, tmp_path)
        with tarfile.open(tmp_path / f"shards{suffix}/shard-000000.tar") as tar:
            members = [(member.name, tar.extractfile(member).read()) for member in tar]
        assert [name for name, _ in members] == [f"{n:09d}{suffix}" for n in range(len(records))]
        assert [data for _, data in members] == [read_bytes(record) for record in records]


def test_the_first_bytes_of_a_window_take_one_pixel(folder, monkeypatch):
    (record, *_) = get_records(f"tiles:256:folder:{folder}")
    asked = []
    monkeypatch.setattr(WINDOW_READER_REGISTRY, "_obj_map", {"spy": lambda part: asked.append(part) or bytes(99)})
    assert read_bytes(record, 26) == bytes(26) and read_bytes(record) == bytes(99)
    assert [part["window"] for part in asked] == [(0, 0, 1, 1), (0, 0, 256, 256)]


def test_without_a_reader_of_windows_they_are_refused(folder, monkeypatch):
    (record, *_) = get_records(f"tiles:256:folder:{folder}")
    assert read_bytes(record)
    monkeypatch.setattr(WINDOW_READER_REGISTRY, "_obj_map", {})
    with pytest.raises(UnreadableImageError, match=r"a\.tif: windows of images need projects/Tiles"):
        read_bytes(record)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pretraining_learns_from_windows_of_scans(num_workers, folder, tmp_path):
    train = "python tools/train_net.py --config-file configs/toy/pretrain.yaml"
    data = f"DATASETS.TRAIN \"('tiles:256+32:folder:{folder}',)\" OUTPUT_DIR {tmp_path}/run {LEAST}"
    log = run(f"{train} {data} DATALOADER.NUM_WORKERS {num_workers}", tmp_path)
    assert "windows of 256 px in 2 images" in log and "INPUT.CHANNELS ['1', '2', '3', '4']" in log
    *_, last = (tmp_path / "run/metrics.json").read_text().splitlines()
    assert np.isfinite(json.loads(last)["total_loss"])


def test_a_pretraining_learns_from_windows_of_photographs_and_keeps_scans_apart(tmp_path):
    (tmp_path / "photos").mkdir()
    photograph().save(tmp_path / "photos/a.jpg")
    photograph((500, 260)).save(tmp_path / "photos/b.png")
    name = f"tiles:128:folder:{tmp_path}/photos"
    record = get_records(name)[5]
    left, top, right, bottom = record["window"]
    whole = read_record({"file_name": record["file_name"]}, PHOTOGRAPHS)
    np.testing.assert_array_equal(read_record(record, PHOTOGRAPHS), whole[top:bottom, left:right])
    train = "python tools/train_net.py --config-file configs/toy/pretrain.yaml"
    groups = "MODEL.META_ARCHITECTURE GroupedKNNMoCo NEIGHBORS.GROUPS file"
    log = run(f"{train} DATASETS.TRAIN \"('{name}',)\" OUTPUT_DIR {tmp_path}/run {LEAST} {groups}", tmp_path)
    assert "2 groups of 12 to 12 images" in log and "INPUT.CHANNELS" not in log
