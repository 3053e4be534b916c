"""Pictures and data sets on disk for the tests of the data side."""

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

# How fast a machine is does not decide whether a test passes.
settings.register_profile("data", deadline=None)
settings.load_profile("data")


def make_picture(height, width, seed=0):
    """A made-up photograph: smooth colours, one sharp-edged object, a little noise; (H, W, 3) uint8 RGB."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width, 2)
    colors = rng.uniform(40, 200, (3, 3))
    picture = colors[0] + (colors[1] - colors[0]) * y[..., None] + (colors[2] - colors[0]) * x[..., None]
    picture[height // 4 : height // 2, width // 4 : (3 * width) // 4] = rng.uniform(0, 255, 3)
    return np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).astype(np.uint8)


@pytest.fixture(name="make_picture")
def make_picture_fixture():
    return make_picture


@pytest.fixture
def write_pictures():
    """Write ``count`` different pictures into a folder; returns their paths, in sorted order."""

    def write(folder, count, size=(30, 40)):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{n:03d}.png" for n in range(count)]
        for n, path in enumerate(paths):
            Image.fromarray(make_picture(*size, seed=n)).save(path)
        return paths

    return write
