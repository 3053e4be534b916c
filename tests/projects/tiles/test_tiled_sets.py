"""Data sets of windows: which there are, what a run learns from them, and what tells them from each other."""

import json
import tarfile

import numpy as np
import pytest
import tifffile
from commands import TINY, run
from PIL import Image
from trees import logged

from projects.Objectives.image_groups import groups_of
from revisit.data.images.image_bytes import WINDOW_READER_REGISTRY, UnreadableImageError, read_bytes
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records
from revisit.data.sources.file_names import expect_file_names
from revisit.data.sources.records import changes, equal_images, fingerprint, shared_images
from revisit.errors import UserError

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
    assert shared_images(records, records) == len(records) and shared_images(records, others) == 0
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
