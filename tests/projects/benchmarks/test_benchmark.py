"""The benchmarks run, and what they compare with does the same thing."""

import json
import random
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from commands import one_line_error, run
from hypothesis import given
from hypothesis import strategies as st
from tiny import random_views, tiny_config

from projects.Benchmarks.input_pipeline import write_photographs
from projects.Benchmarks.references import ReferenceViews, TextbookStep, share_inside
from projects.Benchmarks.training_speed import OwnStep
from revisit.data.crops import overlap_share
from revisit.data.loader import ViewDataset, with_looks
from revisit.data.mapper import ViewMapper

BENCHMARK = "python projects/Benchmarks/benchmark.py"
TOY = "--config-file configs/toy/pretrain.yaml"
SMALL = f"{TOY} --steps 1 SOLVER.IMS_PER_BATCH 4 VIEWS.LARGE_SIZE 32 VIEWS.SMALL_SIZE 24"


def figures_of(part: str, folder: Path, *forms: str) -> dict:
    """What a benchmark of one repeat writes to its --json FILE: ratios of the ``forms`` to the last, the reference."""
    run(f"{BENCHMARK} --repeats 1 --json {folder}/out.json {part}", folder)
    result = json.loads((folder / "out.json").read_text())
    ours, *others, reference = (result[f"{form}_images_per_second"] for form in forms)
    for name, rate in zip(("", *(f"{form}_" for form in forms[1:-1])), (ours, *others), strict=True):
        assert result[f"{name}ratio"] == pytest.approx(rate / reference) and rate > 0
    return result


def test_input_and_training_from_files_are_compared(tmp_path):
    figures_of("input --images 4", tmp_path, "ours", "worker", "decoding", "reference")
    figures_of(f"end2end --images 8 {SMALL} DATALOADER.NUM_WORKERS 1", tmp_path, "ours", "plain")


@pytest.mark.parametrize("on_device", [False, True])
def test_views_have_the_shapes_and_colours_of_the_references(tmp_path, on_device):
    """Mean histograms of each channel over 10,000 views of either, drawn independently."""
    cfg = tiny_config("DATALOADER.AUGMENT_ON_DEVICE", on_device)
    paths = write_photographs(tmp_path, 5, height=60, width=80)
    count = 10_000 // 6
    loader = ViewDataset([{"file_name": str(path)} for path in paths], ViewMapper.from_config(cfg))
    ours = with_looks(loader.__getitems__([(n, n % len(paths)) for n in range(count)]), "cpu")
    reference, mean, std = ReferenceViews(cfg), *(torch.tensor(v) for v in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    random.seed(0)
    torch.manual_seed(0)
    theirs = reference.batch([paths[n % len(paths)] for n in range(count)])
    for name in ("anchor", "positive", "small"):
        assert theirs[name].shape == ours[name].shape and theirs[name].dtype == torch.float32
        pixels = theirs[name].flatten(0, -4).movedim(1, -1) * std + mean
        for channel in range(3):
            one = np.histogram(ours[name].flatten(0, -4)[:, channel], 16, (0, 256))[0]
            other = np.histogram(pixels[..., channel].numpy(), 16, (-0.5, 255.5))[0]
            distance = np.abs(one / one.sum() - other / other.sum()).sum() / 2
            assert distance < 0.02, (name, channel)


def test_the_head_is_compared_in_time_and_memory(tmp_path):
    sizes = "--batch 16 --feature-dim 64 MOCO.QUEUE_SIZE 65536 VIEWS.NUM_SMALL 1 MOCO.MAX_SCORES 65536"
    result = figures_of(f"head {sizes}", tmp_path, "ours", "half_queue", "textbook")
    assert result["textbook_peak_mb"] > 2 * 4 * 16 * 2 * 65536 / 1e6  # two matrices of all scores at least
    assert result["memory_ratio"] == pytest.approx(result["ours_peak_mb"] / result["textbook_peak_mb"])
    assert result["memory_ratio"] < 0.5
    assert result["loss_difference"] < 1e-5 and result["gradient_difference"] < 1e-4
    assert result["half_queue_loss_difference"] < 0.01


def test_the_step_is_compared_and_taken_apart(tmp_path):
    result = figures_of(f"step {SMALL} SOLVER.AMP.ENABLED True", tmp_path, "ours", "textbook")
    shares = [value for name, value in result.items() if name.startswith("percent: ")]
    assert len(shares) == 8 and sum(shares) == pytest.approx(100) and min(shares) >= 0


def test_a_recipe_without_neighbours_has_no_textbook_step(tmp_path):
    assert "expected KNNMoCo" in one_line_error(f"{BENCHMARK} step {TOY} MODEL.META_ARCHITECTURE MoCo", tmp_path)


def test_the_textbooks_step_is_the_projects():
    """The same weights, queues and views: the same losses and, two steps later, the same encoders and queues."""
    cfg = tiny_config("SOLVER.MAX_ITER", 10)
    batches = [random_views(8, seed=n) for n in range(2)]
    ours, textbook = OwnStep(cfg), TextbookStep(cfg)
    model, theirs, momentum = ours.model, textbook.encoder, textbook.momentum_encoder
    trained = [(theirs.backbone, model.backbone), (theirs.head, model.projection_head)]
    averaged = [(momentum.backbone, model.momentum_backbone), (momentum.head, model.momentum_projection_head)]
    for mine, other in trained + averaged:
        mine.load_state_dict(other.state_dict())
    textbook.queue.copy_(model.queue.keys)
    textbook.queue_g.copy_(model.queue.features)
    for batch in batches:
        ours(batch)
        loss = textbook({name: (views - model.pixel_mean) / model.pixel_std for name, views in batch.items()})
        assert loss == pytest.approx(ours.last_loss, rel=1e-5)
    for mine, other in trained:
        for one, another in zip(mine.parameters(), other.parameters(), strict=True):
            assert (one - another).norm() <= 1e-4 * another.norm() + 1e-6
    assert torch.allclose(textbook.queue, model.queue.keys, atol=1e-4)
    assert torch.allclose(textbook.queue_g, model.queue.features, atol=1e-4)


boxes = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20))


@given(boxes, boxes)
def test_the_references_overlap_is_ours(box, anchor):
    corners = [np.array([left, top, left + width, top + height]) for top, left, height, width in (box, anchor)]
    assert share_inside(box, anchor) == pytest.approx(overlap_share(*corners))


def test_made_up_photographs_look_like_photographs_to_a_decoder(tmp_path):
    """Their bytes, and so the time to decode them, are those of COCO's, about 155 KB for a slightly smaller image."""
    (path,) = write_photographs(tmp_path, 1)
    assert cv2.imread(str(path)).shape == (480, 640, 3)
    assert 80_000 < path.stat().st_size < 250_000
