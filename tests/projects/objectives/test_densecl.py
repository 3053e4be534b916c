"""DenseCL: its losses against loops in float64, what its step reads, and the programs that run it."""

import numpy as np
import pytest
import torch
from runs import assert_numbers_are_explained, load
from runs import train as train_run
from tiny import direct_losses, freeze_batch_norm, random_views, step, tiny_model
from torch.nn.functional import normalize

from projects.Objectives.densecl import best_match, dense_loss
from revisit.checkpoint.metrics_file import read_metrics

OPTIONS = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0)
BIG = ("VIEWS.LARGE_SIZE", 96)  # 3 x 3 cells


def views_of(batch: int) -> dict:
    return random_views(batch, large=96, num_small=0)


def densecl(*options: object) -> torch.nn.Module:
    return tiny_model(*OPTIONS, *BIG, *options).train()


def dense_reference(cells, dense, key_cells, key_dense, queue) -> tuple[float, list]:
    """L_dense and each cell's match, of numpy arrays, one cell at a time."""
    matches = []
    for i, s in np.ndindex(cells.shape[:2]):
        cosines = [cells[i, s] @ key / np.linalg.norm(cells[i, s]) / np.linalg.norm(key) for key in key_cells[i]]
        matches.append(int(np.argmax(cosines)))
    anchors = [key_dense[n // cells.shape[1], match] for n, match in enumerate(matches)]
    return direct_losses(dense.reshape(len(anchors), 1, -1), anchors, queue)[0], matches


def test_dense_loss_and_correspondence_equal_a_direct_float64_evaluation_even_under_autocast():
    """Three images with 9 cells of the query, 7 of the key, and a queue of 37."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"cells": (3, 9, 24), "dense": (3, 9, 16), "key_cells": (3, 7, 24), "key_dense": (3, 7, 16)}
    shapes["queue"] = (37, 16)
    x = {n: normalize(torch.randn(*s, generator=generator, dtype=torch.float64), dim=-1) for n, s in shapes.items()}
    expected, matches = dense_reference(*(value.numpy() for value in x.values()))
    assert dense_loss(**x, temperature=0.2).item() == pytest.approx(expected, rel=1e-12)
    assert best_match(x["cells"], x["key_cells"]).flatten().tolist() == matches
    assert len(set(matches)) > 3
    single = {name: value.float() for name, value in x.items()}
    plain = dense_loss(**single, temperature=0.2)
    assert plain.dtype == torch.float32 and plain.item() == pytest.approx(expected, rel=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dense_loss(**single, temperature=0.2), plain)


@pytest.mark.parametrize(("grid", "weight"), [(0, 0.5), (2, 0.3)])
def test_forward_is_the_weighted_sum_of_both_losses_from_maps_to_loss(grid, weight):
    """From the backbones' maps on, everything but pooling and convolutions by numpy, in float64."""
    model = freeze_batch_norm(densecl("DENSECL.GRID", grid, "DENSECL.WEIGHT", weight))
    for parameter in model.momentum_backbone.parameters():
        parameter.mul_(1.1)  # so that mixing up the encoders shows
    views = views_of(4)
    losses, storage = step(model, views)

    rows, cells, dense = [], [], []
    for view, prefix in (("positive", ""), ("anchor", "momentum_")):
        encoder, head, dense_head = (
            getattr(model, f"{prefix}{name}") for name in ("backbone", "projection_head", "dense_head")
        )
        with torch.no_grad():
            maps = model.feature_map(encoder, views[view])
            rows.append(head(maps.mean((2, 3))))
            maps = torch.nn.functional.adaptive_avg_pool2d(maps, grid) if grid else maps
            cells.append(maps.flatten(2).transpose(1, 2).double().numpy())
            dense.append(dense_head(maps).flatten(2).transpose(1, 2))
    (p, a), (d, e) = ([x.double().numpy() for x in pair] for pair in (rows, dense))
    p, a, d, e = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (p, a, d, e))
    inst, _ = direct_losses(p[:, None], a, model.queue.keys.double().numpy())
    local, _ = dense_reference(cells[0], d, cells[1], e, model.queue.dense_keys.double().numpy())
    assert d.shape == (4, (grid or 3) ** 2, 16)

    assert set(losses) == {"loss_inst", "loss_dense"}
    assert losses["loss_inst"].item() == pytest.approx((1 - weight) * inst, rel=1e-5)
    assert losses["loss_dense"].item() == pytest.approx(weight * local, rel=1e-5)
    assert storage.history("loss_inst_raw").latest() == pytest.approx(inst, rel=1e-5)
    assert storage.history("loss_dense_raw").latest() == pytest.approx(local, rel=1e-5)
    pooled = normalize(dense[1].mean(dim=1), dim=1)
    assert torch.allclose(model.pending_keys[0]["dense_keys"], pooled, atol=1e-6)


def test_raw_losses_are_read_on_watched_steps_alone():
    model = densecl("SOLVER.METRICS_PERIOD", 2)
    assert "loss_dense_raw" not in step(model, views_of(2), 0)[1].histories()
    assert "loss_dense_raw" in step(model, views_of(2), 1)[1].histories()


def test_a_run_explains_its_numbers(toy_datasets, tmp_path):
    train_run(tmp_path, *OPTIONS, "VIEWS.LARGE_SIZE", 64, "SOLVER.MAX_ITER", 2)
    assert_numbers_are_explained(tmp_path)
    last = {name: values[-1][1] for name, values in read_metrics(tmp_path / "metrics.json").items()}
    assert last["total_loss"] == pytest.approx(last["loss_inst"] + last["loss_dense"], rel=0.05)  # medians
    saved = load(tmp_path / "model_final.pth")["model"]
    assert saved["queue.num_enqueued"] == 16 and "momentum_dense_head.2.weight" in saved
