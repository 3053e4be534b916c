"""What a network has kept of another one's relations: how alike it finds two cells, or two images."""

from collections.abc import Callable

import torch
from torch import Tensor

from revisit.errors import expect
from revisit.modeling.distributed import gather_rows, gather_rows_with_gradient
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.pretraining import unit_rows
from revisit.network.frozen_network import pooled_rows


def gram_difference(rows: Tensor, theirs: Tensor) -> Tensor:
    """How far the Gram matrices of two networks' features are apart, a scalar from 0 to 4 (docs/method.md: Continuing):

        mean_in (g_i . g_n - t_i . t_n)^2

    of unit rows ``rows`` g, (..., N, Cg), and ``theirs`` t, (..., N, Ct), of the same N places; also over what stands
    before them. Gram anchoring of DINOv3 (Simeoni et al., arXiv 2508.10104), with the mean for the sum.
    """
    return (rows @ rows.mT - theirs @ theirs.mT).square().mean()


def between_cells(maps: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """``gram_difference`` of the cells of each view, the mean over all views of maps (N, C, h, w) of any sizes.

    Views of a single cell have no relations, and do not count. Raises UserError where there are no others.
    """
    pairs = [pair for pair in zip(maps, theirs, strict=True) if pair[0][0, 0].numel() > 1]
    expect(pairs, "KEEP.RELATIONS cells: expected maps of two cells or more (VIEWS.LARGE_SIZE)")
    sums = [len(ours) * gram_difference(cells_of(ours), cells_of(others)) for ours, others in pairs]
    return torch.stack(sums).sum() / sum(len(ours) for ours, _ in pairs)


def between_images(maps: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """``gram_difference`` of all views of all processes, by the averages of their maps (N, C, h, w)."""
    return gram_difference(gather_rows_with_gradient(pooled_rows(maps)), gather_rows(pooled_rows(theirs)))


RELATIONS: dict[str, Callable[[list[Tensor], list[Tensor]], Tensor]] = {
    "images": between_images,
    "cells": between_cells,
}


def cells_of(maps: Tensor) -> Tensor:
    """Unit rows (N, h w, C) of the cells of maps (N, C, h, w)."""
    return unit_rows(at_least_float32(maps).flatten(2).mT)
