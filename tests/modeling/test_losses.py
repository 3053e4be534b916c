"""The losses against their formulas (docs/method.md: Losses), term by term in float64 with numpy and loops, however
many scores may be in memory at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from methods import edit
from tiny import direct_losses, loss_inputs, random_views, step, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from revisit.modeling.losses.contrastive import contrastive_losses, info_nce
from revisit.modeling.losses.queue_scores import log_sum_exp, nearest_rows, scores_in_parts

TAU = 0.2


@pytest.mark.parametrize("num_positives", [1, 5])
@pytest.mark.parametrize("mining", ["before_head", "after_head"])
def test_losses_equal_a_direct_float64_evaluation(num_positives, mining):
    x = loss_inputs(num_positives)
    args = [x[name].numpy() for name in ("positives", "anchors", "queue", "positives_g", "queue_g")]
    if mining == "after_head":
        args[3:] = args[0], args[2]
        del x["positives_g"], x["queue_g"]
    inst, nearest = direct_losses(*args, k=5)
    single = {name: value.float() for name, value in x.items()}
    losses = contrastive_losses(**single, temperature=TAU, num_neighbors=5)
    assert losses["loss_inst"].item() == pytest.approx(inst, rel=1e-6)
    assert losses["loss_nn"].item() == pytest.approx(nearest, rel=1e-6)


@pytest.mark.parametrize("max_scores", [0, 70])
@pytest.mark.parametrize("num_positives", [1, 5])
def test_gradients_equal_central_differences_of_the_direct_evaluation(num_positives, max_scores):
    x = loss_inputs(num_positives, batch=2)
    _, grad = losses_and_gradient(x, temperature=TAU, num_neighbors=5, max_scores=max_scores)
    p, *others = (x[name].numpy() for name in ("positives", "anchors", "queue", "positives_g", "queue_g"))
    for place in np.ndindex(*p.shape):
        step = np.zeros_like(p)
        step[place] = 1e-5
        inst, nearest = np.subtract(*(direct_losses(q, *others, k=5) for q in (p + step, p - step))) / 2e-5
        assert grad[place].item() == pytest.approx(inst + 0.4 * nearest, rel=1e-6, abs=1e-9)


def losses_and_gradient(x, **options):
    """Values by name, and the gradient of L_inst + 0.4 L_nn."""
    x = {**x, "positives": x["positives"].clone().requires_grad_()}
    losses = contrastive_losses(**x, **options)
    (losses["loss_inst"] + 0.4 * losses.get("loss_nn", 0)).backward()
    return {name: loss.item() for name, loss in losses.items()}, x["positives"].grad


def test_the_own_anchor_is_no_negative_of_l_nn():
    x = loss_inputs(1)
    before = contrastive_losses(**x, temperature=TAU, num_neighbors=3)
    x["anchors"] = -x["anchors"]
    after = contrastive_losses(**x, temperature=TAU, num_neighbors=3)
    assert after["loss_nn"] == before["loss_nn"] and after["loss_inst"] != before["loss_inst"]


def test_mining_sends_no_gradient_into_g_space():
    x = loss_inputs()
    x["positives_g"].requires_grad_()
    x["positives"].requires_grad_()
    contrastive_losses(**x, temperature=TAU, num_neighbors=5)["loss_nn"].backward()
    assert x["positives_g"].grad is None


@pytest.mark.parametrize("max_scores", [0, 100])
def test_losses_are_float32_under_autocast(max_scores):
    x = {name: value.bfloat16() for name, value in loss_inputs().items()}
    options = {"temperature": TAU, "num_neighbors": 5}
    exact = contrastive_losses(**{name: value.double() for name, value in x.items()}, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = contrastive_losses(**x, **options, max_scores=max_scores)
    for name, loss in losses.items():
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact[name].item(), rel=1e-5)


def test_loss_stays_finite_at_tiny_temperatures():
    losses = contrastive_losses(**loss_inputs(dtype=torch.float32), temperature=1e-3, num_neighbors=5)
    assert all(torch.isfinite(loss) for loss in losses.values())


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 60),
    st.integers(1, 200),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([0.02, 0.2, 1.0]),
    st.booleans(),
)
def test_losses_of_any_size_equal_the_direct_evaluation(batch, num, queue, max_scores, k, tau, before_head):
    x = loss_inputs(num, batch=batch, queue_size=queue)
    k = min(k, queue)
    p, a, q, p_g, q_g = (value.numpy() for value in x.values())
    inst, nearest = direct_losses(p, a, q, *((p_g, q_g) if before_head else (p, q)), k=k, tau=tau)
    if not before_head:
        x["positives_g"] = x["queue_g"] = None
    options = {"temperature": tau, "num_neighbors": k}
    _, of_whole = losses_and_gradient(x, **options, max_scores=0)
    losses, grad = losses_and_gradient(x, **options, max_scores=max_scores)
    assert losses == pytest.approx({"loss_inst": inst} | ({"loss_nn": nearest} if k else {}), rel=1e-9)
    assert torch.allclose(grad, of_whole, rtol=1e-9, atol=1e-12)


def test_log_sum_exp_has_the_softmax_mean_row_as_gradient():
    x = loss_inputs(queue_size=50)
    rows = (x["positives"].flatten(0, 1) / TAU).requires_grad_()
    lse = log_sum_exp(rows, x["queue"], max_scores=300)
    scores = rows.detach().numpy() @ x["queue"].numpy().T
    assert lse.detach().numpy() == pytest.approx(np.log(np.exp(scores).sum(axis=1)), rel=1e-12)
    lse.sum().backward()
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert rows.grad.numpy() == pytest.approx(shares @ x["queue"].numpy(), rel=1e-10)


@pytest.mark.parametrize("max_scores", [0, 2])
@pytest.mark.parametrize(
    ("loss", "function", "formula"),
    [
        ("loss_inst", info_nce, "(torch.logaddexp(positive_scores, lse) - positive_scores).mean()"),
        ("loss_nn", contrastive_losses, "(lse - (p * mean_row).sum(dim=1)).mean()"),
    ],
)
def test_an_edited_formula_changes_training(monkeypatch, max_scores, loss, function, formula):
    """One formula: an edit that is tried on a toy also trains a long queue, which is read in parts."""
    model, views = tiny_model("MOCO.MAX_SCORES", max_scores).train(), random_views(4)
    before, _ = step(model, views)
    edit(monkeypatch, function, formula, f"10 * {formula}")
    model.pending_keys.clear()
    after, _ = step(model, views)
    assert after[loss].item() == pytest.approx(10 * before[loss].item(), rel=1e-5)


@pytest.mark.parametrize("max_scores", [0, 100])
def test_each_positive_may_have_its_own_temperature(max_scores):
    x = loss_inputs(3)
    names = ("positives", "anchors", "queue", "positives_g", "queue_g")
    temperatures = torch.tensor([[0.1], [0.2], [0.4]], dtype=torch.float64)
    losses = contrastive_losses(**x, temperature=temperatures, num_neighbors=5, max_scores=max_scores)
    expected = []
    for j, tau in enumerate(temperatures.flatten().tolist()):
        p, a, queue, p_g, queue_g = (x[name].numpy() for name in names)
        expected.append(direct_losses(p[:, [j]], a, queue, p_g[:, [j]], queue_g, k=5, tau=tau))
    inst, nearest = np.mean(expected, axis=0)
    assert losses["loss_inst"].item() == pytest.approx(inst, rel=1e-9)
    assert losses["loss_nn"].item() == pytest.approx(nearest, rel=1e-9)


class Products(TorchDispatchMode):
    """Notes how many numbers the largest product of two matrices has."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("max_scores", [500, 3999])
def test_no_more_scores_than_allowed_are_in_memory(max_scores):
    x = loss_inputs(5, batch=2, queue_size=400)  # of each of the 10 positives 400 scores
    with Products() as products:
        contrastive_losses(**x, temperature=TAU, num_neighbors=7, max_scores=max_scores)
    assert 0 < products.largest <= max_scores


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01), (torch.float16, 0.01)])
def test_in_float32_with_queues_of_any_type_they_agree_with_float64(dtype, tolerance):
    x = loss_inputs(batch=8, queue_size=4001)
    options = {"temperature": TAU, "num_neighbors": 20}
    exact, exact_grad = losses_and_gradient(x, **options)
    single = {name: value.to(dtype if "queue" in name else torch.float32) for name, value in x.items()}
    for max_scores in (0, 4096):
        losses, grad = losses_and_gradient(single, **options, max_scores=max_scores)
        assert losses == pytest.approx(exact, rel=tolerance)
        assert grad.dtype == torch.float32
        assert (grad - exact_grad).norm() < 10 * tolerance * exact_grad.norm()


def test_the_queue_may_change_before_backward():
    """With NEIGHBORS.ENQUEUE_FIRST it does."""
    x = loss_inputs(3, queue_size=301, dtype=torch.float32)
    options = {"temperature": TAU, "max_scores": 600}
    _, expected = losses_and_gradient(x, **options)
    loss = contrastive_losses(x["positives"].requires_grad_(), x["anchors"], x["queue"], **options)["loss_inst"]
    x["queue"].zero_()
    loss.backward()
    assert torch.equal(x["positives"].grad, expected)


@given(st.integers(1, 30), st.integers(1, 300), st.integers(1, 12))
def test_nearest_rows_are_the_same_in_chunks(queue_size, max_scores, k):
    x = loss_inputs(3, queue_size=queue_size)
    k = min(k, queue_size)
    rows = x["positives_g"].flatten(0, 1)
    expected = (rows @ x["queue_g"].T).topk(k, dim=1).indices
    found = nearest_rows(rows, x["queue_g"], k, max_scores)
    assert torch.equal(found.sort(dim=1).values, expected.sort(dim=1).values)


@pytest.mark.parametrize("max_scores", [0, 60])
def test_what_counts_of_scores_may_be_changed_part_by_part(max_scores):
    """Every third row is left out, and for the first positive all rows."""
    x = loss_inputs(1, queue_size=20)
    rows = x["positives"].flatten(0, 1).requires_grad_()
    left_out = (torch.arange(20) % 3 == 0).repeat(len(rows), 1)
    left_out[0] = True

    def change(scores, places):
        return scores.masked_fill_(left_out[:, places], -torch.inf)

    lse = log_sum_exp(rows, x["queue"], max_scores, change)
    scores = rows @ x["queue"].T
    assert lse[0] == -torch.inf
    assert torch.allclose(lse[1:], scores.masked_fill(left_out, -torch.inf)[1:].logsumexp(dim=1), rtol=1e-12)
    lse[1:].sum().backward()
    shares = scores.detach().masked_fill(left_out, -torch.inf)[1:].softmax(dim=1)
    assert not rows.grad[0].any() and torch.allclose(rows.grad[1:], shares @ x["queue"], rtol=1e-10)
    with torch.no_grad():
        nearest = nearest_rows(rows, x["queue"], 4, max_scores, change)
        expected = scores.masked_fill(left_out, -torch.inf).topk(4, dim=1).indices
    assert torch.equal(nearest[1:].sort(dim=1).values, expected[1:].sort(dim=1).values)


@pytest.mark.parametrize(("num_rows", "length"), [(2, 4), (32, 2), (100, 1)])
def test_neither_a_part_nor_its_scores_have_more_numbers_than_allowed(num_rows, length):
    parts = list(scores_in_parts(torch.zeros(num_rows, 16), torch.zeros(9, 16), max_scores=64))
    assert [part.shape for part, _ in parts[:-1]] == [(length, 16)] * (len(parts) - 1)
    assert sum(scores.shape[1] for _, scores in parts) == 9
