"""What the project is measured against: the recipe as a user of PIL, torch and torchvision writes it, from an image's
views to the losses and the training step of kNN-MoCo: eager, float32, all logits in memory; correct, and not slow."""

import copy
import os
import random
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize
from torch.utils.data import default_collate
from torchvision import transforms as T
from torchvision.transforms import functional as F

from revisit.data.images.opening import open_image
from revisit.errors import translated
from revisit.modeling.projection_head import ProjectionHead

from detectron2.config import CfgNode
from detectron2.modeling import build_backbone

Box = tuple[int, int, int, int]  # top, left, height, width


class ReferenceViews:
    """Maps an image file to its views (docs/method.md: Views), float (3, H, W) with the pixel statistics removed.

    Draws come from the global generators of torch and Python, as everywhere in torchvision.
    """

    def __init__(self, cfg: CfgNode):
        self._views = cfg.VIEWS
        jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
        blur = T.RandomApply([T.Lambda(gaussian_blur)], p=cfg.VIEWS.BLUR_PROBABILITY)
        grey, flip = T.RandomGrayscale(cfg.VIEWS.GREY_PROBABILITY), T.RandomHorizontalFlip()
        standard, strong = T.Compose([jitter, grey, blur, flip]), T.Compose([flip, T.AutoAugment()])
        both = T.RandomChoice([standard, strong])
        self._looks = {"standard": standard, "autoaugment": strong, "standard_or_autoaugment": both}
        mean, std = ([value / 255 for value in values] for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
        self._to_tensor = T.Compose([T.ToTensor(), T.Normalize(mean, std)])

    def __call__(self, path: Path | str) -> dict[str, Tensor]:
        with translated(f"reading {path} by PIL"), open_image(path) as file:
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


class AlbumentationsViews:
    """Maps image files to views, uint8 (N, H, W, 3), by OpenCV and albumentations, which has no constraint of crops and
    no AutoAugment: all looks are the standard one."""

    def __init__(self, cfg: CfgNode, interpolation: int):
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for a newer one
        import albumentations as A

        views = cfg.VIEWS
        looks = [
            A.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=0.8),
            A.ToGray(p=views.GREY_PROBABILITY),
            A.GaussianBlur(blur_limit=0, sigma_limit=(0.1, 2.0), p=views.BLUR_PROBABILITY),
            A.HorizontalFlip(p=0.5),
        ]
        large, small = (
            A.Compose([A.RandomResizedCrop((size, size), scale, interpolation=interpolation), *looks], seed=0)
            for size, scale in ((views.LARGE_SIZE, views.LARGE_SCALE), (views.SMALL_SIZE, views.SMALL_SCALE))
        )
        self._views = {"anchor": (large, 1), "positive": (large, 1), "small": (small, views.NUM_SMALL)}

    def batch(self, paths: list[Path | str]) -> dict[str, np.ndarray]:
        """The views of several files, one after the other."""
        views: dict[str, list] = {name: [] for name in self._views}
        for path in paths:
            image = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
            for name, (view_of, count) in self._views.items():
                views[name] += [view_of(image=image)["image"] for _ in range(count)]
        return {name: np.stack(its) for name, its in views.items() if its}


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


def textbook_losses(
    positives: Tensor,
    anchors: Tensor,
    queue: Tensor,
    positives_g: Tensor,
    queue_g: Tensor,
    *,
    temperature: float,
    num_neighbors: int,
) -> dict[str, Tensor]:
    """L_inst and L_nn as ``contrastive_losses`` has them, by cross-entropy over logits (B*L, 1 + K)."""
    queue = queue.clone()  # as MoCo's code: new keys enter the queue before backward needs the old ones
    p = positives.flatten(0, 1)
    a = anchors.repeat_interleave(positives.shape[1], dim=0)
    own = (p * a).sum(dim=1, keepdim=True)
    negatives = p @ queue.T
    logits = torch.cat([own, negatives], dim=1) / temperature
    loss_inst = cross_entropy(logits, torch.zeros(len(p), dtype=torch.int64, device=p.device))
    with torch.no_grad():
        neighbors = (positives_g.flatten(0, 1) @ queue_g.T).topk(num_neighbors, dim=1).indices
    log_shares = log_softmax(negatives / temperature, dim=1)
    return {"loss_inst": loss_inst, "loss_nn": -log_shares.gather(1, neighbors).mean()}


class TextbookEncoder(nn.Module):
    """(B, 3, H, W) float images -> g (B, Cg) and h (B, C), unit rows."""

    def __init__(self, cfg: CfgNode):
        super().__init__()
        self.backbone = build_backbone(cfg)
        ((self.feature, shape),) = self.backbone.output_shape().items()
        self.feature_dim = shape.channels
        self.head = ProjectionHead(shape.channels, cfg.MOCO.EMBEDDING_DIM)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        g = self.backbone(images)[self.feature].mean(dim=(2, 3))
        return normalize(g, dim=1), normalize(self.head(g), dim=1)


class TextbookStep:
    """Call it with a batch of float views, ``anchor``, ``positive`` (B, 3, H, W) and ``small`` (B, N, 3, h, w), on the
    host; returns the loss."""

    def __init__(self, cfg: CfgNode):
        self._device = torch.device(cfg.MODEL.DEVICE)
        self.encoder = TextbookEncoder(cfg).to(self._device)
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        solver, moco = cfg.SOLVER, cfg.MOCO
        decay = {"momentum": solver.MOMENTUM, "weight_decay": solver.WEIGHT_DECAY}
        self._optimizer = torch.optim.SGD(self.encoder.parameters(), solver.BASE_LR, **decay)
        self._momentum, self._neighbor_weight = moco.MOMENTUM, cfg.NEIGHBORS.WEIGHT
        self._options = {"temperature": moco.TEMPERATURE, "num_neighbors": cfg.NEIGHBORS.NUM_NEIGHBORS}
        shapes = ((moco.QUEUE_SIZE, width) for width in (self.encoder.feature_dim, moco.EMBEDDING_DIM))
        self.queue_g, self.queue = (normalize(torch.randn(shape, device=self._device), dim=1) for shape in shapes)
        self._pointer = 0

    def __call__(self, batch: dict[str, Tensor]) -> float:
        batch = {name: views.to(self._device) for name, views in batch.items()}
        with torch.no_grad():
            for mean, value in zip(self.momentum_encoder.parameters(), self.encoder.parameters(), strict=True):
                mean.data = mean.data * self._momentum + value.data * (1 - self._momentum)
            anchors_g, anchors = self.momentum_encoder(batch["anchor"])
        g, h = (rows[:, None] for rows in self.encoder(batch["positive"]))
        if "small" in batch:
            small = [rows.unflatten(0, batch["small"].shape[:2]) for rows in self.encoder(batch["small"].flatten(0, 1))]
            g, h = torch.cat([g, small[0]], dim=1), torch.cat([h, small[1]], dim=1)
        losses = textbook_losses(h, anchors, self.queue, g, self.queue_g, **self._options)
        loss = losses["loss_inst"] + self._neighbor_weight * losses["loss_nn"]
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        places = torch.arange(self._pointer, self._pointer + len(anchors), device=self._device) % len(self.queue)
        self.queue_g[places], self.queue[places] = anchors_g, anchors
        self._pointer = (self._pointer + len(anchors)) % len(self.queue)
        return loss.item()
