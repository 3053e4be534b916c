"""DATALOADER.DECODE_ON_DEVICE on the CPU, where torchvision decodes by libjpeg: the workers' views within roundings."""

import io
import logging

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_config
from trees import refusal

import revisit.data.decoding_on_device as decoding_module
from revisit.data.decoding_on_device import cut, cut_into
from revisit.data.images.reader import Picture
from revisit.data.loading.loader import ResumableLoader, with_looks
from revisit.data.views.crops import ConstrainedMultiCrop, crop_and_resize
from revisit.engine.config_checks import check_config, check_hardware

ANTIALIAS = ("VIEWS.RESAMPLING", "antialias")
LOOKS_ON_DEVICE = ("DATALOADER.AUGMENT_ON_DEVICE", True, *ANTIALIAS)
ON_DEVICE = ("DATALOADER.DECODE_ON_DEVICE", True, *ANTIALIAS)


def jpeg(pixels: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("size", [5, 96])
def test_crops_of_noise_are_the_workers_within_a_rounding(size):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (150, 230, 3), dtype=np.uint8)
    boxes = ConstrainedMultiCrop()(150, 230, rng)
    for box in (boxes.anchor, *boxes.small, np.array([7, 9, 8, 10])):
        view = torch.empty(3, size, size, dtype=torch.uint8)
        cut_into([view], torch.from_numpy(pixels).movedim(-1, 0), [box.tolist()])
        expected = crop_and_resize(pixels, box, size).astype(int)
        assert np.abs(view.movedim(0, -1).numpy() - expected).max() <= 1


def test_only_upright_jpegs_of_grey_or_rgb_are_left_to_the_device(make_picture):
    pixels = make_picture(30, 50)
    assert Picture(jpeg(pixels)).plain_jpeg_size() == Picture(jpeg(pixels[..., 0])).plain_jpeg_size() == (30, 50)
    file = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(file, "JPEG")
    for other in (jpeg(pixels, exif=turned()), file.getvalue(), b"\x89PNG", pixels):
        assert Picture(other).plain_jpeg_size() is None


@pytest.fixture
def folder(tmp_path, make_picture):
    """Photographs that the device decodes and others, one of them broken."""
    for n in range(9):
        options = {"exif": turned()} if n == 2 else {}
        data = jpeg(make_picture(60 + n, 80, seed=n)[..., 0 if n == 3 else slice(None)], **options)
        (tmp_path / f"{n}.jpg").write_bytes(data[:-200] if n == 5 else data)
    Image.fromarray(make_picture(70, 60)).save(tmp_path / "9.png")
    return tmp_path


@pytest.mark.parametrize("fails", [False, True])
def test_views_that_the_device_decodes_and_cuts_are_the_workers(folder, monkeypatch, caplog, fails):
    def no_decoder(*_: object) -> None:
        raise RuntimeError("nvjpegDecode failed: 5")

    monkeypatch.setattr(decoding_module, "AT_A_TIME", 3)
    if fails:
        monkeypatch.setattr(decoding_module, "decode_jpeg", no_decoder)
    data = ("DATASETS.TRAIN", (f"folder:{folder}",), "SOLVER.IMS_PER_BATCH", 10, "DATALOADER.NUM_WORKERS", 1)
    ours, theirs = (next(iter(ResumableLoader(tiny_config(*data, *how)))) for how in (ON_DEVICE, LOOKS_ON_DEVICE))
    with caplog.at_level(logging.WARNING):
        views = cut(ours["uncut"], "cpu")
    assert ("nvjpegDecode" in caplog.text) == fails
    assert len(ours["read_errors"]) == 1 and ours["read_errors"] == theirs["read_errors"]
    assert ours["num_fallbacks"] == theirs["num_fallbacks"]
    for name in ("anchor", "positive", "small"):
        assert name not in ours and views[name].stride() == theirs[name].stride()
        assert (views[name].int() - theirs[name].int()).abs().max() <= 1
        assert np.array_equal(ours[f"{name}_looks"], theirs[f"{name}_looks"])
    assert with_looks(ours, "cpu").keys() == with_looks(theirs, "cpu").keys()


def test_what_cannot_be_done_is_refused_in_one_line():
    assert "VIEWS.RESAMPLING antialias" in refusal(check_config, tiny_config("DATALOADER.DECODE_ON_DEVICE", True), 1)
    assert "needs a GPU" in refusal(check_hardware, tiny_config(*ON_DEVICE))
