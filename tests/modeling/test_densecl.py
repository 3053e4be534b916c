"""DenseCL: its losses against loops in float64, what its step reads and leaves alone, and the programs that run it."""

import copy

import numpy as np
import pytest
import torch
from runs import assert_numbers_are_explained, load
from runs import train as train_run
from tiny import FEATURE_DIM, freeze_batch_norm, random_views, tiny_config, tiny_model
from torch.nn.functional import normalize

from revisit.engine.memory_estimate import build_meta_model, memory_per_process
from revisit.modeling.meta_arch.densecl import best_match, dense_loss
from revisit.viz.curves import read_metrics

from detectron2.utils.events import EventStorage

TAU = 0.2
OPTIONS = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0)
BIG = ("VIEWS.LARGE_SIZE", 96)  # 3 x 3 cells


def views_of(batch: int, seed: int = 0) -> dict:
    return random_views(batch, large=96, num_small=0, seed=seed)


def densecl(*options: object) -> torch.nn.Module:
    return tiny_model(*OPTIONS, *BIG, *options).train()


def step(model, views, iteration: int = 0) -> tuple[dict, EventStorage]:
    with EventStorage(iteration) as storage:
        return model(views), storage


def cross_entropy(query: np.ndarray, key: np.ndarray, queue: np.ndarray) -> float:
    """-log of the softmax of query . key over query . key and all query . queue[n], divided by tau."""
    positive = np.exp(query @ key / TAU)
    return float(-np.log(positive / (positive + sum(np.exp(query @ row / TAU) for row in queue))))


def dense_reference(cells, dense, key_cells, key_dense, queue) -> tuple[float, list]:
    """L_dense and each cell's match, of numpy arrays, one cell at a time."""
    values, matches = [], []
    for i in range(len(cells)):
        for s in range(cells.shape[1]):
            cosines = [
                cells[i, s] @ key / np.linalg.norm(cells[i, s]) / np.linalg.norm(key) for key in key_cells[i]
            ]  # fmt: skip
            matches.append(int(np.argmax(cosines)))
            values.append(cross_entropy(dense[i, s], key_dense[i, matches[-1]], queue))
    return float(np.mean(values)), matches


def problem(dtype: torch.dtype = torch.float64) -> dict:
    """Three images with 9 cells of the query, 7 of the key, and a queue of 37."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"cells": (3, 9, 24), "dense": (3, 9, 16), "key_cells": (3, 7, 24), "key_dense": (3, 7, 16)}
    shapes["queue"] = (37, 16)
    draws = {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: normalize(x, dim=-1).to(dtype) for name, x in draws.items()}


def test_dense_loss_and_correspondence_equal_a_direct_float64_evaluation():
    x = problem()
    expected, matches = dense_reference(*(value.numpy() for value in x.values()))
    assert dense_loss(**x, temperature=TAU).item() == pytest.approx(expected, rel=1e-12)
    assert best_match(x["cells"], x["key_cells"]).flatten().tolist() == matches
    assert len(set(matches)) > 3
    single = dense_loss(**problem(torch.float32), temperature=TAU)
    assert single.dtype == torch.float32 and single.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("max_scores", [1, 100, 500])
def test_in_chunks_of_the_queue_value_and_gradient_are_the_same(max_scores):
    results = []
    for limit in (0, max_scores):
        x = problem()
        x["dense"].requires_grad_()
        loss = dense_loss(**x, temperature=TAU, max_scores=limit)
        loss.backward()
        results.append((loss.item(), x["dense"].grad))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-12)
    assert torch.allclose(results[1][1], results[0][1], rtol=1e-9, atol=1e-12)


def test_autocast_changes_neither_match_nor_loss():
    x = problem(torch.float32)
    plain = dense_loss(**x, temperature=TAU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dense_loss(**x, temperature=TAU), plain)


@pytest.mark.parametrize(("grid", "weight"), [(0, 0.5), (2, 0.3)])
def test_forward_is_the_weighted_sum_of_both_losses_from_maps_to_loss(grid, weight):
    """From the backbones' maps on, everything but pooling and convolutions by numpy, in float64."""
    model = freeze_batch_norm(densecl("DENSECL.GRID", grid, "DENSECL.WEIGHT", weight))
    for parameter in model.momentum_backbone.parameters():
        parameter.mul_(1.1)  # so that mixing up the encoders shows
    views = views_of(4)
    losses, storage = step(model, views)

    inst, dense = [], []
    with torch.no_grad():
        maps = [
            encoder(model.normalized(views[name]))["res5"]
            for encoder, name in ((model.backbone, "positive"), (model.momentum_backbone, "anchor"))
        ]
        heads = ((model.projection_head, model.dense_head), (model.momentum_projection_head, model.momentum_dense_head))
        rows = [head(one.mean((2, 3))).double().numpy() for one, (head, _) in zip(maps, heads, strict=True)]
        if grid:
            maps = [torch.nn.functional.adaptive_avg_pool2d(one, grid) for one in maps]
        cells = [one.flatten(2).transpose(1, 2).double().numpy() for one in maps]
        seconds = [
            head(one).flatten(2).transpose(1, 2).double().numpy() for one, (_, head) in zip(maps, heads, strict=True)
        ]
    (p, a), (d, e) = ([x / np.linalg.norm(x, axis=-1, keepdims=True) for x in pair] for pair in (rows, seconds))
    inst = np.mean([cross_entropy(p[i], a[i], model.queue.keys.double().numpy()) for i in range(4)])
    dense, _ = dense_reference(cells[0], d, cells[1], e, model.queue.dense_keys.double().numpy())
    assert d.shape == (4, (grid or 3) ** 2, 16)

    assert set(losses) == {"loss_inst", "loss_dense"}
    assert losses["loss_inst"].item() == pytest.approx((1 - weight) * inst, rel=1e-5)
    assert losses["loss_dense"].item() == pytest.approx(weight * dense, rel=1e-5)
    assert storage.history("loss_inst_raw").latest() == pytest.approx(inst, rel=1e-5)
    assert storage.history("loss_dense_raw").latest() == pytest.approx(dense, rel=1e-5)

    pooled = seconds[1].mean(axis=1)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    assert np.allclose(model.pending_keys[0]["dense_keys"], pooled, atol=1e-6)


def test_raw_losses_are_read_on_watched_steps_alone():
    model = densecl("SOLVER.METRICS_PERIOD", 2)
    assert "loss_dense_raw" not in step(model, views_of(2), 0)[1].histories()
    assert "loss_dense_raw" in step(model, views_of(2), 1)[1].histories()


def test_gradient_reaches_the_encoder_and_its_heads_alone():
    model = densecl()
    losses, _ = step(model, views_of(4))
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("momentum_"), name
        assert parameter.grad is None or parameter.grad.abs().sum() > 0, name


def test_forward_touches_neither_queue_nor_momentum_encoder_and_the_hooks_do():
    model = densecl()
    before = copy.deepcopy(model.state_dict())
    views = views_of(8)
    views["label"] = torch.arange(8)
    step(model, views)
    for name, value in model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name]), name
    pending = model.pending_keys[0]
    assert set(pending) == {"keys", "dense_keys", "labels"}
    model.enqueue_pending_keys()
    assert torch.equal(model.queue.keys[:8], pending["keys"])
    assert torch.equal(model.queue.dense_keys[:8], pending["dense_keys"])
    assert model.queue.labels[:9].tolist() == [*range(8), -1] and model.pending_keys == []
    for ring in ("keys", "dense_keys"):
        assert torch.equal(getattr(model.queue, ring)[8:], before[f"queue.{ring}"][8:])
    for encoder in ("backbone", "projection_head", "dense_head"):
        for parameter in getattr(model, encoder).parameters():
            parameter.data.add_(1)
    model.update_momentum_encoder()
    for name, value in model.named_parameters():
        if name.startswith("momentum_"):
            assert torch.allclose(value, before[name] + 0.005, atol=1e-6), name


def test_shuffled_cells_come_back_in_order():
    model = freeze_batch_norm(densecl("MOCO.BN_SPLITS", 2))
    views = views_of(8)
    with EventStorage(3):
        shuffled = model.start_keys(views["anchor"])()
    model.shuffle_bn = False
    for name, rows in model.start_keys(views["anchor"])().items():
        assert torch.allclose(shuffled[name], rows, atol=1e-6), name


def test_memory_counts_the_cells():
    opts = (*BIG, "SOLVER.IMS_PER_BATCH", 480, "VIEWS.NUM_SMALL", 0)
    moco, dense = (tiny_config(*opts, "MODEL.META_ARCHITECTURE", name) for name in ("MoCo", "DenseCL"))
    models = [build_meta_model(cfg) for cfg in (moco, dense)]
    plan = [memory_per_process(cfg, model, 2) for cfg, model in zip((moco, dense), models, strict=True)]
    shapes = plan[1]["shapes"]
    assert (shapes["cells"], shapes["dense"]) == ([240, 9, FEATURE_DIM], [240, 9, 16])
    assert shapes["queue.dense_keys"] == [50, 16]
    less, more = (memory["memory_gib_per_process"] for memory in plan)
    assert more["cells"] == pytest.approx(2 * 240 * 9 * (FEATURE_DIM + 16) * 4 / 2**30, abs=1e-3)
    assert more["activations"] > less["activations"] and "cells" not in less


def test_a_run_explains_its_numbers(toy_datasets, tmp_path):
    train_run(tmp_path, *OPTIONS, "VIEWS.LARGE_SIZE", 64, "SOLVER.MAX_ITER", 2)
    assert_numbers_are_explained(tmp_path)
    last = {name: values[-1][1] for name, values in read_metrics(tmp_path / "metrics.json").items()}
    assert last["total_loss"] == pytest.approx(last["loss_inst"] + last["loss_dense"], rel=0.05)  # medians
    saved = load(tmp_path / "model_final.pth")["model"]
    assert saved["queue.num_enqueued"] == 16 and "momentum_dense_head.2.weight" in saved
