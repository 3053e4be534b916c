"""The benchmarks run, and what they compare with does the same."""

import json
import random
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, run
from hypothesis import given
from hypothesis import strategies as st
from tiny import random_views, tiny_config
from trees import refusal

from revisit.data.images.pixel_format import PHOTOGRAPHS
from revisit.data.loading.loader import ViewDataset, finish
from revisit.data.views.boxes import overlap_share
from revisit.data.views.mapper import training_mapper
from studies.benchmarks import check_gpu
from studies.benchmarks.input_pipeline import measure_input, write_photographs
from studies.benchmarks.references import ReferenceViews, TextbookStep, share_inside
from studies.benchmarks.training_speed import OwnStep, plain_loader, require_neighbors

BENCHMARK = "python studies/benchmarks/benchmark.py"
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
    peer = ("albumentations", "albumentations_area") if find_spec("albumentations") else ()
    for options in ("", "--height 600"):
        result = figures_of(f"input --images 4 {options}", tmp_path, "ours", "worker", "decoding", *peer, "reference")
        assert peer or "pip install --no-deps --target DIR albumentations==" in result["albumentations"]
    figures_of(f"end2end --images 8 {SMALL} DATALOADER.NUM_WORKERS 1", tmp_path, "ours", "plain")


def test_input_of_channels_is_compared_with_pngs(tmp_path):
    figures_of("channels --channels 5 --height 90 --images 3", tmp_path, "channels", "decoding", "png")


def test_images_that_the_reference_cannot_read_are_one_line(tmp_path):
    photo, broken = write_photographs(tmp_path, 2, height=60, width=80)
    broken.write_bytes(photo.read_bytes()[:500])
    measure = partial(measure_input, tiny_config(), files=f"folder:{tmp_path}", images=2, repeats=1)
    for said in (refusal(measure), refusal(ReferenceViews(tiny_config()), broken)):
        assert str(broken) in said
    cfg = tiny_config("DATASETS.TRAIN", (f"folder:{tmp_path}",))
    assert "SOLVER.IMS_PER_BATCH" in refusal(plain_loader, cfg)


@pytest.fixture(scope="module")
def reference_views(tmp_path_factory):
    """Photographs, and by plain torchvision and PIL the views of one after the other, 6,000 in all."""
    paths = write_photographs(tmp_path_factory.mktemp("photographs"), 5, height=60, width=80)
    random.seed(0)
    torch.manual_seed(0)
    return paths, ReferenceViews(tiny_config()).batch([paths[n % len(paths)] for n in range(1000)])


@pytest.mark.parametrize("on_device", [False, True])
def test_views_have_the_shapes_and_colours_of_the_references(reference_views, on_device):
    """Mean histograms of each channel over 6,000 views of either, drawn independently."""
    paths, theirs = reference_views
    cfg = tiny_config("DATALOADER.AUGMENT_ON_DEVICE", on_device)
    loader = ViewDataset([{"file_name": str(path)} for path in paths], training_mapper(cfg), PHOTOGRAPHS)
    ours = finish(loader.__getitems__([(n, n % len(paths)) for n in range(len(theirs["anchor"]))]), "cpu")
    mean, std = (torch.tensor(values) for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    for name in ("anchor", "positive", "small"):
        assert theirs[name].shape == ours[name].shape and theirs[name].dtype == torch.float32
        pixels = (theirs[name].flatten(0, -4).movedim(1, -1) * std + mean).round().to(torch.uint8)
        for channel in range(3):
            one, other = (
                np.bincount(values.flatten() // 16, minlength=16)
                for values in (ours[name].flatten(0, -4)[:, channel], pixels[..., channel])
            )
            distance = np.abs(one / one.sum() - other / other.sum()).sum() / 2
            assert distance < 0.025, (name, channel)


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


@pytest.mark.parametrize(("key", "value"), [("MODEL.META_ARCHITECTURE", "MoCo"), ("SOLVER.PRECISION", "auto")])
def test_a_recipe_without_neighbours_or_of_an_open_precision_has_no_textbook_step(key, value):
    assert key in refusal(require_neighbors, tiny_config(key, value))


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


def test_the_list_for_a_gpu_names_what_is_there_and_an_item_is_judged_by_what_it_says(tmp_path):
    items = check_gpu.items(tmp_path)
    assert len({item.title for item in items}) == len(items)
    for item in items:
        assert all((ROOT / word).is_file() for word in item.words if word.endswith((".py", ".yaml"))), item
    by_title = {item.title: item for item in items}
    assert {"architectures", "precisions", "objects"} <= set(by_title)
    for title, name, good, bad in (("step in float32", "ratio", 2, 0.5), ("head", "memory_ratio", 0.5, 2)):
        assert [by_title[title].holds([f"{name}: {value}"]) for value in (good, bad)] == [True, False]
    by_knn = by_title["toy recipe"][3:5]
    says = check_gpu.Item("says", ["-c", "print('knn_top1 from 10.0 to 9.0')"], "more", *by_knn, gpus=0)
    assert check_gpu.run(says, tmp_path / "log")[1:] == ("10.0 to 9.0", False)
    fails = check_gpu.Item("fails", ["-c", "raise SystemExit(3)"], "ends well", ".*", gpus=0)
    assert check_gpu.run(fails, tmp_path / "log")[1:] == (f"exit code 3: {tmp_path / 'log'}", False)
    assert check_gpu.run(fails._replace(gpus=99), tmp_path / "log") == (0.0, "needs 99 GPUs", None)
