"""What samples mean is decided once for a run: by what is stated, else by the weights, else by the images."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from trees import logged

from projects.Pixels.channel_files import patterns_of
from projects.Pixels.channels import measured_ranges, pairs_of, warn_of_marks
from projects.Pixels.survey import Survey
from projects.Pixels.tiff import NODATA
from projects.Pixels.write_tiff import tiff_bytes
from revisit.data.images.deep_images import format_flags, format_of, pixel_format
from revisit.data.images.image_bytes import UnreadableImageError
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.reader import read_record
from revisit.data.sources.catalog import get_records
from revisit.data.views.looks import LOOK_REGISTRY
from revisit.engine.data_checks import decide_by_images
from revisit.engine.setup import make_config
from revisit.errors import UserError
from revisit.keys import Facts

TWO = ("SOLVER.IMS_PER_BATCH", "2")
GENERATOR = np.random.default_rng(0)


def write_arrays(folder, count=6, shape=(20, 30), channels=5, low=100, high=4000, dtype=np.uint16):
    """Arrays of channels with means of their own; the name of their list."""
    folder.mkdir(exist_ok=True)
    files = []
    for number in range(count):
        values = GENERATOR.uniform(low, high, (*shape, channels)) * np.linspace(0.5, 1, channels)
        files.append(folder / f"{number}.npy")
        np.save(files[-1], values.astype(dtype))
    (folder / "list.txt").write_text("\n".join(map(str, files)))
    return f"list:{folder / 'list.txt'}"


def decided(name, *opts, output):
    cfg = make_config("own_images/pretrain.yaml", ["DATASETS.TRAIN", f"('{name}',)", "OUTPUT_DIR", str(output), *opts])
    decide_by_images(cfg, Facts(stated=[list(opts[::2])]), looked_at=False)
    return cfg


def files_of(name):
    return Path(name.partition(":")[2]).read_text().split()


def values_of(name):
    return np.concatenate([np.load(file).reshape(-1, np.load(file).shape[-1]) for file in files_of(name)])


def test_channels_ranges_and_pixel_statistics_follow_from_the_images(tmp_path):
    name = write_arrays(tmp_path / "a")
    cfg = decided(name, output=tmp_path)
    assert cfg.INPUT.CHANNELS == ["1", "2", "3", "4", "5"]
    values = values_of(name).astype(np.float64)
    expected = np.percentile(values, (0.5, 99.5), axis=0).T
    np.testing.assert_allclose(cfg.INPUT.RANGE, expected, rtol=1e-5)
    low, high = expected.T
    levels = np.floor((values - low) * 256 / (high - low)).clip(0, 255)
    np.testing.assert_allclose(cfg.MODEL.PIXEL_MEAN, levels.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(cfg.MODEL.PIXEL_STD, levels.std(axis=0), atol=0.05)


def test_white_of_few_bits_is_the_highest_that_they_hold(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(2):
        values = GENERATOR.integers(0, 2, (20, 30)).astype(bool)
        tifffile.imwrite(tmp_path / f"a/{number}.tif", values, photometric="minisblack")
    cfg = decided(f"folder:{tmp_path}/a", "INPUT.CHANNELS", "scan", output=tmp_path)
    assert cfg.INPUT.RANGE == [[0.0, 1.0]]
    levels = read_record({"file_name": str(tmp_path / "a/1.tif")}, pixel_format(cfg))
    assert np.array_equal(levels[..., 0], 255 * values)


def test_values_are_those_of_the_channels_names_in_whatever_order_a_file_has_them(tmp_path):
    names, values = ("blue", "nir", "swir", "pan"), GENERATOR.integers(0, 100, (20, 30, 4), np.uint16)
    values += np.arange(4, dtype=np.uint16) * 1000
    for number, step in enumerate((1, -1)):
        file = tmp_path / f"{number}.tif"
        file.write_bytes(tiff_bytes(np.ascontiguousarray(values[..., ::step]), names[::step]))
    for opts in ((), ("INPUT.CHANNELS", "pan swir nir blue")):
        cfg = decided(f"folder:{tmp_path}", *opts, *TWO, output=tmp_path / "out")
        order = [names.index(name) for name in cfg.INPUT.CHANNELS]
        expected = np.percentile(values.reshape(-1, 4)[:, order], (0.5, 99.5), axis=0).T
        np.testing.assert_allclose(cfg.INPUT.RANGE, expected, atol=1)
        np.testing.assert_allclose(cfg.MODEL.PIXEL_MEAN, 127.5, atol=12)


def test_what_is_stated_counts(tmp_path):
    name = write_arrays(tmp_path / "a")
    cfg = decided(name, "INPUT.CHANNELS", "b g r nir swir", "INPUT.RANGE", "0 4096", output=tmp_path)
    pixels = pixel_format(cfg)
    assert pixels.channels == ("b", "g", "r", "nir", "swir") and pixels.ranges == ((0.0, 4096.0),) * 5
    assert pixels.colours == (2, 1, 0) and pixels.shown == ()
    record = {"file_name": str(tmp_path / "a" / "0.npy")}
    np.testing.assert_array_equal(read_record(record, pixels), np.load(record["file_name"]) >> 4)


def test_a_range_of_minimum_and_maximum(tmp_path):
    name = write_arrays(tmp_path / "a")
    cfg = decided(name, "INPUT.RANGE", "minmax", output=tmp_path)
    values = values_of(name)
    np.testing.assert_allclose(cfg.INPUT.RANGE, np.stack([values.min(axis=0), values.max(axis=0)], axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1234567.0, 1234577.0, (1234567.0, 1234577.0)),
        (1e7, 1e7 + 30, (1e7, 1e7 + 30)),
        (-273.15, -273.14, (-273.15, -273.14)),
        (123.456789, 3000.12345, (123.457, 3000.12)),
        (2.0**60, 2.0**60 + 2**20, (2.0**60, 2.0**60 + 2**20)),
        (-8e307, 8e307, (-8e307, 8e307)),
        (5000.0, 5000.0, (5000.0, 5005.0)),
    ],
)
def test_a_narrow_range_far_from_0_keeps_its_ends(low, high, expected):
    seen = Survey(1, ("1",), True, ("float64",), 8, np.array([[low], [high]]))
    assert measured_ranges(seen, "minmax") == (pytest.approx(expected, rel=1e-15),)


def test_bytes_keep_all_their_values(tmp_path):
    name = write_arrays(tmp_path / "a", high=250, dtype=np.uint8)
    pixels = pixel_format(decided(name, output=tmp_path))
    record = {"file_name": str(tmp_path / "a" / "0.npy")}
    np.testing.assert_array_equal(read_record(record, pixels), np.load(record["file_name"]))


@pytest.mark.parametrize("value", [10**400, [0, 10**400], "0 inf", "3000 0", "0 1 2", "dark bright", None])
def test_what_is_no_pair_of_finite_numbers_in_rising_order_is_no_range(value):
    assert pairs_of(value) is None


def test_negative_grey_values_are_seen_as_photographs_of_their_range(tmp_path):
    name = write_arrays(tmp_path / "a", channels=1, low=-1000, high=3000, dtype=np.int16)
    cfg = decided(name, "INPUT.RANGE", "-1000 3000", output=tmp_path)
    pixels = pixel_format(cfg)
    assert pixels.channels == () and len(cfg.MODEL.PIXEL_MEAN) == 3
    file = tmp_path / "a" / "0.npy"
    expected = np.floor((np.load(file).astype(float) + 1000) * 256 / 4000).clip(0, 255)
    image = read_record({"file_name": str(file)}, pixels)
    assert image.shape[2] == 3
    np.testing.assert_array_equal(image, np.repeat(expected, 3, axis=2))


def test_pixels_without_data_become_the_mean_and_count_nowhere(tmp_path):
    name = write_arrays(tmp_path / "a", low=1000, high=3000)
    file = tmp_path / "a" / "0.npy"
    values = np.load(file)
    values[:5] = 65535
    np.save(file, values)
    cfg = decided(name, "INPUT.NODATA", "65535", output=tmp_path)
    assert np.max(cfg.INPUT.RANGE) <= 3000
    pixels = pixel_format(cfg)
    image = read_record({"file_name": str(file)}, pixels)
    assert (image[:5] == np.round(cfg.MODEL.PIXEL_MEAN)).all() and len(np.unique(image[5:])) > 100


def test_marks_of_no_data_count_in_no_range_where_transparency_is_a_channel(tmp_path):
    values = GENERATOR.integers(1000, 2000, (20, 30, 4)).astype(np.int16)
    values[:5] = -9999
    tags = [(NODATA, "s", 0, "-9999", True)]
    for file in (tmp_path / "a.tif", tmp_path / "b.tif"):
        tifffile.imwrite(file, values, photometric="rgb", extrasamples=["unassalpha"], extratags=tags)
    cfg = decided(f"folder:{tmp_path}", "INPUT.CHANNELS", "red green blue nir", *TWO, output=tmp_path / "out")
    assert 1000 <= np.min(cfg.INPUT.RANGE) and np.max(cfg.INPUT.RANGE) < 2000


@pytest.mark.parametrize("kind", ["ome", "imagej", "tifffile"])
def test_pages_of_bytes_that_a_description_calls_channels_are_channels(kind, tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (4, 20, 30), np.uint8)
    form = {} if kind == "tifffile" else {kind: True}
    for number in range(2):
        tifffile.imwrite(tmp_path / f"{number}.tif", values, photometric="minisblack", metadata={"axes": "CYX"}, **form)
    cfg = decided(f"folder:{tmp_path}", "INPUT.CHANNELS", "auto", output=tmp_path)
    assert len(pixel_format(cfg).channels) == 4
    image = read_record({"file_name": str(tmp_path / "0.tif")}, pixel_format(cfg))
    assert np.array_equal(image, np.moveaxis(values, 0, 2))


def test_values_of_types_that_tell_of_several_scales_are_refused_unless_one_range_is_asked_for(tmp_path):
    values = np.random.default_rng(0).integers(0, 10_000, (20, 30, 4), np.uint16)
    tifffile.imwrite(tmp_path / "0.tif", values, photometric="minisblack", planarconfig="contig")
    shares = (values / 10_000).astype("f4")
    tifffile.imwrite(tmp_path / "1.tif", shares, photometric="minisblack", planarconfig="contig")
    name, channels = f"folder:{tmp_path}", ("INPUT.CHANNELS", "auto")
    with pytest.raises(UserError, match="values of float32 and others of uint16, .*: save all as one type, or set"):
        decided(name, *channels, output=tmp_path)
    assert pixel_format(decided(name, *channels, "INPUT.RANGE", "auto", output=tmp_path)).ranges


def test_images_that_differ_in_their_channels_are_both_named(tmp_path):
    name = write_arrays(tmp_path / "a")
    np.save(tmp_path / "a" / "3.npy", np.zeros((20, 30, 4), np.uint16))
    with pytest.raises(UserError, match=r"0\.npy has 5 channels, .*3\.npy has 4 channels"):
        decided(name, output=tmp_path)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.float16])
def test_values_that_fill_their_kind_evenly_hold_no_mark(kind):
    limits = np.iinfo(kind) if np.issubdtype(kind, np.integer) else np.finfo(kind)
    values = np.linspace(float(limits.min), float(limits.max), 1000).astype(kind)[:, None]
    assert not logged(warn_of_marks, Survey(1, ("1",), True, (np.dtype(kind).name,), 8, values))
    values[1:] = np.linspace(0, float(limits.max) / 100, 999).astype(kind)[:, None]
    (line,) = (line for _, line in logged(warn_of_marks, Survey(1, ("1",), True, ("",), 8, values)))
    assert f"channel 1 are {float(limits.min):g}, far from all others" in line


def test_values_in_a_tenth_of_their_range_are_worth_a_warning(tmp_path):
    name = write_arrays(tmp_path / "a", low=100, high=200)
    lines = logged(decided, name, "INPUT.RANGE", "0 65535", output=tmp_path)
    assert any("less than a tenth of its range" in line for _, line in lines)


@pytest.mark.parametrize(
    "opts",
    [
        ("INPUT.CHANNELS", "a a b"),
        ("INPUT.RANGE", "3 1"),
        ("INPUT.RANGE", "wide"),
        ("INPUT.RANGE", "0 1 0 2", "INPUT.CHANNELS", "a b c d e"),
        ("INPUT.NODATA", "none"),
        ("INPUT.CHANNEL_FILES", "../{}.tif"),
        ("INPUT.CHANNEL_FILES", "/etc/{}.tif"),
        ("INPUT.CHANNEL_FILES", "red.tif"),
        ("INPUT.CHANNELS", "a b"),
        ("VIEW.CHANNELS", "1 2 9"),
        ("VIEW.CHANNELS", "3"),
        ("VIEW.CHANNELS", "[[1, 0], 'a']"),
        ("INPUT.CHANNEL_FILES", "{}_a.tif {}_b.tif {}_b.tif"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, opts):
    name = write_arrays(tmp_path / "a")
    with pytest.raises(UserError) as error:
        cfg = decided(name, *opts, output=tmp_path)
        read_record({"file_name": str(tmp_path / "a" / "0.npy")}, pixel_format(cfg))
    assert "\n" not in str(error.value)


def test_flags_say_the_format_again(tmp_path):
    cfg = decided(write_arrays(tmp_path / "a"), output=tmp_path)
    pixels = pixel_format(cfg)
    flags = json.loads(json.dumps(format_flags(pixels) | {"MODEL.PIXEL_MEAN": cfg.MODEL.PIXEL_MEAN}))
    assert format_of(flags, []) == pixels and hash(pixels)
    assert format_flags(PHOTOGRAPHS) == {} and format_flags(PixelFormat(12)) == {"INPUT.BIT_DEPTH": 12}


def test_without_flags_the_images_say_the_format(tmp_path):
    name = write_arrays(tmp_path / "a")
    records = [{"file_name": file} for file in files_of(name)]
    cfg = decided(name, output=tmp_path)
    found, pixels = format_of({}, records), pixel_format(cfg)
    assert (found.channels, found.ranges, found.fill) == (pixels.channels, pixels.ranges, pixels.fill)
    np.testing.assert_allclose(found.shown, pixels.shown)


@pytest.mark.parametrize("pattern", ["{} D.tif", "{},D.tif", "{}:D.tif"])
def test_patterns_that_a_name_of_data_cannot_hold_are_named_whole(pattern):
    with pytest.raises(UserError, match=re.escape(f"CHANNEL_FILES {pattern!r}: expected names without blanks")):
        patterns_of([pattern, "{}_F.tif"])


def test_channels_in_files_of_their_own_are_one_image(tmp_path):
    folder = tmp_path / "fields"
    folder.mkdir()
    for number in range(3):
        for channel, name in enumerate("DFR"):
            np.save(folder / f"field{number}_{name}.npy", np.full((8, 9), 1000 * channel + number, np.uint16))
    names = [f"field{number}_{name}.npy" for number in range(3) for name in "DFR"]
    (folder / "list.txt").write_text("\n".join(str(folder / name) for name in names))
    name = f"list:{folder / 'list.txt'}"
    cfg = decided(name, "INPUT.CHANNEL_FILES", "{}_D.npy {}_F.npy {}_R.npy", "INPUT.RANGE", "0 2560", output=tmp_path)
    assert cfg.INPUT.CHANNELS == ["D", "F", "R"]
    pixels = pixel_format(cfg)
    image = read_record({"file_name": str(folder / "field2_D.npy")}, pixels)
    np.testing.assert_array_equal(image[0, 0], [0, 100, 200])
    (folder / "field1_F.npy").unlink()
    (folder / "first.txt").write_text("\n".join(str(folder / name) for name in names if "_D" in name))
    with pytest.raises(UserError, match=r"1 files are missing: .*field1_F\.npy"):
        decided(f"list:{folder / 'first.txt'}", "INPUT.CHANNEL_FILES", "{}_D.npy {}_F.npy", output=tmp_path)


def test_a_name_of_the_first_channel_may_be_the_beginning_of_anothers(tmp_path):
    for name in ("a", "a_nir", "b", "b_nir"):
        np.save(tmp_path / f"{name}.npy", np.zeros((8, 9), np.uint16))
    images = get_records(f"files:folder:{tmp_path}:{{}}.npy,{{}}_nir.npy")
    assert [[Path(file).name for file in image["channel_files"]] for image in images] == [
        ["a.npy", "a_nir.npy"],
        ["b.npy", "b_nir.npy"],
    ]


def test_files_of_one_image_that_differ_in_size_are_refused_in_windows_too(tmp_path):
    for name, side in {"R": 64, "N": 128}.items():
        tifffile.imwrite(tmp_path / f"x_{name}.tif", np.tile(np.arange(side, dtype=np.uint8), (side, 1)))
    pixels = format_of({"INPUT.CHANNELS": ["R", "N"], "INPUT.RANGE": "0 255"}, [])
    files = [str(tmp_path / f"x_{name}.tif") for name in "RN"]
    record = {"file_name": files[0], "channel_files": files}
    for window in ({}, {"window": (32, 0, 64, 32)}):
        with pytest.raises(UnreadableImageError, match="differ in size"):
            read_record(record | window, pixels)


def test_deep_photographs_in_tiffs_need_no_tifffile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for number in range(3):
        values = GENERATOR.integers(0, 4000, (20, 30)).astype(np.uint16)
        Image.fromarray(values).save(tmp_path / f"{number}.tif")
    cfg = decided(f"folder:{tmp_path}", output=tmp_path / "run")
    assert cfg.INPUT.BIT_DEPTH == 12 and cfg.INPUT.CHANNELS is None and cfg.INPUT.RANGE is None


@pytest.mark.parametrize("named", ["5 1 3", "(5, 1, 3)", "['5', '1', '3']"])
def test_pictures_show_three_channels_that_are_named(named, tmp_path):
    cfg = decided(write_arrays(tmp_path / "a"), "VIEW.CHANNELS", named, output=tmp_path)
    pixels = pixel_format(cfg)
    image = read_record({"file_name": str(tmp_path / "a" / "0.npy")}, pixels)
    np.testing.assert_array_equal(pixels.picture(image), image[..., [4, 0, 2]])
    assert pixels.caption("a title") == "a title; shown: 5, 1, 3"


def test_a_run_drops_channels_as_often_as_its_key_says(tmp_path):
    name = write_arrays(tmp_path / "a")
    for often, dropped in ((0.0, 0), (1.0, 4)):
        cfg = decided(name, "VIEWS.CHANNEL_DROPOUT", often, output=tmp_path)
        look = LOOK_REGISTRY.get(cfg.VIEWS.POLICY)(cfg)(np.random.default_rng(0))
        assert len(look.dropped) == dropped  # one of five channels stays
