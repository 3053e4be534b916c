"""Time and memory of the losses with their backward: ours in chunks, against the textbook's matrices of all logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from projects.Benchmarks.measuring import compare, measure
from projects.Benchmarks.peak_memory import peak_memory
from projects.Benchmarks.textbook_head import textbook_losses
from revisit.modeling.losses.chunked import chunked_losses

from detectron2.config import CfgNode

FORMS = ("ours", "textbook", "half_queue")  # the last: ours, on queues in bfloat16
WEIGHT = 0.4  # lambda, of the gradient


def measure_head(cfg: CfgNode, *, batch: int, feature_dim: int, repeats: int) -> dict[str, object]:
    """Ratios of speed and peak memory, and how far losses and gradients are apart, for random unit rows.

    Args:
        cfg: of the recipe: K, C, k, tau, small crops and MOCO.MAX_SCORES are its.
        batch: B, images.
        feature_dim: Cg, width in front of the head.
    """
    sizes = (batch, 1 + cfg.VIEWS.NUM_SMALL, cfg.MOCO.EMBEDDING_DIM, feature_dim, cfg.MOCO.QUEUE_SIZE)
    options = (cfg.MOCO.TEMPERATURE, cfg.KNN_MOCO.NUM_NEIGHBORS, cfg.MOCO.MAX_SCORES)
    extra = {form: peak_memory(prepare, form, sizes, options) for form in FORMS}
    calls = {form: prepare(form, sizes, options) for form in FORMS}
    results = {form: call() for form, call in calls.items()}
    (loss, grad), (exact, exact_grad) = results["ours"], results["textbook"]
    half = results["half_queue"][0]
    seconds = measure(calls, repeats)
    speed = compare(seconds, "ours", "textbook", batch)
    return {
        **speed,
        "half_queue_ratio": compare(seconds, "half_queue", "textbook", batch)["ratio"],
        "memory_ratio": extra["ours"] / extra["textbook"],
        **{f"{form}_peak_mb": extra[form] / 1e6 for form in FORMS},
        "loss_difference": max(abs(loss[name] - exact[name]) for name in exact),
        "gradient_difference": float((grad - exact_grad).norm() / exact_grad.norm()),
        "half_queue_loss_difference": max(abs(half[name] / exact[name] - 1) for name in exact),
    }


def prepare(form: str, sizes: tuple[int, ...], options: tuple[float, int, int]) -> Callable[[], object]:
    """The losses of one of FORMS and their gradient as a call, which returns both; inputs are the same for all."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = random_rows(*sizes, device=device)
    temperature, k, max_scores = options
    if form == "half_queue":
        x["queue"], x["queue_g"] = x["queue"].bfloat16(), x["queue_g"].bfloat16()
    losses_of = textbook_losses if form == "textbook" else chunked_losses
    limit = {} if form == "textbook" else {"max_scores": max_scores}

    def call() -> tuple[dict[str, float], Tensor]:
        positives = x["positives"].detach().requires_grad_()
        inputs = {**x, "positives": positives}
        losses = losses_of(**inputs, temperature=temperature, num_neighbors=k, **limit)
        (losses["loss_inst"] + WEIGHT * losses["loss_nn"]).backward()
        return {name: loss.item() for name, loss in losses.items()}, positives.grad

    small = {name: rows[:64] for name, rows in x.items()}
    losses_of(**small, temperature=temperature, num_neighbors=1, **limit)  # libraries take what they keep
    return call


def random_rows(batch: int, num_positives: int, width: int, width_g: int, length: int, *, device: str) -> dict:
    """Unit rows by the names that the losses give them."""
    generator = torch.Generator(device).manual_seed(0)

    def rows(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, device=device)
        return normalize(values, dim=-1, out=values)

    return {
        "positives": rows(batch, num_positives, width),
        "anchors": rows(batch, width),
        "queue": rows(length, width),
        "positives_g": rows(batch, num_positives, width_g),
        "queue_g": rows(length, width_g),
    }
