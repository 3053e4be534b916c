"""Whole images of every kind come back as upright RGB."""

import cv2
import numpy as np
import pytest
from PIL import Image

from revisit.data.reader import read_image

ORIENTATION = 0x0112  # the EXIF tag
# EXIF 2.3: where row 0 and column 0 of the stored pixels belong, and the turn that puts them there.
UPRIGHT = {
    1: lambda a: a,  # top, left
    2: lambda a: a[:, ::-1],  # top, right
    3: lambda a: a[::-1, ::-1],  # bottom, right
    4: lambda a: a[::-1],  # bottom, left
    5: lambda a: a.swapaxes(0, 1),  # left, top
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],  # right, top
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],  # right, bottom
    8: lambda a: a.swapaxes(0, 1)[::-1],  # left, bottom
}


@pytest.fixture
def picture(make_picture):
    return make_picture(33, 50)


def corners(height=32, width=48):
    """Four differently coloured quarters, which survive JPEG within a few grey levels."""
    image = np.zeros((height, width, 3), np.uint8)
    for n, color in enumerate([(200, 60, 60), (60, 180, 60), (70, 70, 200), (190, 190, 60)]):
        y, x = n // 2 * height // 2, n % 2 * width // 2
        image[y : y + height // 2, x : x + width // 2] = color
    return image


def decoded_by_pil(path):
    with Image.open(path) as image:
        return np.asarray(image)


def assert_close(image, reference, levels):
    assert image.dtype == np.uint8 and image.shape == reference.shape
    assert np.abs(image.astype(int) - reference).max() <= levels


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_jpeg_decodes_as_in_pil(tmp_path, picture, options):
    Image.fromarray(picture).save(tmp_path / "a.jpg", **options)
    assert_close(read_image(tmp_path / "a.jpg"), decoded_by_pil(tmp_path / "a.jpg"), 2)


def test_grey_jpeg_has_three_equal_channels(tmp_path, picture):
    Image.fromarray(picture[..., 0]).save(tmp_path / "a.jpg", quality=95)
    image = read_image(tmp_path / "a.jpg")
    assert image.shape == picture.shape
    assert np.array_equal(image[..., 0], image[..., 1]) and np.array_equal(image[..., 0], image[..., 2])
    assert_close(image[..., 0], decoded_by_pil(tmp_path / "a.jpg"), 2)


def test_cmyk_jpeg_has_the_right_colours(tmp_path):
    Image.fromarray(corners()).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert decoded_by_pil(tmp_path / "a.jpg").shape == (32, 48, 4)
    quarters = [np.s_[2:14, 2:22], np.s_[2:14, 26:46], np.s_[18:30, 2:22], np.s_[18:30, 26:46]]
    for quarter in quarters:
        assert_close(read_image(tmp_path / "a.jpg")[quarter], corners()[quarter], 5)


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tif", "webp"])
def test_lossless_formats_keep_every_pixel(tmp_path, picture, suffix):
    Image.fromarray(picture).save(tmp_path / f"a.{suffix}", **({"lossless": True} if suffix == "webp" else {}))
    assert np.array_equal(read_image(tmp_path / f"a.{suffix}"), picture)


def test_palette_with_transparency_gives_the_palettes_colours(tmp_path):
    colors = np.array([(250, 10, 20), (5, 240, 30), (40, 50, 230)], np.uint8)
    indices = np.arange(12, dtype=np.uint8).reshape(3, 4) % 3
    image = Image.fromarray(indices)
    image.putpalette(colors.tobytes())
    image.save(tmp_path / "a.png", transparency=bytes([0, 128, 255]))
    assert np.array_equal(read_image(tmp_path / "a.png"), colors[indices])


def test_an_alpha_channel_is_dropped(tmp_path, picture):
    alpha = np.full((*picture.shape[:2], 1), 7, np.uint8)
    Image.fromarray(np.concatenate([picture, alpha], axis=-1)).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png"), picture)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_grey_keeps_its_high_bytes(tmp_path, suffix):
    values = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    expected = np.repeat((values // 256)[..., None], 3, axis=-1)
    assert_close(read_image(tmp_path / f"a.{suffix}"), expected, 0)


def test_sixteen_bit_colour_keeps_its_high_bytes(tmp_path):
    values = np.random.default_rng(0).integers(0, 65536, (9, 11, 3), dtype=np.uint16)
    cv2.imwrite(str(tmp_path / "a.png"), values[..., ::-1])
    assert_close(read_image(tmp_path / "a.png"), values // 256, 0)


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (20, 10), color) for color in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.array_equal(read_image(tmp_path / "a.gif"), np.tile(np.array([255, 0, 0], np.uint8), (10, 20, 1)))


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("suffix, levels", [("jpg", 12), ("png", 0), ("webp", 0)])
def test_exif_orientation_is_honoured(tmp_path, orientation, suffix, levels):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"jpg": {"quality": 95, "subsampling": 0}, "png": {}, "webp": {"lossless": True}}[suffix]
    Image.fromarray(corners()).save(tmp_path / f"a.{suffix}", exif=exif, **options)
    assert_close(read_image(tmp_path / f"a.{suffix}"), UPRIGHT[orientation](corners()), levels)


@pytest.mark.parametrize(("kind", "suffix"), [("png", "jpg"), ("jpg", "png")])
def test_the_content_counts_not_the_suffix(tmp_path, picture, kind, suffix):
    Image.fromarray(picture).save(tmp_path / f"a.{kind}", quality=95)
    expected = read_image(tmp_path / f"a.{kind}")
    (tmp_path / f"a.{kind}").rename(tmp_path / f"a.{suffix}")
    assert np.array_equal(read_image(tmp_path / f"a.{suffix}"), expected)
