"""Tags say what a TIFF's bands are: none is taken for grey levels, and none is dropped without a word."""

import logging
import struct
from pathlib import Path

import numpy as np
import pytest
from trees import refused

from projects.Pixels.grey_levels import find_bits
from revisit.data.images.pixel_format import PHOTOGRAPHS, PixelFormat
from revisit.data.images.reader import read_image, read_size, require_record

BLACK_IS_ZERO, RGB = 1, 2
DATA, ALPHA = 0, 2  # kinds of further bands


def write_tiff(path: Path, values: np.ndarray, photometric: int, further: int = DATA) -> Path:
    """Uncompressed (H, W, bands) uint8 or uint16, as GDAL and microscopes write it."""
    height, width, bands = values.shape
    extra = bands - (3 if photometric == RGB else 1)
    longer = struct.pack(f"<{bands}H", *[8 * values.itemsize] * bands), struct.pack(f"<{extra}H", *[further] * extra)
    tags = {256: width, 257: height, 258: longer[0], 259: 1, 262: photometric, 273: b"", 277: bands, 278: height}
    tags |= {279: values.nbytes, 284: 1} | ({338: longer[1]} if extra else {})
    place, entries, after = 8 + 2 + 12 * len(tags) + 4, b"", b""
    end = place + sum(len(value) for value in longer if len(value) > 4)
    for tag, value in tags.items():
        count = len(value) // 2 if tag in (258, 338) else 1
        kind = 4 if tag in (256, 257, 273, 278, 279) else 3
        field = struct.pack("<I", end if tag == 273 else value) if not isinstance(value, bytes) or tag == 273 else value
        if len(field) > 4:
            field, after = struct.pack("<I", place + len(after)), after + field
        entries += struct.pack("<HHI", tag, kind, count) + field.ljust(4, b"\0")
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + after + values.tobytes())
    return path


def samples(bands: int, kind: type, top: int = 250) -> np.ndarray:
    return np.random.default_rng(bands).integers(0, top, (9, 14, bands)).astype(kind)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("bands", [2, 3, 4, 5])
def test_bands_that_no_tag_calls_colours_are_refused_with_their_number(tmp_path, bands, kind):
    path = write_tiff(tmp_path / "a.tif", samples(bands, kind), BLACK_IS_ZERO)
    expected = f"a.tif: a TIFF of {bands} bands, which no tag calls colours: expected 1 band, or RGB"
    refused(expected, require_record, {"file_name": path}, PHOTOGRAPHS)
    refused(expected, require_record, {"file_name": path}, PixelFormat(16))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_band_and_one_of_transparency_are_grey_levels(tmp_path, kind):
    values = samples(2, kind)
    (tmp_path / "grey").mkdir()
    alone = write_tiff(tmp_path / "grey/a.tif", values[..., :1], BLACK_IS_ZERO)
    assert read_size(write_tiff(tmp_path / "a.tif", values, BLACK_IS_ZERO, ALPHA)) == read_size(alone)
    levels = read_image(alone, PixelFormat(8))
    assert levels.tolist() == np.repeat(values[..., :1], 3, axis=2).tolist()


@pytest.mark.parametrize(("further", "warns"), [(DATA, True), (ALPHA, False)])
def test_a_band_beside_colours_is_said_once_unless_it_is_transparency(tmp_path, caplog, monkeypatch, further, warns):
    monkeypatch.setattr("detectron2.utils.logger._LOG_COUNTER", __import__("collections").Counter())
    values = samples(4, np.uint8)
    path = write_tiff(tmp_path / "a.tif", values, RGB, further)
    with caplog.at_level(logging.WARNING):
        seen = [read_image(path) for _ in range(2)]
    assert seen[0].tolist() == values[..., :3].tolist()
    assert caplog.text.count("the 1 after the colours, such as infrared, are read where INPUT.CHANNELS") == warns


@pytest.mark.parametrize(("mark", "warns"), [(65535, True), (2999, False)])
def test_a_mark_for_no_data_far_above_all_values_is_said(tmp_path, caplog, mark, warns):
    values = samples(1, np.uint16, 3000)
    values[:2] = mark
    path = write_tiff(tmp_path / "a.tif", values, BLACK_IS_ZERO)
    bits, _ = find_bits([{"file_name": str(path)}])
    assert bits == (16 if warns else 12)
    assert ("nearly black next to 65535: if that is a mark for no data" in caplog.text) == warns
