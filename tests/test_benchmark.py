"""The benchmarks run, and what they compare with does the same thing."""

from __future__ import annotations

import json
import random

import cv2
import numpy as np
import pytest
import torch
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_config
from torch.utils.data import default_collate

from revisit.benchmarks.photographs import write_photographs
from revisit.benchmarks.reference_input import ReferenceViews, share_inside
from revisit.data.crops import overlap_share
from revisit.data.loader import ViewDataset, with_looks
from revisit.data.mapper import ViewMapper


def test_input_is_compared_with_torchvision(tmp_path):
    run(f"python tools/benchmark.py --repeats 1 --json {tmp_path}/out.json input --images 4", tmp_path)
    result = json.loads((tmp_path / "out.json").read_text())
    rates = {name: result[f"{name}_images_per_second"] for name in ("ours", "worker", "decoding", "reference")}
    assert min(rates.values()) > 0
    assert result["ratio"] == pytest.approx(rates["ours"] / rates["reference"])
    assert result["worker_ratio"] == pytest.approx(rates["worker"] / rates["reference"])
    assert rates["decoding"] > rates["ours"]  # decoding is a part of it


@pytest.mark.parametrize("on_device", [False, True])
def test_views_have_the_colours_of_the_references(tmp_path, on_device):
    """Mean histograms of each channel over 10,000 views of either, drawn independently."""
    cfg = tiny_config("DATALOADER.AUGMENT_ON_DEVICE", on_device)
    paths = write_photographs(tmp_path, 5, height=60, width=80)
    count = 10_000 // 6
    loader = ViewDataset([{"file_name": str(path)} for path in paths], ViewMapper.from_config(cfg))
    ours = with_looks(loader.__getitems__([(n, n % len(paths)) for n in range(count)]), "cpu")
    reference, mean, std = ReferenceViews(cfg), *(torch.tensor(v) for v in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    random.seed(0)
    torch.manual_seed(0)
    theirs = default_collate([reference(paths[n % len(paths)]) for n in range(count)])
    for name in ("anchor", "positive", "small"):
        pixels = theirs[name].flatten(0, -4).movedim(1, -1) * std + mean
        for channel in range(3):
            one = np.histogram(ours[name].flatten(0, -4)[:, channel], 16, (0, 256))[0]
            other = np.histogram(pixels[..., channel].numpy(), 16, (-0.5, 255.5))[0]
            distance = np.abs(one / one.sum() - other / other.sum()).sum() / 2
            assert distance < 0.02, (name, channel)


def test_the_reference_makes_the_views_of_the_recipe(tmp_path):
    cfg = tiny_config()
    (path,) = write_photographs(tmp_path, 1, height=60, width=80)
    views = ReferenceViews(cfg)(path)
    assert {name: tuple(value.shape) for name, value in views.items()} == {
        "anchor": (3, 32, 32),
        "positive": (3, 32, 32),
        "small": (4, 3, 16, 16),
    }
    assert all(value.dtype == torch.float32 and value.abs().max() < 4 for value in views.values())


boxes = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20))


@given(boxes, boxes)
def test_the_references_overlap_is_ours(box, anchor):
    def corners(box):
        top, left, height, width = box
        return np.array([left, top, left + width, top + height])

    assert share_inside(box, anchor) == pytest.approx(overlap_share(corners(box), corners(anchor)))


def test_made_up_photographs_look_like_photographs_to_a_decoder(tmp_path):
    """Their bytes, and so the time to decode them, are those of COCO's, about 155 KB for a slightly smaller image."""
    (path,) = write_photographs(tmp_path, 1)
    assert cv2.imread(str(path)).shape == (480, 640, 3)
    assert 80_000 < path.stat().st_size < 250_000
