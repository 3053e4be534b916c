import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import freeze_batch_norm, loss_inputs, random_views, step, tiny_model
from torch.nn.functional import normalize

from revisit.modeling.monitors import contrast_accuracy, feature_std, neighbor_purity

from detectron2.utils.events import EventStorage


def test_contrast_accuracy_counts_the_rows_that_are_closer_than_the_own_anchor():
    queue = torch.eye(8)
    anchors = torch.zeros(3, 8)
    anchors[:, 7] = 1
    positives = torch.zeros(3, 8)
    positives[0, 7] = 1  # nobody closer
    positives[1, :3], positives[1, 7] = 0.5, 0.4  # three rows closer
    positives[2, :6], positives[2, 7] = 0.4, 0.1  # six rows closer
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


def test_neighbor_purity_counts_shared_classes_and_never_the_random_start():
    queue_labels = torch.tensor([0, 0, 1, 2, -1])
    neighbors = torch.tensor([[0, 1, 2], [3, 4, 0]])
    assert neighbor_purity(neighbors, torch.tensor([0, 2]), queue_labels).item() == pytest.approx(100 * 3 / 6)


def logged(model: torch.nn.Module, views: dict) -> dict[str, float]:
    return {name: value for name, (value, _) in step(model, views)[1].latest().items()}


def test_a_run_logs_the_monitors_and_purity_only_where_there_are_classes():
    model, views = tiny_model().train(), random_views(8)
    names = {"contrast_top1", "contrast_top5", "feature_std", "embedding_std", "queue_fill", "encoder_momentum"}
    without = logged(model, views)
    assert names <= set(without) and "neighbor_purity" not in without
    assert without["queue_fill"] == 0 and without["encoder_momentum"] == 0.995
    model.enqueue_pending_keys()
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    with_classes = logged(model, {**views, "label": labels})
    assert with_classes["queue_fill"] == pytest.approx(16)
    assert with_classes["neighbor_purity"] == 0  # the queue's keys had no classes
    model.enqueue_pending_keys()
    assert model.queue.labels[8:16].tolist() == labels.tolist()
    assert logged(model, {**views, "label": torch.zeros(8, dtype=torch.int64)})["neighbor_purity"] > 0


@pytest.mark.parametrize("mining", ["before_head", "after_head"])
def test_purity_looks_at_the_neighbours_that_the_loss_would_mine(mining):
    model = tiny_model("KNN_MOCO.MINING", mining, "KNN_MOCO.NUM_NEIGHBORS", 1).train()
    views = random_views(8)
    with torch.no_grad():
        encoded = model.encode_positives(views)
    # Row n is the nearest of positive n in the space that is mined, and of positive 7 - n in the other.
    near_h, near_g = encoded.positives[:, 0], encoded.positives_g[:, 0]
    if mining == "before_head":
        model.queue.enqueue(keys=near_h.flip(0), features=near_g, labels=torch.arange(8))
    else:
        model.queue.enqueue(keys=near_h, labels=torch.arange(8))
    assert logged(model, {**views, "label": torch.arange(8)})["neighbor_purity"] == 100


def test_a_step_in_parts_logs_its_monitors_once_and_no_spread_of_a_single_image():
    model, views = freeze_batch_norm(tiny_model().train()), random_views(3)
    with EventStorage(0) as storage:
        for n in range(3):
            model({name: value[n : n + 1] for name, value in views.items()})
        assert len(storage.history("contrast_top1").values()) == 1
        assert "feature_std" not in storage.histories()
