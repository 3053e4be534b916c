"""Features of an image's cells, by the maps of a start's network: what a part of an image has in common."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from revisit.checkpoint.flags import Flags
from revisit.network.network_maps import network_maps, resized


class DenseFeatures:
    """(H, W, n) uint8, RGB or channels -> maps (h, w, C) float32, the finest first: features of cells, less their
    mean over the image, of length 1.

    Args:
        weights: as of ``network_maps``, and so are ``stride``, px of a cell, of the image as it is resized,
            ``pyramid`` and ``images``.
        short_side: px, of the image as it is resized.

    Raises:
        UserError: weights without such maps.
    """

    def __init__(
        self,
        weights: str | Path,
        stride: int = 8,
        short_side: int = 480,
        pyramid: bool = False,
        images: Sequence[dict] | Flags = (),
    ):
        self._settings = {"stride": stride, "short side": short_side, "pyramid": pyramid}
        self._network = network_maps(weights, stride, pyramid, images=images)
        finest, *_ = self._network.output_shape().values()
        self._resized = partial(resized, short_side=short_side, stride=finest.stride)

    @property
    def settings(self) -> dict[str, Any]:
        """What the features depend on."""
        return {"weights": self._network.digest("_network", pixels=True), **self._settings}

    @property
    def flags(self) -> Flags:
        """Of the weights."""
        return self._network.flags

    @torch.no_grad()
    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        pixels = torch.from_numpy(self._resized(image)).permute(2, 0, 1)
        return [_unit(features[0]) for features in self._network(pixels[None]).values()]


def _unit(features: torch.Tensor) -> np.ndarray:
    """(C, h, w) -> (h, w, C), centred and of length 1."""
    centred = features - features.mean(dim=(1, 2), keepdim=True)
    unit = torch.nn.functional.normalize(centred, dim=0)
    return unit.permute(1, 2, 0).contiguous().numpy()
