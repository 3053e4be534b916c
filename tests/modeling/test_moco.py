"""One training step of the meta-architectures: what forward reads, what it returns, what it must not touch."""

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from methods import assert_shuffled_keys_come_back_in_order
from tiny import (
    freeze_batch_norm,
    loss_inputs,
    random_views,
    step,
    tiny_config,
    tiny_model,
)
from torch.nn.functional import normalize
from trees import logged

from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.meta_arch.moco import MoCo
from revisit.modeling.meta_arch.pretraining import unit_rows
from revisit.modeling.momentum import update_momentum_encoder
from revisit.modeling.monitors import contrast_accuracy, feature_std
from revisit.modeling.neighbors import NeighborLossSchedule
from revisit.modeling.queue_size import default_queue_size

from detectron2.utils.events import EventStorage


@pytest.fixture
def model():
    return tiny_model("MODEL.META_ARCHITECTURE", "KNNMoCo").train()


@pytest.mark.parametrize(("method", "num_small"), [("KNNMoCo", 4), ("DenseCL", 0)])
def test_forward_gives_gradient_to_the_encoder_alone_and_changes_nothing_which_the_hooks_do(method, num_small):
    model = tiny_model("MODEL.META_ARCHITECTURE", method, "VIEWS.NUM_SMALL", num_small).train()
    before = copy.deepcopy(model.state_dict())
    views = random_views(8, large=64, num_small=num_small) | {"label": torch.arange(8)}
    losses, _ = step(model, views)
    for name, value in model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name]), name
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("momentum_"), name
        assert parameter.grad is None or parameter.grad.abs().sum() > 0, name

    pending = model.pending_keys[0]
    assert set(pending) == {*model.queue.names, "labels"} and len(model.queue.names) == 2
    model.enqueue_pending_keys()
    for ring in model.queue.names:
        rows = getattr(model.queue, ring)
        assert torch.equal(rows[:8], pending[ring]) and torch.equal(rows[8:], before[f"queue.{ring}"][8:])
    assert model.queue.labels[:9].tolist() == [*range(8), -1]
    assert model.pending_keys == [] and model.queue.num_enqueued == 8
    for name, parameter in model.named_parameters():
        parameter.data.add_(0 if name.startswith("momentum_") else 1)
    update_momentum_encoder(model)
    for name, value in model.named_parameters():
        if name.startswith("momentum_"):
            assert torch.allclose(value, before[name] + 0.005, atol=1e-6), name


@pytest.mark.parametrize("mining", ["before_head", "after_head"])
@pytest.mark.parametrize("enqueue_first", [False, True])
def test_loss_is_l_inst_plus_lambda_l_nn_of_the_encoded_views(mining, enqueue_first):
    """Scored on the queue as it was before the step; with ENQUEUE_FIRST mined in the queue as it will be after it."""
    options = ("NEIGHBORS.MINING", mining, "NEIGHBORS.ENQUEUE_FIRST", enqueue_first)
    model = freeze_batch_norm(tiny_model(*options).train())
    views, old = random_views(8), model.queue.keys.clone()
    losses, storage = step(model, views)
    sum(losses.values()).backward()
    encoded, keys = model.encode_positives(views), model.start_keys(views["anchor"])()
    p, p_g = encoded.positives, encoded.positives_g
    assert all(torch.equal(model.pending_keys[0][name], rows) for name, rows in keys.items())
    if enqueue_first:
        model.enqueue_pending_keys()
    mined = (p_g, model.queue.features) if mining == "before_head" else (p, model.queue.keys)
    expected = contrastive_losses(p, keys["keys"], old, *mined, temperature=0.2, num_neighbors=5)
    assert losses["loss_inst"].item() == pytest.approx(expected["loss_inst"].item(), rel=1e-6)
    assert losses["loss_nn"].item() == pytest.approx(0.4 * expected["loss_nn"].item(), rel=1e-6)
    assert storage.history("loss_nn_raw").latest() == pytest.approx(expected["loss_nn"].item(), rel=1e-6)


def test_the_large_positive_comes_first_and_the_small_ones_in_their_order(model):
    """The monitors read place 0 as the large one."""
    freeze_batch_norm(model)
    views = random_views(3)
    with torch.no_grad():
        encoded = model.encode_positives(views)
        for place, images in enumerate([views["positive"], *views["small"].unbind(1)]):
            g = model.pooled(model.backbone, images)
            assert torch.allclose(encoded.positives_g[:, place], normalize(g), atol=1e-5)
            assert torch.allclose(encoded.positives[:, place], normalize(model.projection_head(g)), atol=1e-5)


def test_moco_has_one_queue_and_one_loss_as_has_knn_moco_while_l_nn_waits(model):
    moco = tiny_model("MODEL.META_ARCHITECTURE", "MoCo").train()
    assert moco.queue.names == ("keys",)
    model.neighbor_weight = 0.0
    assert set(step(moco, random_views(8))[0]) == set(step(model, random_views(8))[0]) == {"loss_inst"}


DENSE = ("MODEL.META_ARCHITECTURE", "DenseCL", "VIEWS.NUM_SMALL", 0, "VIEWS.LARGE_SIZE", 64)


def test_keys_of_shuffled_anchors_come_back_in_order():
    assert_shuffled_keys_come_back_in_order(tiny_model(*DENSE, "MOCO.BN_GROUP", 4), random_views(8, large=64))


def test_evaluation_returns_unit_features_of_g(model):
    model.eval()
    images = random_views(3)["anchor"]
    mean, std = (torch.tensor(v)[:, None, None] for v in ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]))
    with torch.no_grad():
        features = torch.stack([out["feature"] for out in model([{"image": image} for image in images])])
        g = model.backbone((images - mean) / std)["res5"].mean((2, 3))
    assert torch.allclose(features, g / g.norm(dim=1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "images", "advice"),
    [(65536, 118287, None), (99, 100, None), (1024, 200, "5.1 times the 200 images.*about 96"), (10, 10, "about 8")],
)
def test_a_queue_of_more_than_an_epoch_is_warned_of(size, images, advice):
    notes = logged(MoCo.warn, tiny_config("MOCO.QUEUE_SIZE", size), images, 8)
    warnings = "; ".join(text for _, text in notes)
    assert re.search(advice, warnings) if advice else "MOCO.QUEUE_SIZE" not in warnings


def test_contrast_accuracy_counts_the_rows_that_are_closer_than_the_own_anchor():
    queue = torch.eye(8)
    anchors = torch.zeros(3, 8)
    anchors[:, 7] = 1
    positives = torch.zeros(3, 8)
    positives[0, 7] = 1  # nobody closer
    positives[1, :4], positives[1, 7] = 0.5, 0.4  # four rows closer: it is the fifth
    positives[2, :5], positives[2, 7] = 0.4, 0.1  # five rows closer
    top1, top5 = contrast_accuracy(positives, anchors, queue[:7])
    assert (top1.item(), top5.item()) == pytest.approx((100 / 3, 200 / 3))


@pytest.mark.parametrize("max_scores", [1, 13, 10**6])
def test_contrast_accuracy_is_the_same_in_chunks(max_scores):
    x = loss_inputs(3, batch=30, queue_size=50, dtype=torch.float32)
    positives = normalize(x["anchors"] + 2 * x["positives"][:, 0], dim=1)
    whole = contrast_accuracy(positives, x["anchors"], x["queue"])
    assert contrast_accuracy(positives, x["anchors"], x["queue"], max_scores) == whole
    assert 0 < whole[0] < 100


@given(st.integers(1, 40), st.integers(2, 16), st.integers(0, 99))
def test_feature_std_is_the_channels_deviation_times_the_root_of_their_number(rows, channels, seed):
    """So it is 0 when all images look alike, and 1 when they cancel."""
    draws = torch.randn(rows, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = normalize(draws, dim=1)
    expected = (x.var(dim=0, unbiased=False).mean() * channels).sqrt()
    assert feature_std(x).item() == pytest.approx(expected.item(), abs=1e-5)  # the square root of a small difference
    assert feature_std(x[:1].expand(10, -1)).item() == pytest.approx(0, abs=1e-6)
    assert feature_std(torch.cat([x, -x])).item() == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unit_rows_of_sixteen_bits_are_those_of_their_values_to_float32(dtype):
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = unit_rows(x)
    assert rows.dtype == torch.float32
    expected = x.double() / x.double().square().sum(dim=1, keepdim=True).sqrt()
    assert (rows.double() - expected).abs().max() < 1e-6


def scalars_of(model: torch.nn.Module, views: dict) -> dict[str, float]:
    return {name: value for name, (value, _) in step(model, views)[1].latest().items()}


def test_a_run_logs_the_monitors_and_purity_only_where_there_are_classes():
    model, views = tiny_model().train(), random_views(8)
    names = {"contrast_top1", "contrast_top5", "feature_std", "embedding_std", "queue_fill", "encoder_momentum"}
    without = scalars_of(model, views)
    assert names <= set(without) and "neighbor_purity" not in without
    assert without["queue_fill"] == 0 and without["encoder_momentum"] == 0.995
    model.enqueue_pending_keys()
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    with_classes = scalars_of(model, {**views, "label": labels})
    assert with_classes["queue_fill"] == pytest.approx(16)
    assert with_classes["neighbor_purity"] == 0  # the queue's keys had no classes
    model.enqueue_pending_keys()
    assert model.queue.labels[8:16].tolist() == labels.tolist()
    assert scalars_of(model, {**views, "label": torch.zeros(8, dtype=torch.int64)})["neighbor_purity"] > 0


@pytest.mark.parametrize("mining", ["before_head", "after_head"])
def test_purity_looks_at_the_neighbours_that_the_loss_would_mine(mining):
    model = tiny_model("NEIGHBORS.MINING", mining, "NEIGHBORS.NUM_NEIGHBORS", 1).train()
    views = random_views(8)
    with torch.no_grad():
        encoded = model.encode_positives(views)
    # Row n is the nearest of positive n in the space that is mined, and of positive 7 - n in the other.
    near_h, near_g = encoded.positives[:, 0], encoded.positives_g[:, 0]
    if mining == "before_head":
        model.queue.enqueue(keys=near_h.flip(0), features=near_g, labels=torch.arange(8))
    else:
        model.queue.enqueue(keys=near_h, labels=torch.arange(8))
    assert scalars_of(model, {**views, "label": torch.arange(8)})["neighbor_purity"] == 100
    model.pending_keys.clear()
    assert scalars_of(model, {**views, "label": torch.arange(8) % 6})["neighbor_purity"] == 75


def test_a_step_in_parts_logs_its_monitors_once_and_no_spread_of_a_single_image():
    model, views = freeze_batch_norm(tiny_model().train()), random_views(3)
    with EventStorage(0) as storage:
        for n in range(3):
            model({name: value[n : n + 1] for name, value in views.items()})
        assert len(storage.history("contrast_top1").values()) == 1
        assert "feature_std" not in storage.histories()


def test_neighbours_join_after_their_warm_up():
    schedule, weights = NeighborLossSchedule(0.4, warmup_iterations=3), []
    schedule.trainer = SimpleNamespace(model=SimpleNamespace())
    for schedule.trainer.iter in range(5):
        schedule.before_step()
        weights.append(schedule.trainer.model.neighbor_weight)
    assert weights == [0, 0, 0, 0.4, 0.4]


@pytest.mark.parametrize(("enqueue_first", "waits"), [(False, 10), (True, 0)])
def test_neighbours_of_keys_enqueued_first_join_at_once(enqueue_first, waits):
    options = ("NEIGHBORS.ENQUEUE_FIRST", enqueue_first, "NEIGHBORS.WARMUP_EPOCHS", 2)
    model = tiny_model(*options)
    *_, schedule = model.hooks(tiny_config(*options), iterations_per_epoch=5)
    weights = []
    for iteration in (0, 9, 10):
        schedule.trainer = SimpleNamespace(model=model, iter=iteration)
        schedule.before_step()
        weights.append(model.neighbor_weight)
    assert weights == [0.4 if iteration >= waits else 0 for iteration in (0, 9, 10)]


@pytest.mark.parametrize(("images", "rows"), [(5, 8), (100, 48), (10**6, 65536)])
def test_the_default_queue_holds_half_the_images_in_batches(images, rows):
    assert default_queue_size(tiny_config(), images) == rows
