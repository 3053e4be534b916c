"""Features of an image's cells, by the fine maps of a start's backbone: what a part of an image has in common."""

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from projects.common.frozen_network import digest_of
from revisit.checkpoint.backbone_file import load_backbone
from revisit.checkpoint.convert import as_rgb
from revisit.checkpoint.flags import flags_to_config
from revisit.errors import expect, translated
from revisit.keys import with_values

from detectron2.modeling import build_backbone

MULTIPLE = 32  # px: both sides of an image, so that every map covers it whole


class DenseFeatures:
    """(H, W, 3) uint8 RGB -> (h, w, C) float32: the features of its cells, less their mean over the image, of length 1.

    Args:
        weights: a converted file, a run's checkpoint or a name (docs/weights.md).
        stride: px of a cell, of the image as it is resized: a power of two from 4 to 32.
        short_side: px, of the image as it is resized.

    Raises:
        UserError: weights of no backbone, or of one without a map of this stride.
    """

    def __init__(self, weights: str | Path, stride: int = 8, short_side: int = 480):
        self._short_side = short_side
        self._stride = stride
        backbone = as_rgb(load_backbone(weights))
        self._map = f"res{round(math.log2(stride))}"
        wanted = {f"MODEL.{family}.OUT_FEATURES": [self._map] for family in ("RESNETS", "TIMM")}
        wanted |= {"MODEL.BACKBONE.NAME": backbone.description.BUILDER, "MODEL.BACKBONE.FREEZE_AT": 0}
        with translated(f"{weights}: a map of stride {stride}"):
            network = build_backbone(with_values(flags_to_config(backbone.flags), wanted))
        self._network = network.eval().requires_grad_(False)
        missing = self._network.load_state_dict(backbone.tensors, strict=False).missing_keys
        lacking = [name for name in missing if not name.endswith("num_batches_tracked")]
        expect(not lacking, f"{weights} lacks {len(lacking)} tensors of its map of stride {stride}")
        self._mean = torch.tensor(backbone.flags["MODEL.PIXEL_MEAN"]).view(3, 1, 1)
        self._std = torch.tensor(backbone.flags["MODEL.PIXEL_STD"]).view(3, 1, 1)

    @property
    def settings(self) -> dict[str, Any]:
        """What the features depend on."""
        return {
            "weights": digest_of(self._network.state_dict()),
            "stride": self._stride,
            "short side": self._short_side,
        }

    @torch.no_grad()
    def __call__(self, image: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(self._resized(image)).permute(2, 0, 1)
        normalised = (pixels - self._mean) / self._std
        features = self._network(normalised[None])[self._map][0]
        centred = features - features.mean(dim=(1, 2), keepdim=True)
        unit = torch.nn.functional.normalize(centred, dim=0)
        return unit.permute(1, 2, 0).contiguous().numpy()

    def _resized(self, image: np.ndarray) -> np.ndarray:
        scale = self._short_side / min(image.shape[:2])
        height, width = (max(1, round(side * scale / MULTIPLE)) * MULTIPLE for side in image.shape[:2])
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        return cv2.resize(image, (width, height), interpolation=method)
