"""Made-up photographs for benchmarks: noise with the spectrum of natural images, as JPEGs of a camera's sizes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

QUALITY = 75  # of JPEG
EXPONENT = 1.2  # of the spectrum: 80 KB at 640 x 480, which take as long to decode as photographs of this quality


@contextmanager
def files_or_photographs(files: str | None, count: int) -> Iterator[str]:
    """The name of a data set, or where there is none that of a temporary one of ``count`` made-up photographs."""
    with tempfile.TemporaryDirectory() as folder:
        if not files:
            write_photographs(Path(folder), count)
        yield files or f"folder:{folder}"


def write_photographs(folder: Path, count: int, *, height: int = 480, width: int = 640, seed: int = 0) -> list[Path]:
    """Write ``count`` JPEGs of noise whose amplitude falls with 1 / frequency ** EXPONENT."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]) ** EXPONENT
    frequency[0, 0] = np.inf
    paths = [folder / f"{number:05d}.jpg" for number in range(count)]
    for path in paths:
        spectrum = np.fft.rfft2(rng.normal(size=(3, height, width))) / frequency
        pixels = np.fft.irfft2(spectrum, s=(height, width))
        grey = pixels[:1] + 0.3 * pixels  # channels of photographs vary together
        scaled = np.clip(128 + 55 * grey / grey.std(), 0, 255).astype(np.uint8)
        cv2.imwrite(str(path), scaled.transpose(1, 2, 0), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return paths
