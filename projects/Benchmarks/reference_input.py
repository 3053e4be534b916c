"""The six-view recipe as a user of torchvision writes it: PIL images, torchvision's transforms, float tensors.

What ``revisit.data`` is measured against: written to be correct, not to be slow.
"""

import random
from pathlib import Path

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import transforms as T
from torchvision.transforms import functional as F

from detectron2.config import CfgNode

Box = tuple[int, int, int, int]  # top, left, height, width


class ReferenceViews:
    """Maps an image file to its views (docs/method.md: Views), float (3, H, W) with the pixel statistics removed.

    Draws come from the global generators of torch and Python, as everywhere in torchvision.
    """

    def __init__(self, cfg: CfgNode):
        self._views = cfg.VIEWS
        jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
        blur = T.RandomApply([T.Lambda(gaussian_blur)], p=0.5)
        grey, flip = T.RandomGrayscale(cfg.VIEWS.GREY_PROBABILITY), T.RandomHorizontalFlip()
        standard, strong = T.Compose([jitter, grey, blur, flip]), T.Compose([flip, T.AutoAugment()])
        both = T.RandomChoice([standard, strong])
        self._looks = {"standard": standard, "autoaugment": strong, "standard_or_autoaugment": both}
        mean, std = ([value / 255 for value in values] for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
        self._to_tensor = T.Compose([T.ToTensor(), T.Normalize(mean, std)])

    def __call__(self, path: Path | str) -> dict[str, Tensor]:
        with Image.open(path) as file:
            image = file.convert("RGB")
        views = self._views
        anchor, positive = (random_box(image, views.LARGE_SCALE) for _ in range(2))
        result = {
            "anchor": self._view(image, anchor, views.LARGE_SIZE, "standard"),
            "positive": self._view(image, positive, views.LARGE_SIZE, views.POLICY),
        }
        if views.NUM_SMALL:
            boxes = [self._small_box(image, anchor) for _ in range(views.NUM_SMALL)]
            result["small"] = torch.stack([self._view(image, box, views.SMALL_SIZE, views.POLICY) for box in boxes])
        return result

    def batch(self, paths: list[Path | str]) -> dict[str, Tensor]:
        """The views of several files, stacked."""
        return default_collate([self(path) for path in paths])

    def _small_box(self, image: Image.Image, anchor: Box) -> Box:
        """Drawn up to ten times, until enough of it lies inside the anchor."""
        for _ in range(10):
            box = random_box(image, self._views.SMALL_SCALE)
            if share_inside(box, anchor) >= self._views.MIN_OVERLAP:
                break
        return box

    def _view(self, image: Image.Image, box: Box, size: int, policy: str) -> Tensor:
        return self._to_tensor(self._looks[policy](F.resized_crop(image, *box, [size, size])))


def gaussian_blur(image: Image.Image) -> Image.Image:
    """MoCo-v2's blur: PIL's Gaussian, sigma from (0.1, 2)."""
    return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def random_box(image: Image.Image, scale: tuple[float, float]) -> Box:
    """A crop of this share of the image's area."""
    return T.RandomResizedCrop.get_params(image, list(scale), [3 / 4, 4 / 3])


def share_inside(box: Box, anchor: Box) -> float:
    """Share of the box's own area that lies inside the anchor, in [0, 1]."""
    height = min(box[0] + box[2], anchor[0] + anchor[2]) - max(box[0], anchor[0])
    width = min(box[1] + box[3], anchor[1] + anchor[3]) - max(box[1], anchor[1])
    return max(0, height) * max(0, width) / (box[2] * box[3])
