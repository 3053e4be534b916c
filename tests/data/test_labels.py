"""Label and depth maps keep what their files hold, and bad files end in one line."""

import pickle
from functools import partial

import numpy as np
import pytest
import tifffile
from deep import leave_out
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from trees import refusal

from revisit.data.sources.labels import read_depth, read_ids, read_labels, write_depth, write_labels

IDS = np.array([[0, 1, 15], [20, 255, 7]], np.uint8)
DEPTH = np.array([[0.0, 0.5, 9.75], [1.25, 10.0, 3.0]])  # exact in float16


def save_ids(path, ids, palette=False, **options):
    image = Image.fromarray(ids)
    if palette:
        image.putpalette([channel for n in range(256) for channel in (0, 128, (7 * n) % 256)])
    image.save(path, **options)
    return path


@pytest.mark.parametrize(
    ("dtype", "palette", "bits"),
    [(np.uint8, False, 8), (np.uint16, False, 16), (np.uint8, True, 8), (np.uint8, True, 2)],
)
def test_ids_survive_whatever_their_colours_or_bits_are(tmp_path, dtype, palette, bits):
    ids = IDS if bits >= 8 else IDS % 4
    path = save_ids(tmp_path / "a.png", ids.astype(dtype), palette, **({"bits": bits} if palette else {}))
    assert path.read_bytes()[24] == bits  # a pixel
    labels = read_labels(path, 21)
    assert labels.dtype == np.uint8 and np.array_equal(labels, ids)


@given(num_classes=st.integers(1, 255), offset=st.integers(0, 1), data=st.data())
def test_every_class_is_read_back_as_itself(tmp_path_factory, num_classes, offset, data):
    train_ids = data.draw(st.lists(st.integers(0, num_classes), min_size=1, max_size=20))  # the last means void
    void = 0 if offset else 255
    stored = [void if n == num_classes else n + offset for n in train_ids]
    path = tmp_path_factory.mktemp("labels") / "a.png"
    write_labels(path, np.array([stored], np.uint8))
    assert read_labels(path, num_classes, offset).tolist() == [[255 if n == num_classes else n for n in train_ids]]


@pytest.mark.parametrize(
    ("ids", "classes", "offset", "unknown"),
    [
        ([0, 21, 255], 21, 0, "21"),
        ([254, 30, 30, 255], 21, 0, "30, 254"),
        ([0, 41, 42], 40, 1, "41, 42"),
        ([0, 3, 39, 255], 40, 1, "255"),
        ([1, 258, 65535], 21, 0, "258, 65535"),  # 16 bits do not wrap around
    ],
)
def test_ids_out_of_range_are_named_with_their_file(tmp_path, ids, classes, offset, unknown):
    path = save_ids(tmp_path / "a.png", np.array([ids], np.uint8 if max(ids) < 256 else np.uint16))
    line = refusal(read_labels, path, classes, offset)
    assert f"{path} has ids {unknown}:" in line and ("prepare_nyud.py" in line) == bool(offset)


@pytest.mark.parametrize("mode", ["RGB", "LA", "1"])  # the scale of 1-bit grey is unknown
def test_a_mask_in_colours_or_in_grey_of_few_bits_is_refused(tmp_path, mode):
    Image.fromarray(IDS).convert(mode).save(tmp_path / "a.png")
    assert f"label map {tmp_path}/a.png is" in refusal(read_labels, tmp_path / "a.png", 21)


@pytest.mark.parametrize(("photometric", "bits"), [("minisblack", 8), ("minisblack", 4), ("miniswhite", 8)])
def test_a_tiff_whose_ids_a_reader_would_scale_or_invert_is_refused(tmp_path, photometric, bits):
    tifffile.imwrite(tmp_path / "a.tif", IDS[:, :2] // 16 if bits < 8 else IDS, photometric=photometric)
    if bits < 8:  # two ids a byte
        with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
            file.pages[0].tags["ImageWidth"].overwrite(4)
            file.pages[0].tags["BitsPerSample"].overwrite(4)
    if (photometric, bits) == ("minisblack", 8):
        assert np.array_equal(read_labels(tmp_path / "a.tif", 21), IDS)
    else:
        kind = "with white as 0" if bits == 8 else "of less than 8 bits"
        for window in (None, (0, 0, 1, 1)):
            line = refusal(read_labels, tmp_path / "a.tif", 21, window=window)
            assert f"grey {kind}, so that its ids are not certain" in line


@pytest.mark.parametrize(("name", "options"), [("a.png", {"format": "JPEG"}), ("a.tif", {"compression": "jpeg"})])
def test_a_mask_that_is_compressed_as_a_jpeg_is_refused_whatever_its_name_ends_in(tmp_path, name, options):
    Image.fromarray(np.tile(IDS, (8, 8)) % 10).save(tmp_path / name, **options)
    for window in (None, (0, 0, 8, 8)):
        line = refusal(read_labels, tmp_path / name, 255, window=window)
        assert "compressed as a JPEG, which changes its ids" in line


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("change", [np.asarray, np.asfortranarray, lambda depth: depth[..., None]])
def test_depth_is_float32_metres_whatever_its_width(tmp_path, dtype, change):
    np.save(tmp_path / "a.npy", change(DEPTH.astype(dtype)))
    depth = read_depth(tmp_path / "a.npy")
    assert depth.dtype == np.dtype("=f4") and depth.flags["C_CONTIGUOUS"]
    assert depth.tolist() == DEPTH.tolist()


@pytest.mark.parametrize(
    ("array", "content"),
    [
        (np.array([[1.0, -0.5], [-2.0, 3.0]]), "2 of 4"),
        *((np.array([[1.0, value]]), "1 of 2") for value in (np.nan, -np.inf, 1e300)),
        (np.array([[1000, 2000]], np.uint16), "uint16 (1, 2)"),
        (np.zeros((2, 3, 2)), "float64 (2, 3, 2)"),
        (np.zeros(6), "float64 (6,)"),
        (np.zeros((0, 3)), "float64 (0, 3)"),
        (np.array([["1.0"]]), "<U3 (1, 1)"),
    ],
)
def test_depth_of_another_kind_is_refused_with_what_it_is(tmp_path, array, content):
    np.save(tmp_path / "a.npy", array)
    line = refusal(read_depth, tmp_path / "a.npy")
    assert f"depth map {tmp_path}/a.npy" in line and content in line


@pytest.mark.parametrize(("name", "read"), [("a.png", partial(read_labels, num_classes=21)), ("a.npy", read_depth)])
def test_a_damaged_or_missing_map_is_named(tmp_path, name, read):
    path = tmp_path / name
    assert str(path) in refusal(read, path)
    assert "null byte" in refusal(read, f"{tmp_path}/\0{name}")
    write_labels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 20, (64, 64), dtype=np.uint8))
    write_depth(tmp_path / "a.npy", np.ones((8, 8), np.float32))
    pickled = pickle.dumps(DEPTH)  # unpickling could run anything
    for content in (path.read_bytes()[: path.stat().st_size // 2], b"", b"\x89PNG\r\n\x1a\n", pickled):
        path.write_bytes(content)
        assert str(path) in refusal(read, path)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "int32"])
@pytest.mark.parametrize("order", "<>")
def test_ids_of_tiffs_that_pil_misreads_are_those_of_the_file(tmp_path, compression, kind, order):
    ids = np.arange(40 * 56).reshape(40, 56) % 7
    options = {"compression": compression, "byteorder": order, "photometric": "minisblack", "metadata": None}
    tifffile.imwrite(tmp_path / "whole.tif", ids.astype(kind), **options)
    assert read_ids(tmp_path / "whole.tif").tolist() == ids.tolist()
    tifffile.imwrite(tmp_path / "sparse.tif", ids.astype(kind), tile=(16, 16), **options)
    leave_out(tmp_path / "sparse.tif", [0])
    ids[:16, :16] = 0
    assert read_ids(tmp_path / "sparse.tif").tolist() == ids.tolist()
