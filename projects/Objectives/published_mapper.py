"""Images turned, zoomed and squashed as in published codes (docs/method.md: Paper and published code)."""

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import affine

from revisit.data.finetuning.pixel_mapper import (
    PIXEL_MAPPER_REGISTRY,
    SMOOTH,
    PixelMapper,
    Placement,
    check_input,
)
from revisit.data.views.resampling import each_alone
from revisit.errors import expect
from revisit.keys import NETWORK, PIXELS, PIXELWISE, declare, list_of, number, one_of, optional

from detectron2.config import CfgNode

declare(
    "INPUT.RANDOM_SCALE_SAMPLING",
    "range",
    "range: INPUT.RANDOM_SCALE is the lowest and highest factor. choice: it lists the factors.",
    one_of("range", "choice"),
    read_by=PIXELWISE,
)
declare(
    "INPUT.RANDOM_ROTATION",
    0.0,
    "Degrees: training images turn by at most this, either way, around their centre.",
    number(0, 180, "degrees"),
    read_by=PIXELWISE,
)
declare(
    "INPUT.SQUASH",
    None,
    "(height, width) px: the whole image is resized to it, whatever its shape, in training and tests; RANDOM_SCALE "
    "then zooms in and out around its centre. None: images keep their shape.",
    optional(list_of(PIXELS, 2)),
    read_by=PIXELWISE,
    scope=NETWORK,
)
declare(
    "INPUT.RESAMPLING",
    "antialias",
    "How pixels are resized, turned and zoomed. antialias: images by PIL's bilinear filter, labels and depth by the "
    "nearest centre; what a turned image leaves free has the pixel mean, is void and without depth. opencv: as in the "
    "published codes, by its cubic filter and its nearest pixel, after the flip; what is left free is black and of "
    "class 0.",
    one_of("antialias", "opencv"),
    read_by=PIXELWISE,
    scope=NETWORK,
)
declare(
    "TEST.RESIZE_BACK",
    "bilinear",
    "How a segmentation returns to the size of the file: bilinear (scores) or nearest (classes, by OpenCV's nearest "
    "pixel).",
    one_of("bilinear", "nearest"),
    may_change=True,
    read_by="SemanticSegmentor",
)


@dataclass(frozen=True)
class PublishedPlacement(Placement):
    """A placement of an image that also turns and grows around its centre, in its own frame."""

    angle: float = 0.0  # degrees
    zoom: float = 1.0


@PIXEL_MAPPER_REGISTRY.register()
class PublishedMapper(PixelMapper):
    """PixelMapper that also turns, zooms and squashes images, in training before the cut.

    INPUT.SQUASH resizes images for tests too. INPUT.RESAMPLING opencv fills differently what a turned image leaves
    free. TEST.RESIZE_BACK nearest gives tests the ``height`` and ``width`` of ``image``, and those of the file as
    ``file_size``: the model then answers in the size of its input.
    """

    def __init__(self, cfg: CfgNode, is_train: bool):
        super().__init__(cfg, is_train)
        self._chooses = cfg.INPUT.RANDOM_SCALE_SAMPLING == "choice"
        self._rotation = cfg.INPUT.RANDOM_ROTATION
        self._squash = cfg.INPUT.SQUASH and tuple(cfg.INPUT.SQUASH)
        self._by_opencv = cfg.INPUT.RESAMPLING == "opencv"
        self._answers_in_input_size = cfg.TEST.RESIZE_BACK == "nearest"

    @classmethod
    def reads(cls, cfg: CfgNode) -> bool:
        words = (cfg.INPUT.RANDOM_SCALE_SAMPLING, cfg.INPUT.RESAMPLING, cfg.TEST.RESIZE_BACK)
        has_other_words = words != ("range", "antialias", "bilinear")
        return has_other_words or bool(cfg.INPUT.RANDOM_ROTATION or cfg.INPUT.SQUASH)

    @classmethod
    def check(cls, cfg: CfgNode) -> None:
        of = "of segmentation and depth: expected"
        expect(
            cfg.INPUT.RANDOM_SCALE_SAMPLING != "range" or len(cfg.INPUT.RANDOM_SCALE) == 2,
            f"INPUT.RANDOM_SCALE {of} the lowest and highest of a range",
        )
        expect(
            not (cfg.INPUT.SQUASH and cfg.INPUT.CROP.ENABLED),
            f"INPUT.SQUASH {of} None where INPUT.CROP.ENABLED is True",
        )
        expect(
            cfg.TEST.RESIZE_BACK == "bilinear" or cfg.MODEL.META_ARCHITECTURE != "DepthEstimator",
            f"TEST.RESIZE_BACK {of} bilinear, as depths have no classes",
        )
        check_input(cfg)

    @classmethod
    def recipe(cls, cfg: CfgNode) -> dict:
        keys = cfg.INPUT
        return super().recipe(cfg) | {
            "random_rotation": keys.RANDOM_ROTATION,
            "squash": keys.SQUASH and list(keys.SQUASH),
            "random_scale": {"factors": list(keys.RANDOM_SCALE), "sampling": keys.RANDOM_SCALE_SAMPLING},
            "resampling": keys.RESAMPLING,
        }

    def for_test(self, sample: dict, image: torch.Tensor) -> dict:
        file_size = tuple(image.shape[1:])
        if self._squash:
            whole = PublishedPlacement(1.0, self._squash, (0, 0), False)
            image = self.resize(image, whole, SMOOTH, self._fill)
        if self._answers_in_input_size:
            sample |= {"height": image.shape[1], "width": image.shape[2], "file_size": file_size}
        return super().for_test(sample, image)

    def draw(self, size: tuple[int, int]) -> PublishedPlacement:
        scale = float(np.random.choice(self._factors) if self._chooses else np.random.uniform(*self._factors))
        angle = float(np.random.uniform(-self._rotation, self._rotation)) if self._rotation else 0.0
        scaled_size = self._squash or tuple(max(1, round(length * scale)) for length in size)
        zoom = scale if self._squash else 1.0
        return PublishedPlacement(scale, scaled_size, self.draw_corner(scaled_size), self.draw_flip(), angle, zoom)

    def resize(
        self, pixels: torch.Tensor, placement: PublishedPlacement, resizing: dict, fill: torch.Tensor
    ) -> torch.Tensor:
        if self._by_opencv:
            return _resized_by_opencv(pixels, placement, cv2.INTER_CUBIC if resizing is SMOOTH else cv2.INTER_NEAREST)
        if placement.angle or placement.zoom != 1:
            pixels = _turn(pixels, placement, resizing, fill)
        return super().resize(pixels, placement, resizing, fill)

    def flip(self, window: torch.Tensor, placement: PublishedPlacement) -> torch.Tensor:
        return window if self._by_opencv else super().flip(window, placement)


def _resized_by_opencv(pixels: torch.Tensor, placement: PublishedPlacement, how: int) -> torch.Tensor:
    """``pixels`` (C, H, W) flipped, turned and zoomed in a frame of their size, and scaled, as in the published codes.

    Flipped first, since their centre, (W / 2, H / 2) where pixels count from their middles, is not that of the mirrored
    image.
    """

    def changed(array: np.ndarray) -> np.ndarray:
        height, width = array.shape[:2]
        array = cv2.flip(array, 1) if placement.flip else array
        # Counter-clockwise, where Placement's angle is clockwise.
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), -placement.angle, placement.zoom)
        array = cv2.warpAffine(array, turn, (width, height), flags=how)
        return cv2.resize(array, placement.scaled_size[::-1], interpolation=how)

    array = each_alone(changed, pixels.permute(1, 2, 0).numpy())
    return torch.from_numpy(array).permute(2, 0, 1)


def _turn(pixels: torch.Tensor, placement: PublishedPlacement, resizing: dict, fill: torch.Tensor) -> torch.Tensor:
    """``pixels`` (C, H, W), rotated and zoomed around their centre in a frame of their size."""
    between = InterpolationMode.BILINEAR if resizing is SMOOTH else InterpolationMode.NEAREST
    # Around 0, because torchvision darkens the border where it blends in a fill of its own.
    turned = (
        affine(
            pixels.float() - fill,
            angle=placement.angle,
            scale=placement.zoom,
            translate=[0, 0],
            shear=[0.0],
            interpolation=between,
        )
        + fill
    )
    return turned if pixels.is_floating_point() else turned.round().to(pixels.dtype)
