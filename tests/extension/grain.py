"""A look from outside the tree: VIEWS.POLICY "grain" adds the grain of a film to standard looks."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from revisit.data.views.looks import LOOK_REGISTRY, DrawLook, Look
from revisit.keys import declare, number

from detectron2.config import CfgNode

declare("VIEWS.GRAIN", 12.0, "Highest strength of grain, as a standard deviation.", number(0, 255, "grey levels"))


@dataclass(frozen=True)
class GrainLook(Look):
    """Another look, then noise that is alike in all three channels."""

    below: Look
    strength: float  # standard deviation, grey levels
    seed: int  # of the noise

    def apply(self, image: np.ndarray) -> np.ndarray:
        view = self.below.apply(image)
        noise = np.random.default_rng(self.seed).normal(0, self.strength, view.shape[:2])
        return (view + noise[..., None]).round().clip(0, 255).astype(np.uint8)

    def source_points(self, size: int) -> np.ndarray:
        return self.below.source_points(size)  # grain moves no pixel


@LOOK_REGISTRY.register()
def grain(cfg: CfgNode) -> DrawLook:
    """Standard looks with grain of U(0, VIEWS.GRAIN) grey levels."""
    return partial(draw_grain, standard=LOOK_REGISTRY.get("standard")(cfg), strongest=cfg.VIEWS.GRAIN)


def draw_grain(rng: np.random.Generator, standard: DrawLook, strongest: float) -> GrainLook:
    """Everything random is drawn from ``rng``: the same seed, epoch and image give the same view."""
    below = standard(rng)
    strength = float(rng.uniform(0, strongest))
    return GrainLook(below, strength, seed=int(rng.integers(2**31)))
