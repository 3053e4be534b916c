"""Features of an image's cells, by the maps of a start's network: what a part of an image has in common."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from revisit.network.frozen_network import digest_of
from revisit.network.network_maps import NetworkMaps, resized

MULTIPLE = 32  # px: both sides of an image, so that every map covers it whole


class DenseFeatures:
    """(H, W, 3) uint8 RGB -> maps (h, w, C) float32, the finest first: features of cells, less their mean over the
    image, of length 1.

    Args:
        weights: as of ``NetworkMaps``, and so are ``stride``, px of a cell, of the image as it is resized, and
            ``pyramid``.
        short_side: px, of the image as it is resized.

    Raises:
        UserError: weights without such maps.
    """

    def __init__(self, weights: str | Path, stride: int = 8, short_side: int = 480, pyramid: bool = False):
        self._settings = {"stride": stride, "short side": short_side, "pyramid": pyramid}
        self._network = NetworkMaps(weights, stride, pyramid)
        cell = self._network.strides[0]
        self._multiple = cell if MULTIPLE % cell else MULTIPLE
        self._short_side = short_side

    @property
    def settings(self) -> dict[str, Any]:
        """What the features depend on."""
        return {"weights": digest_of(self._network.state_dict()), **self._settings}

    @torch.no_grad()
    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        pixels = torch.from_numpy(resized(image, self._short_side, self._multiple)).permute(2, 0, 1)
        return [_unit(features[0]) for features in self._network(pixels[None])]


def _unit(features: torch.Tensor) -> np.ndarray:
    """(C, h, w) -> (h, w, C), centred and of length 1."""
    centred = features - features.mean(dim=(1, 2), keepdim=True)
    unit = torch.nn.functional.normalize(centred, dim=0)
    return unit.permute(1, 2, 0).contiguous().numpy()
