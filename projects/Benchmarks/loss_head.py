"""Time and memory of the losses with their backward: ours in chunks, against the textbook's matrices of all logits."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from projects.Benchmarks.measuring import compare, measure, peak_memory, timer
from projects.Benchmarks.textbook_step import textbook_losses
from revisit.modeling.losses.chunked import chunked_losses

from detectron2.config import CfgNode

FORMS = ("ours", "textbook", "half_queue")  # the last: ours, on queues in bfloat16
WEIGHT = 0.4  # lambda, of the gradient


def measure_head(cfg: CfgNode, *, batch: int = 64, feature_dim: int = 2048, repeats: int) -> dict[str, object]:
    """Ratios of speed and peak memory, and how far losses and gradients are apart, for random unit rows.

    Args:
        cfg: of the recipe: K, C, k, tau, small crops and MOCO.MAX_SCORES are its.
        batch: B, images.
        feature_dim: Cg, width before the head.
    """
    sizes = (batch, 1 + cfg.VIEWS.NUM_SMALL, cfg.MOCO.EMBEDDING_DIM, feature_dim, cfg.MOCO.QUEUE_SIZE)
    options = {"temperature": cfg.MOCO.TEMPERATURE, "num_neighbors": cfg.KNN_MOCO.NUM_NEIGHBORS}
    forms = {name: (name, sizes, options, cfg.MOCO.MAX_SCORES) for name in FORMS}
    extra = {name: peak_memory(prepare, *form) for name, form in forms.items()}
    calls = {name: prepare(*form) for name, form in forms.items()}
    results = {name: call() for name, call in calls.items()}
    (loss, grad), (exact, exact_grad), (half, _) = (results[name] for name in FORMS)
    seconds = measure({name: timer(call) for name, call in calls.items()}, repeats)
    return {
        **compare(seconds, "ours", "textbook", batch),
        "half_queue_ratio": compare(seconds, "half_queue", "textbook", batch)["ratio"],
        "memory_ratio": extra["ours"] / extra["textbook"],
        **{f"{name}_peak_mb": extra[name] / 1e6 for name in FORMS},
        "loss_difference": max(abs(loss[name] - exact[name]) for name in exact),
        "gradient_difference": float((grad - exact_grad).norm() / exact_grad.norm()),
        "half_queue_loss_difference": max(abs(half[name] / exact[name] - 1) for name in exact),
    }


def prepare(form: str, sizes: tuple[int, ...], options: dict, max_scores: int) -> Callable[[], tuple[dict, Tensor]]:
    """The losses of one of FORMS and their gradient as a call, which returns both; inputs are the same for all."""
    x = random_rows(*sizes, device="cuda" if torch.cuda.is_available() else "cpu")
    if form == "half_queue":
        x["queue"], x["queue_g"] = x["queue"].bfloat16(), x["queue_g"].bfloat16()
    losses_of = textbook_losses if form == "textbook" else partial(chunked_losses, max_scores=max_scores)

    def call() -> tuple[dict[str, float], Tensor]:
        positives = x["positives"].detach().requires_grad_()
        losses = losses_of(**{**x, "positives": positives}, **options)
        (losses["loss_inst"] + WEIGHT * losses["loss_nn"]).backward()
        return {name: loss.item() for name, loss in losses.items()}, positives.grad

    small = {name: rows[:64] for name, rows in x.items()}
    losses_of(**small, **{**options, "num_neighbors": 1})  # libraries take what they keep
    return call


def random_rows(batch: int, num_positives: int, width: int, width_g: int, length: int, *, device: str) -> dict:
    """Unit rows by the names that the losses give them."""
    shapes = {
        "positives": (batch, num_positives, width),
        "anchors": (batch, width),
        "queue": (length, width),
        "positives_g": (batch, num_positives, width_g),
        "queue_g": (length, width_g),
    }
    generator = torch.Generator(device).manual_seed(0)
    rows = {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
    return {name: normalize(values, dim=-1, out=values) for name, values in rows.items()}
