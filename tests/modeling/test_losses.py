"""The losses against their formulas (docs/method.md: Losses), term by term in float64 with numpy and loops."""

import numpy as np
import pytest
import torch
from tiny import loss_inputs

from revisit.modeling.losses.contrastive import contrastive_losses

TAU = 0.2


def reference(p, a, queue, p_g, queue_g, k, tau=TAU) -> tuple[float, float]:
    """L_inst and L_nn of (B, L, C) numpy arrays, one positive at a time."""
    inst, nearest = [], []
    for i in range(p.shape[0]):
        for j in range(p.shape[1]):
            s = np.array([p[i, j] @ row / tau for row in queue])
            positive = p[i, j] @ a[i] / tau
            inst.append(-np.log(np.exp(positive) / (np.exp(positive) + np.exp(s).sum())))
            if k:
                cosines = np.array([p_g[i, j] @ row for row in queue_g])
                chosen = np.argsort(-cosines)[:k]
                nearest.append(-np.mean([np.log(np.exp(s[n]) / np.exp(s).sum()) for n in chosen]))
    return float(np.mean(inst)), float(np.mean(nearest)) if k else 0.0


@pytest.mark.parametrize("num_positives", [1, 5])
@pytest.mark.parametrize("mining", ["before_head", "after_head"])
def test_losses_equal_a_direct_float64_evaluation(num_positives, mining):
    x = loss_inputs(num_positives)
    args = [x[name].numpy() for name in ("positives", "anchors", "queue", "positives_g", "queue_g")]
    if mining == "after_head":
        args[3:] = args[0], args[2]
        del x["positives_g"], x["queue_g"]
    inst, nearest = reference(*args, k=5)
    single = {name: value.float() for name, value in x.items()}
    losses = contrastive_losses(**single, temperature=TAU, num_neighbors=5)
    assert losses["loss_inst"].item() == pytest.approx(inst, rel=1e-6)
    assert losses["loss_nn"].item() == pytest.approx(nearest, rel=1e-6)


@pytest.mark.parametrize("num_positives", [1, 5])
def test_gradients_equal_central_differences_of_the_direct_evaluation(num_positives):
    x = loss_inputs(num_positives, batch=2)
    positives = x.pop("positives").requires_grad_()
    losses = contrastive_losses(positives, **x, temperature=TAU, num_neighbors=5)
    (losses["loss_inst"] + 0.4 * losses["loss_nn"]).backward()
    others = [x[name].numpy() for name in ("anchors", "queue", "positives_g", "queue_g")]

    def total(p: np.ndarray) -> float:
        inst, nearest = reference(p, *others, k=5)
        return inst + 0.4 * nearest

    p, step = positives.detach().numpy(), 1e-5
    for place in np.ndindex(*p.shape):
        ahead, behind = p.copy(), p.copy()
        ahead[place] += step
        behind[place] -= step
        slope = (total(ahead) - total(behind)) / (2 * step)
        assert positives.grad[place].item() == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_the_own_anchor_is_no_negative_of_l_nn():
    x = loss_inputs(1)
    before = contrastive_losses(**x, temperature=TAU, num_neighbors=3)
    x["anchors"] = -x["anchors"]
    after = contrastive_losses(**x, temperature=TAU, num_neighbors=3)
    assert after["loss_nn"] == before["loss_nn"]
    assert after["loss_inst"] != before["loss_inst"]


def test_without_neighbours_only_l_inst_is_returned():
    assert set(contrastive_losses(**loss_inputs(), temperature=TAU)) == {"loss_inst"}


def test_mining_sends_no_gradient_into_g_space():
    x = loss_inputs()
    x["positives_g"].requires_grad_()
    x["positives"].requires_grad_()
    contrastive_losses(**x, temperature=TAU, num_neighbors=5)["loss_nn"].backward()
    assert x["positives_g"].grad is None


def test_losses_are_float32_under_autocast():
    x = {name: value.bfloat16() for name, value in loss_inputs().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = contrastive_losses(**x, temperature=TAU, num_neighbors=5)
    exact = contrastive_losses(**{n: v.double() for n, v in x.items()}, temperature=TAU, num_neighbors=5)
    for name, loss in losses.items():
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact[name].item(), rel=1e-5)


def test_loss_stays_finite_at_tiny_temperatures():
    losses = contrastive_losses(**loss_inputs(dtype=torch.float32), temperature=1e-3, num_neighbors=5)
    assert all(torch.isfinite(loss) for loss in losses.values())
