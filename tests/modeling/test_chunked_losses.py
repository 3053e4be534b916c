"""The losses that go through the queue in chunks are those of the whole matrix, in value and gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import loss_inputs
from torch.nn.functional import normalize

from revisit.modeling.losses.chunked import chunked_losses
from revisit.modeling.losses.contrastive import contrastive_losses
from revisit.modeling.losses.similarity import nearest_rows
from revisit.modeling.monitors import contrast_accuracy


def losses_and_gradient(function, x, **options):
    x = {**x, "positives": x["positives"].clone().requires_grad_()}
    losses = function(**x, **options)
    (losses["loss_inst"] + 0.4 * losses.get("loss_nn", 0)).backward()
    return {name: loss.item() for name, loss in losses.items()}, x["positives"].grad


@settings(deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(2, 120),
    st.integers(1, 400),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([0.02, 0.2, 1.0]),
    st.booleans(),
)
def test_losses_and_gradients_equal_those_of_the_whole_matrix(batch, num, queue, max_scores, k, tau, before_head):
    x = loss_inputs(num, batch=batch, queue_size=queue)
    if not before_head:
        x["positives_g"] = x["queue_g"] = None
    options = {"temperature": tau, "num_neighbors": min(k, queue)}
    exact, exact_grad = losses_and_gradient(contrastive_losses, x, **options)
    chunked, grad = losses_and_gradient(chunked_losses, x, **options, max_scores=max_scores)
    assert chunked == pytest.approx(exact, rel=1e-10)
    assert torch.allclose(grad, exact_grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01), (torch.float16, 0.01)])
def test_in_float32_with_queues_of_any_type_they_agree_with_float64(dtype, tolerance):
    x = loss_inputs(batch=8, queue_size=4001)
    options = {"temperature": 0.2, "num_neighbors": 20}
    exact, exact_grad = losses_and_gradient(contrastive_losses, x, **options)
    single = {name: value.to(dtype if "queue" in name else torch.float32) for name, value in x.items()}
    for max_scores in (0, 4096):
        losses, grad = losses_and_gradient(chunked_losses, single, **options, max_scores=max_scores)
        assert losses == pytest.approx(exact, rel=tolerance)
        assert grad.dtype == torch.float32
        assert (grad - exact_grad).norm() < 10 * tolerance * exact_grad.norm()


def test_losses_are_float32_under_autocast():
    x = loss_inputs(3, queue_size=301, dtype=torch.float32)
    options = {"temperature": 0.2, "num_neighbors": 5, "max_scores": 600}
    plain, _ = losses_and_gradient(chunked_losses, x, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under, _ = losses_and_gradient(chunked_losses, x, **options)
    assert under == plain


def test_the_queue_may_change_before_backward():
    """With KNN_MOCO.ENQUEUE_FIRST it does."""
    x = loss_inputs(3, queue_size=301, dtype=torch.float32)
    options = {"temperature": 0.2, "max_scores": 600}
    _, expected = losses_and_gradient(chunked_losses, x, **options)
    positives = x["positives"].clone().requires_grad_()
    loss = chunked_losses(**{**x, "positives": positives}, **options)["loss_inst"]
    x["queue"].zero_()
    loss.backward()
    assert torch.equal(positives.grad, expected)


@given(st.integers(1, 30), st.integers(1, 300), st.integers(1, 12))
def test_nearest_rows_are_the_same_in_chunks(queue_size, max_scores, k):
    x = loss_inputs(3, queue_size=queue_size)
    k = min(k, queue_size)
    rows = x["positives_g"].flatten(0, 1)
    expected = (rows @ x["queue_g"].T).topk(k, dim=1).indices
    found = nearest_rows(rows, x["queue_g"], k, max_scores)
    assert torch.equal(found.sort(dim=1).values, expected.sort(dim=1).values)


@pytest.mark.parametrize("max_scores", [1, 13, 10**6])
def test_contrast_accuracy_is_the_same_in_chunks(max_scores):
    x = loss_inputs(3, batch=30, queue_size=50, dtype=torch.float32)
    positives = normalize(x["anchors"] + 2 * x["positives"][:, 0], dim=1)
    whole = contrast_accuracy(positives, x["anchors"], x["queue"])
    assert contrast_accuracy(positives, x["anchors"], x["queue"], max_scores) == whole
    assert 0 < whole[0] < 100
