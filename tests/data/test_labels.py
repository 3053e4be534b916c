"""Label and depth maps keep what their files hold, and bad files end in one line."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from revisit.data.labels import read_depth, read_labels, write_depth, write_labels
from revisit.errors import UserError
from revisit.files import written_whole

IDS = np.array([[0, 1, 15], [20, 255, 7]], np.uint8)


def save_with_palette(path, ids, **options):
    image = Image.fromarray(ids)
    image.putpalette([channel for n in range(256) for channel in (0, 128, (7 * n) % 256)])
    image.save(path, **options)


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, "palette"])
def test_ids_survive_whatever_their_colours_or_bits_are(tmp_path, dtype):
    if dtype == "palette":
        save_with_palette(tmp_path / "a.png", IDS)
    else:
        Image.fromarray(IDS.astype(dtype)).save(tmp_path / "a.png")
    labels = read_labels(tmp_path / "a.png", 21)
    assert labels.dtype == np.uint8 and np.array_equal(labels, IDS)


def test_ids_of_a_palette_with_few_bits_survive(tmp_path):
    ids = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.uint8)
    save_with_palette(tmp_path / "a.png", ids, bits=2)
    assert (tmp_path / "a.png").read_bytes()[24] == 2  # bits a pixel
    assert np.array_equal(read_labels(tmp_path / "a.png", 4), ids)


@given(num_classes=st.integers(1, 255), offset=st.integers(0, 1), data=st.data())
def test_every_class_is_read_back_as_itself(tmp_path_factory, num_classes, offset, data):
    train_ids = data.draw(st.lists(st.integers(0, num_classes), min_size=1, max_size=20))  # the last means void
    void = 0 if offset else 255
    stored = [void if n == num_classes else n + offset for n in train_ids]
    path = tmp_path_factory.mktemp("labels") / "a.png"
    write_labels(path, np.array([stored], np.uint8))
    assert read_labels(path, num_classes, offset).tolist() == [[255 if n == num_classes else n for n in train_ids]]


@pytest.mark.parametrize(
    ("ids", "classes", "offset", "message"),
    [
        ([0, 21, 255], 21, 0, "ids 21: expected 0 to 20, and 255 for void"),
        ([254, 30, 30, 255], 21, 0, "ids 30, 254: expected 0 to 20, and 255"),
        ([0, 41, 42], 40, 1, "ids 41, 42: expected 1 to 40, and 0 for void"),
        ([0, 3, 39, 255], 40, 1, "ids 255: expected 1 to 40, and 0 for void; masks that count from 0 are rewritten by"),
        ([1, 258, 65535], 21, 0, "ids 258, 65535: expected 0 to 20"),  # 16 bits do not wrap around
        (list(range(19, 28)), 19, 0, "ids 19, 20, 21, 22, 23 and 4 more: expected 0 to 18"),
    ],
)
def test_ids_out_of_range_are_named_with_their_file(tmp_path, ids, classes, offset, message):
    Image.fromarray(np.array([ids], np.uint8 if max(ids) < 256 else np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(UserError) as error:
        read_labels(tmp_path / "a.png", classes, offset)
    assert f"{tmp_path}/a.png has {message}" in one_line(error)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_a_mask_in_colours_is_refused(tmp_path, mode):
    Image.fromarray(IDS).convert(mode).save(tmp_path / "a.png")
    with pytest.raises(UserError) as error:
        read_labels(tmp_path / "a.png", 21)
    assert f"{tmp_path}/a.png is an image in mode {mode}: expected one id a pixel" in one_line(error)


def test_grey_of_few_bits_is_refused_because_its_scale_is_unknown(tmp_path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[24:26] == b"\x01\x00"  # one bit a pixel, grey
    with pytest.raises(UserError, match="less than 8 bits"):
        read_labels(tmp_path / "a.png", 21)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", None])
def test_a_damaged_mask_is_named(tmp_path, content):
    if content is None:  # cut short
        Image.fromarray(np.random.default_rng(0).integers(0, 20, (64, 64), dtype=np.uint8)).save(tmp_path / "a.png")
        content = (tmp_path / "a.png").read_bytes()[:1500]
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError) as error:
        read_labels(tmp_path / "a.png", 21)
    assert f"label map {tmp_path}/a.png cannot be read" in one_line(error)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=f"label map {tmp_path}/a.png not found"):
        read_labels(tmp_path / "a.png", 21)
    with pytest.raises(UserError, match=f"depth map {tmp_path}/a.npy not found"):
        read_depth(tmp_path / "a.npy")


DEPTH = np.array([[0.0, 0.5, 9.75], [1.25, 10.0, 3.0]])  # exact in float16


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("change", [np.asarray, np.asfortranarray, lambda depth: depth[..., None]])
def test_depth_is_float32_metres_whatever_its_width(tmp_path, dtype, change):
    np.save(tmp_path / "a.npy", change(DEPTH.astype(dtype)))
    depth = read_depth(tmp_path / "a.npy")
    assert depth.dtype == np.dtype("=f4") and depth.flags["C_CONTIGUOUS"]
    assert depth.tolist() == DEPTH.tolist()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[1.0, -0.5], [-2.0, 3.0]]), "has negative values (2 of 4): expected metres, and 0 where"),
        (np.array([[1.0, np.nan]]), "has infinite or undefined values (1 of 2)"),
        (np.array([[1.0, -np.inf]]), "has infinite or undefined values (1 of 2)"),
        (np.array([[1e300, 1.0]]), "has infinite or undefined values (1 of 2)"),
        (np.array([[1000, 2000]], np.uint16), "is uint16 (1, 2): expected floating-point metres of shape (H, W)"),
        (np.zeros((2, 3, 2)), "is float64 (2, 3, 2): expected floating-point metres of shape (H, W)"),
        (np.zeros(6), "is float64 (6,): expected"),
        (np.zeros((0, 3)), "is float64 (0, 3): expected"),
        (np.array([["1.0"]]), "is <U3 (1, 1): expected"),
    ],
)
def test_depth_of_another_kind_is_refused_with_what_it_is(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError) as error:
        read_depth(tmp_path / "a.npy")
    assert f"depth map {tmp_path}/a.npy {message}" in one_line(error)


class Payload:
    """Unpickling it would leave a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_depth_map_that_needs_pickle_is_refused_and_not_run(tmp_path):
    objects = np.empty((1, 1), object)
    objects[0, 0] = Payload(tmp_path / "owned")
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    for name in ("a.npy", "b.npy"):
        with pytest.raises(UserError) as error:
            read_depth(tmp_path / name)
        assert f"{name} cannot be read" in one_line(error) and "pickle" in one_line(error)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"depth", b"\x93NUMPY\x01\x00", None])
def test_a_damaged_depth_map_is_named(tmp_path, content):
    np.save(tmp_path / "a.npy", np.ones((8, 8)))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-9] if content is None else content)
    with pytest.raises(UserError) as error:
        read_depth(tmp_path / "a.npy")
    assert f"depth map {tmp_path}/a.npy cannot be read" in one_line(error)


def test_an_archive_of_depth_maps_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", depth=np.ones((2, 2)))
    with pytest.raises(UserError, match="archive of several arrays"):
        read_depth(tmp_path / "a.npz")


def test_maps_are_written_whole_and_read_back(tmp_path):
    write_labels(tmp_path / "a.png", IDS)
    write_depth(tmp_path / "a.npy", DEPTH.astype(np.float32))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), IDS)
    assert np.load(tmp_path / "a.npy").tolist() == DEPTH.tolist()
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.npy"}


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "a.txt").write_text("before")
    with pytest.raises(ZeroDivisionError), written_whole(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"
