"""Time and memory of the losses with their backward: ours in chunks, against the textbook's matrices of all logits."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from projects.Benchmarks.measuring import compare, peak_memory, timer
from projects.Benchmarks.references import textbook_losses
from revisit.modeling.losses.chunked import chunked_losses

from detectron2.config import CfgNode

FORMS = ("ours", "half_queue", "textbook")  # the second: ours, on queues in bfloat16
WEIGHT = 0.4  # lambda, of the gradient


def measure_head(cfg: CfgNode, *, batch: int = 64, feature_dim: int = 2048, repeats: int) -> dict[str, object]:
    """Ratios of speed and peak memory, and how far losses and gradients are apart, for random unit rows.

    Args:
        cfg: of the recipe: K, C, k, tau, small crops and MOCO.MAX_SCORES are its.
        batch: B, images.
        feature_dim: Cg, width before the head.
    """
    extra = {form: peak_memory(prepare, form, cfg, batch, feature_dim) for form in FORMS}
    calls = {form: prepare(form, cfg, batch, feature_dim) for form in FORMS}
    (loss, grad), (half, _), (exact, exact_grad) = (call() for call in calls.values())
    return {
        **compare({form: timer(call) for form, call in calls.items()}, repeats, batch),
        "memory_ratio": extra["ours"] / extra["textbook"],
        **{f"{form}_peak_mb": size / 1e6 for form, size in extra.items()},
        "loss_difference": max(abs(loss[name] - exact[name]) for name in exact),
        "gradient_difference": float((grad - exact_grad).norm() / exact_grad.norm()),
        "half_queue_loss_difference": max(abs(half[name] / exact[name] - 1) for name in exact),
    }


def prepare(form: str, cfg: CfgNode, batch: int, width_g: int) -> Callable[[], tuple[dict[str, float], Tensor]]:
    """The losses of one of FORMS and their gradient as a call, which returns both; inputs are the same for all."""
    device, moco = "cuda" if torch.cuda.is_available() else "cpu", cfg.MOCO
    positives, length, width = (batch, 1 + cfg.VIEWS.NUM_SMALL), moco.QUEUE_SIZE, moco.EMBEDDING_DIM
    shapes = {"positives": (*positives, width), "anchors": (batch, width), "queue": (length, width)}
    shapes |= {"positives_g": (*positives, width_g), "queue_g": (length, width_g)}
    generator = torch.Generator(device).manual_seed(0)
    x = {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
    for rows in x.values():
        normalize(rows, dim=-1, out=rows)
    if form == "half_queue":
        x["queue"], x["queue_g"] = x["queue"].bfloat16(), x["queue_g"].bfloat16()
    losses_of = textbook_losses if form == "textbook" else partial(chunked_losses, max_scores=moco.MAX_SCORES)
    losses_of = partial(losses_of, temperature=moco.TEMPERATURE)

    def call() -> tuple[dict[str, float], Tensor]:
        inputs = x | {"positives": x["positives"].detach().requires_grad_()}
        losses = losses_of(**inputs, num_neighbors=cfg.KNN_MOCO.NUM_NEIGHBORS)
        (losses["loss_inst"] + WEIGHT * losses["loss_nn"]).backward()
        return {name: loss.item() for name, loss in losses.items()}, inputs["positives"].grad

    losses_of(**{name: rows[:64] for name, rows in x.items()}, num_neighbors=1)  # libraries take what they keep
    return call
