"""The laws of the geometry of tiles, over sizes, tiles, overlaps and scales."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projects.Tiles.windows import Tiling, in_file, inside, windows
from revisit.errors import UserError

SIZES = st.integers(1, 700)


@st.composite
def tilings(draw) -> Tiling:
    scale = draw(st.sampled_from((0.25, 1 / 3, 0.5, 1.0, 1.0, 1.5, 2.0)))
    tile = draw(st.integers(8, 300))
    return Tiling(tile, draw(st.integers(0, tile - 4)), scale)


def axis_of(cut: np.ndarray, axis: int) -> list[tuple[int, int]]:
    """The different (start, end) along x, 0, or y, 1, in order."""
    return sorted({(window[axis], window[axis + 2]) for window in cut.tolist()})


@given(SIZES, SIZES, tilings())
def test_windows_cover_every_pixel_and_are_as_few_as_can_be(height, width, tiling):
    cut = windows(height, width, *tiling)
    side, shared = tiling.side, in_file(tiling.overlap, tiling.scale)
    assert cut.dtype == np.int64 and (cut[:, 2:] - cut[:, :2] == side).all()
    seen = np.zeros((height, width), bool)
    for left, top, right, bottom in inside(cut, height, width).tolist():
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        seen[top:bottom, left:right] = True
    assert seen.all()
    for axis, length in enumerate((width, height)):
        ends = axis_of(cut, axis)
        assert len(ends) == max(1, math.ceil((length - shared) / (side - shared)))
        assert ends[0][0] == 0 and ends[-1][1] == max(side, length)  # padded where the image is smaller, else inside
        assert all(one[1] - other[0] >= shared for one, other in pairwise(ends))
    rows = cut[:, [1, 0]].tolist()
    assert rows == sorted(rows) and len(cut) == len(axis_of(cut, 0)) * len(axis_of(cut, 1))


def test_the_last_window_is_shifted_inside_and_a_smaller_image_padded():
    assert windows(700, 900, 512, 64).tolist() == [
        [0, 0, 512, 512],
        [388, 0, 900, 512],
        [0, 188, 512, 700],
        [388, 188, 900, 700],
    ]
    assert windows(100, 900, 512)[:, [1, 3]].tolist() == [[0, 512], [0, 512]]
    assert inside(windows(100, 900, 512), 100, 900)[0].tolist() == [0, 0, 512, 100]


def test_a_scale_says_how_many_pixels_of_the_file_a_tile_has():
    assert [in_file(5, scale) for scale in (0.5, 1, 2, 4)] == [10, 5, 3, 1]  # 2.5 is rounded up
    assert windows(2000, 2000, 512, scale=0.5).tolist()[0] == [0, 0, 1024, 1024]


TEXTS = ["1024", "1024+128", "1024@0.5", "1024+128@0.25", "64@2", "64@0.3333333", "64@1.123456789", "64@0.00001"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_tiling_is_its_text(text):
    assert str(Tiling.of(text)) == text
    assert Tiling.of(str(Tiling.of(text))) == Tiling.of(text)


@pytest.mark.parametrize("text", ["", "0", "wide", "64+64", "64+65", "-3", "64@0", "64@", "64@1e3", "1@9", "3+2@4"])
def test_what_is_no_tiling_is_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"^tiles .*: [^\n]+$"):
        Tiling.of(text)
