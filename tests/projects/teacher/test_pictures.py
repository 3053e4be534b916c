"""The sheet of what a teacher finds, of any number of photographs."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from projects.Teacher.pictures import COLUMNS, TeacherPictures


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_every_photograph_has_its_place(count, tmp_path):
    hook = TeacherPictures.__new__(TeacherPictures)  # without a network
    hook._records, hook._folder = range(count), tmp_path / "teacher"
    hook._tile = lambda number: np.full((10, 100, 3), number, np.uint8)
    hook.trainer = SimpleNamespace(is_evaluated=True, iter=4)
    hook.after_step()
    with Image.open(tmp_path / "teacher/iteration_0000004.png") as picture:
        grey = np.asarray(picture.convert("L"))
    areas = [(grey == number).sum() for number in range(count)]
    assert min(areas) >= 1000 and 100 * min(COLUMNS, count) < grey.shape[1]
