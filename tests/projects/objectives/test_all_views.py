"""SimCLR, BYOL, SwAV (and DIET): losses against loops in float64, one process and two, what a step changes."""

import math
from collections import Counter

import pytest
import torch
from commands import launch_forks
from methods import assert_momentum_networks_follow, edit
from runs import assert_numbers_are_explained, assert_resumes, train
from tiny import FEATURE_DIM, freeze_batch_norm, random_views, step, tiny_config, tiny_model
from torch import Tensor
from torch.nn.functional import normalize
from trees import logged, refusal, refused
from true_steps import take_steps

from projects.Objectives.swav import sinkhorn
from projects.Reports.collapse import CollapseAlarm
from revisit.engine.setup import make_config
from revisit.modeling.losses.contrastive import info_nce

from detectron2.utils.events import EventStorage

NEIGHBORS = ("NEIGHBORS.WEIGHT", 0.4, "NEIGHBORS.QUEUE_SIZE", 20, "NEIGHBORS.NUM_NEIGHBORS", 3)
NEIGHBORS += ("NEIGHBORS.WARMUP_EPOCHS", 1)
METHODS = {
    "SimCLR": ("SIMCLR.EMBEDDING_DIM", 16, "SIMCLR.HIDDEN_DIM", 32),
    "BYOL": ("BYOL.EMBEDDING_DIM", 16, "BYOL.HIDDEN_DIM", 32),
    "SwAV": (
        *("SWAV.EMBEDDING_DIM", 16, "SWAV.HIDDEN_DIM", 32, "SWAV.PROTOTYPES", 12, "SWAV.QUEUE_SIZE", 16),
        *("SWAV.QUEUE_FROM_EPOCH", 1),
    ),
}
RUN = {**METHODS, "DIET": ()}  # with its losses tested in test_diet.py
BATCH, SMALL = 8, 2


def options_of(method: str, *options: object) -> tuple:
    shared = ("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", SMALL, "NEIGHBORS.WEIGHT", 0.0)
    return (*shared, *RUN[method], *options)


def model_of(method: str, *options: object) -> torch.nn.Module:
    return tiny_model(*options_of(method, *options)).train()


def rows(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def encoded_rows() -> tuple[list[Tensor], dict[str, Tensor]]:
    """Five images' embeddings in float64, with gradient, and all their unit rows."""
    embeddings = [2 * rows(5, 16, seed=0).requires_grad_(), 2 * rows(5, 1 + SMALL, 16, seed=1).requires_grad_()]
    anchors, positives = (normalize(each, dim=-1) for each in embeddings)
    before = {"anchors_g": rows(5, FEATURE_DIM, seed=3), "positives_g": rows(5, 3, FEATURE_DIM, seed=4)}
    targets = {"targets": rows(5, 2, 16, seed=8), "targets_g": rows(5, 2, FEATURE_DIM, seed=9)}  # BYOL's
    return embeddings, {"anchors": anchors, "positives": positives, **before, **targets}


def simclr_by_loops(encoded: dict, keys: Tensor, tau: float = 0.5) -> tuple[Tensor, Tensor]:
    a, losses, nearest = encoded["anchors"], [], []
    for j in range(1 + SMALL):
        p = encoded["positives"][:, j]
        for i in range(5):
            for query, partner in ((a[i], p[i]), (p[i], a[i])):
                others = sum((query @ z[n] / tau).exp() for z in (a, p) for n in range(5) if n != i)
                positive = (query @ partner / tau).exp()
                losses.append(-(positive / (positive + others)).log())
            for key in keys[i * 3 + j]:
                score = (p[i] @ key / tau).exp()
                nearest.append(-(score / (score + others)).log())  # others of p[i], the last query
    return sum(losses) / len(losses), sum(nearest) / len(nearest)


def byol_by_loops(encoded: dict, keys: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    forward = [(encoded["positives"][i, j] - targets[i, 0]).square().sum() for i in range(5) for j in range(3)]
    backward = [(encoded["anchors"][i] - targets[i, 1]).square().sum() for i in range(5)]
    nearest = [(encoded["positives"].flatten(0, 1)[n] - key).square().sum() for n in range(15) for key in keys[n]]
    return sum(forward) / 15 + sum(backward) / 5, sum(nearest) / len(nearest)


def sinkhorn_by_loops(scores: list[list[float]], epsilon: float = 0.05) -> list[list[float]]:
    q = [[math.exp(s / epsilon) for s in row] for row in scores]
    for _ in range(3):
        for k in range(len(q[0])):
            total = sum(row[k] for row in q)
            for row in q:
                row[k] /= total * len(q[0])
        for row in q:
            total = sum(row)
            row[:] = [value / total / len(q) for value in row]
    return [[value * len(q) for value in row] for row in q]


def swav_by_loops(encoded: dict, keys: Tensor, prototypes: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor]:
    views = [encoded["anchors"], *encoded["positives"].unbind(1)]
    losses, nearest = [], []
    for v in range(2):
        every = torch.cat([earlier[v], views[v].detach()])
        codes = sinkhorn_by_loops((every @ prototypes.detach().T).tolist())[-5:]
        for w in range(len(views)):
            for i in range(5):
                p = (views[w][i] @ prototypes.T / 0.1).exp()
                logs = (p / p.sum()).log()
                if w != v:
                    losses.append(-sum(codes[i][k] * logs[k] for k in range(12)))
                if v == 0 and w:
                    nearest += [-(key @ logs) for key in keys[i * 3 + w - 1]]
    return sum(losses) / len(losses), sum(nearest) / len(nearest)


@pytest.mark.parametrize("method", METHODS)
def test_losses_and_gradients_equal_loops_in_float64(method):
    model = freeze_batch_norm(model_of(method, *NEIGHBORS)).double()
    inputs, encoded = encoded_rows()
    keys = rows(15, 3, 12 if method == "SwAV" else 16, seed=5)
    extra: tuple = ()
    if method == "BYOL":
        extra = (encoded["targets"],)
    elif method == "SwAV":
        model.views.enqueue(anchors=rows(16, 16, seed=6), positives=rows(16, 16, seed=7))
        extra = (model.prototypes, [model.views.anchors, model.views.positives])
    with EventStorage(0):
        found = model.objective(encoded)
    inputs += [model.prototypes] if method == "SwAV" else []
    expected = {"SimCLR": simclr_by_loops, "BYOL": byol_by_loops, "SwAV": swav_by_loops}[method](encoded, keys, *extra)
    for loss, reference in zip((found.loss, found.neighbor_loss(keys)), expected, strict=True):
        assert loss.item() == pytest.approx(reference.item(), rel=1e-10)
        ours, theirs = (torch.autograd.grad(x, inputs, retain_graph=True, allow_unused=True) for x in (loss, reference))
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None and other is None) or torch.allclose(one, other if other is not None else one * 0)


@pytest.mark.parametrize("method", METHODS)
def test_forward_gives_gradient_to_all_that_learns_and_changes_nothing_which_the_hooks_do(method):
    options = options_of(method, *NEIGHBORS, "NEIGHBORS.WARMUP_EPOCHS", 0)
    model = tiny_model(*options).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    losses, storage = step(model, random_views(BATCH, num_small=SMALL) | {"label": torch.arange(BATCH)})
    assert set(losses) == {"loss_inst", "loss_nn"}
    assert losses["loss_nn"].item() == pytest.approx(0.4 * storage.history("loss_nn_raw").latest())
    for name, value in model.state_dict().items():
        assert "running" in name or "num_batches" in name or torch.equal(value, before[name]), name
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("momentum_"), name
        assert parameter.grad is None or parameter.grad.abs().sum() > 0 or name.endswith(".0.bias"), name  # before BN
    model.enqueue_pending_keys()
    assert model.queue.num_enqueued == BATCH and model.queue.labels[:9].tolist() == [*range(8), -1]


@pytest.mark.parametrize("method", METHODS)
def test_every_convolution_computes_as_autocast_says_and_losses_in_float32(method):
    model, computed = model_of(method, *NEIGHBORS, "NEIGHBORS.WARMUP_EPOCHS", 0), Counter()
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda module, inputs, output: computed.update([output.dtype]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, _ = step(model, random_views(BATCH, num_small=SMALL))
    assert set(computed) == {torch.bfloat16} and {loss.dtype for loss in losses.values()} == {torch.float32}


def run(method: str) -> dict:
    options = options_of(method, *NEIGHBORS, "DIET.NUM_IMAGES", 20)
    batches = [random_views(BATCH, num_small=SMALL, seed=n) | {"index": 2 * torch.arange(BATCH) + n} for n in range(4)]
    return take_steps(tiny_model(*options).double(), tiny_config(*options), batches, frozen_bn=False)


def run_all() -> dict[str, dict]:
    return {method: run(method) for method in RUN}


def test_two_processes_equal_one_batch_statistics_included():
    """L_nn joins in the second step, SwAV's queue counts from the third on, its prototypes learn from the second."""
    both = launch_forks(run_all, 2)
    for method, one in run_all().items():
        assert both[0][method]["losses"] == pytest.approx(one["losses"], rel=1e-9), method
        for a, b in zip(one["gradients"], both[0][method]["gradients"], strict=True):
            assert (a - b).norm() < 1e-7 * a.norm(), method
        for name in [name for name in one["model"] if name.startswith(("queue.", "views.", "prototypes"))]:
            assert torch.equal(both[0][method]["model"][name], both[1][method]["model"][name]), name
            assert torch.allclose(both[0][method]["model"][name], one["model"][name], atol=1e-7), name


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_prototypes_rest_for_their_epochs_whatever_the_optimiser_and_stay_unit_rows(optimizer):
    options = options_of("SwAV", "SWAV.FROZEN_EPOCHS", 2)
    model = tiny_model(*options).train()
    start, learner = model.prototypes.detach().clone(), optimizer(model.parameters(), 0.01, weight_decay=0.1)
    hook = model.hooks(tiny_config(*options), 1)[0]
    for iteration in range(3):
        hook.trainer = type("Trainer", (), {"model": model, "iter": iteration})
        hook.before_step()
        losses, _ = step(model, random_views(BATCH, num_small=SMALL, seed=iteration))
        learner.zero_grad()
        sum(losses.values()).backward()
        learner.step()
        hook.after_step()
        assert torch.equal(model.prototypes, start) == (iteration < 2)
        assert torch.allclose(model.prototypes.norm(dim=1), torch.ones(12))


def test_the_queue_of_swav_counts_once_it_is_full():
    options = options_of("SwAV", "SWAV.QUEUE_SIZE", 20, "SWAV.QUEUE_FROM_EPOCH", 0)
    model, counts = tiny_model(*options).train(), []
    hook = model.hooks(tiny_config(*options), 1)[0]
    for iteration in range(4):
        hook.trainer = type("Trainer", (), {"model": model, "iter": iteration})
        hook.before_step()
        counts.append((model.queue_counts, model.views.fill_level == 1))
        step(model, random_views(BATCH, num_small=SMALL))
        hook.after_step()
    assert counts == [(full, full) for full in (False, False, False, True)]


@pytest.mark.parametrize(
    ("key", "never"), [("FROZEN_EPOCHS", "prototypes never learn"), ("QUEUE_FROM_EPOCH", "its queue is never used")]
)
def test_what_swav_waits_for_has_to_come_before_the_end(key, never):
    cfg = tiny_config(*options_of("SwAV", f"SWAV.{key}", 2, "SOLVER.MAX_ITER", 10))
    method = type(tiny_model(*options_of("SwAV")))
    assert not [note for _, note in logged(method.warn, cfg, 4 * 8, 8) if key in note]
    (note,) = [note for _, note in logged(method.warn, cfg, 5 * 8, 8) if key in note]
    assert note.startswith(f"SWAV.{key} 2: 10 iterations") and never in note


def test_codes_are_finite_at_the_smallest_epsilon():
    scores = torch.full((64, 3000), -1.0)
    scores[:, -1] = 1.0  # as far apart as cosines can be
    assert sinkhorn(scores, 0.02, 3).isfinite().all()
    assert "at least 0.02" in refusal(make_config, "configs/toy/swav.yaml", ["SWAV.EPSILON", 0.01])


def test_the_momentum_of_byol_rises_to_1_by_a_cosine():
    options = options_of("BYOL", "BYOL.MOMENTUM", 0.9)
    model, seen = tiny_model(*options), []
    (hook,) = model.hooks(tiny_config(*options), 1)
    for iteration in (0, 5, 9):
        hook.trainer = type("Trainer", (), {"model": model, "iter": iteration, "max_iter": 10})
        hook.before_step()
        seen.append(model.momentum)
    assert seen == pytest.approx([0.9, 0.95, 1 - 0.1 * (math.cos(0.9 * math.pi) + 1) / 2])


@pytest.mark.parametrize("method", RUN)
def test_a_run_resumes_to_the_same_weights_and_explains_its_numbers(method, toy_datasets, tmp_path):
    options = (*options_of(method, *NEIGHBORS), "SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 6)
    train(tmp_path / "whole", *options)
    assert_resumes(tmp_path / "whole", tmp_path / "parts", 5, *options)  # the last iteration of an epoch follows
    assert_numbers_are_explained(tmp_path / "whole")


@pytest.mark.parametrize("predicts", [True, False])
def test_byol_collapses_without_its_predictor_alone_and_the_alarm_says_so(
    predicts, toy_datasets, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(CollapseAlarm, "WINDOW", 20)
    options = ("BYOL.MOMENTUM", 0.5, "BYOL.PREDICTOR", predicts, "VIEWS.NUM_SMALL", 0, "SOLVER.MAX_ITER", 70)
    options += ("SOLVER.BASE_LR", 0.5, "SOLVER.WEIGHT_DECAY", 0.02, "SOLVER.WEIGHT_DECAY_BIAS", 0.0)  # to be there soon
    train(tmp_path, *options_of("BYOL", *options))
    assert ("collapse: embedding_std" in caplog.text) != predicts


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("SimCLR", ("SOLVER.ACCUMULATION_STEPS", 2), "SOLVER.ACCUMULATION_STEPS 2: SimCLR learns from whole batches"),
        ("BYOL", (*NEIGHBORS, "NEIGHBORS.QUEUE_SIZE", 4), "NEIGHBORS.QUEUE_SIZE 4: expected at least the batch of 8"),
        ("SwAV", ("SWAV.QUEUE_SIZE", 4), "SWAV.QUEUE_SIZE 4: expected 0, or at least the batch of 8"),
        ("BYOL", ("SOLVER.IMS_PER_BATCH", 1), "SOLVER.IMS_PER_BATCH 1: BYOL needs other images, too; expected 2"),
    ],
)
def test_what_makes_no_sense_is_refused(method, options, message):
    cfg = tiny_config(*options_of(method, *options))
    refused(message, type(tiny_model(*options_of(method))).check, cfg, 8)


@pytest.mark.parametrize(("method", "encoder"), [("SimCLR", ""), ("BYOL", "momentum_")])
def test_the_queue_takes_keys_and_features_of_the_anchors(method, encoder):
    model = freeze_batch_norm(model_of(method, *NEIGHBORS))
    views = random_views(3, num_small=SMALL)
    step(model, views)
    model.enqueue_pending_keys()
    backbone, head = (getattr(model, f"{encoder}{part}") for part in ("backbone", "projection_head"))
    for n, anchor in enumerate(views["anchor"]):
        with torch.no_grad():
            g = model.pooled(backbone, anchor[None])
            expected = {"keys": normalize(head(g))[0], "features": normalize(g)[0]}
        for name, row in expected.items():
            torch.testing.assert_close(getattr(model.queue, name)[n], row, atol=1e-5, rtol=0)


def test_the_queue_of_swav_takes_the_codes_of_the_anchors():
    model = freeze_batch_norm(model_of("SwAV", *NEIGHBORS)).double()
    _, encoded = encoded_rows()
    with EventStorage(0):
        found = model.objective(encoded)
    every = torch.cat([model.views.anchors, encoded["anchors"].detach()])
    codes = sinkhorn_by_loops((every @ model.prototypes.detach().T).tolist())[-5:]
    assert torch.allclose(found.keys, torch.tensor(codes, dtype=torch.float64))
    assert torch.equal(found.keys_g, encoded["anchors_g"])


def test_the_momentum_networks_of_byol_follow_their_own():
    assert_momentum_networks_follow(tiny_model("MODEL.META_ARCHITECTURE", "BYOL"))


def test_an_edited_info_nce_changes_both_losses_of_simclr(monkeypatch):
    model, views = model_of("SimCLR", *NEIGHBORS, "NEIGHBORS.WARMUP_EPOCHS", 0), random_views(BATCH, num_small=SMALL)
    before, _ = step(model, views)
    edit(monkeypatch, info_nce, "return ", "return 10 * ")
    after, _ = step(model, views)
    for name, loss in after.items():
        assert loss.item() == pytest.approx(10 * before[name].item(), rel=1e-5), name


@pytest.mark.parametrize("enqueue_first", [True, False])
def test_neighbours_may_be_mined_among_keys_enqueued_first(enqueue_first):
    options = (*NEIGHBORS, "NEIGHBORS.ENQUEUE_FIRST", enqueue_first, "NEIGHBORS.WARMUP_EPOCHS", 0)
    model, views = freeze_batch_norm(model_of("SimCLR", *options)), random_views(BATCH, num_small=SMALL)
    losses, _ = step(model, views)
    ring = model.queue.features.clone()
    if enqueue_first:
        ring[:BATCH] = model.pending_keys[-1]["features"]
    with EventStorage(0), torch.no_grad():
        encoded = model.encode(views)
        nearest = (encoded["positives_g"].flatten(0, 1) @ ring.T).topk(3, dim=1).indices
        expected = 0.4 * model.objective(encoded).neighbor_loss(model.queue.keys[nearest])
    assert losses["loss_nn"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert ring.equal(model.queue.features) != enqueue_first  # so the two differ
