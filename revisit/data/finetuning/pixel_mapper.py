"""From a record with a label or a depth per pixel to a model's input: read, and in training scale, cut and flip."""

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import affine

from revisit.data.deep_pixels import bit_depth
from revisit.data.images.reader import read_record, require_record
from revisit.data.sources.catalog import register
from revisit.data.sources.labels import VOID, check_size, read_depth, read_labels
from revisit.errors import expect
from revisit.keys import NETWORK, PIXELS, PIXELWISE, declare, list_of, number, one_of, optional

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

FLIPS = ("horizontal", "none")
# Ids and distances must not mix. Both resizings count pixels by their centres, so that image and labels stay aligned.
SMOOTH = {"mode": "bilinear", "antialias": True}
EXACT = {"mode": "nearest-exact"}


declare(
    "INPUT.RANDOM_SCALE",
    (0.5, 2.0),
    "Training images are scaled by a factor from this range, or by one of these factors, then flipped and cut to "
    "INPUT.CROP.SIZE px.",
    list_of(number(0, 64, open_low=True), least=1, rising=True),
    read_by=PIXELWISE,
)
declare("INPUT.RANDOM_SCALE_SAMPLING", "range", "Which of the two.", one_of("range", "choice"), read_by=PIXELWISE)
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
class Placement:
    """Which part of an image a training sample shows, and how."""

    scale: float
    zoom: float  # by how much the image grows around its centre, in its own frame: the scale, or 1
    angle: float  # by how much it turns there, degrees
    scaled_size: tuple[int, int]  # (height, width) of the whole image once scaled, px
    corner: tuple[int, int]  # (top, left) of the window in the scaled image, px
    flip: bool  # left and right of the window change places


class PixelMapper:
    """Maps a record to an input of SemanticSegmentor or DepthEstimator.

    The result is the record with ``image``, uint8 (3, H, W) RGB, and the ``height`` and ``width`` of the file, px; for
    tests that is all, and INPUT.SQUASH alone resizes. In training, image and maps turn, are scaled by a factor s of
    INPUT.RANDOM_SCALE, cut to INPUT.CROP.SIZE px if INPUT.CROP.ENABLED, and flipped half of the time if
    INPUT.RANDOM_FLIP is "horizontal", by numpy's global generator. What of a sample the image does not fill has the
    rounded pixel mean; INPUT.RESAMPLING opencv fills differently what a turned image leaves free. Then there are also,
    as far as the record names a file,

    - ``sem_seg``, int64 (H, W): train ids, and 255 for void and what is not filled.
    - ``depth``, float32 (H, W) metres: divided by s, since a thing that looks s times larger is s times nearer; 0
      where it is missing or not filled.

    TEST.RESIZE_BACK nearest gives tests the ``height`` and ``width`` of ``image``, and those of the file as
    ``file_size``: the model then answers in the size of its input.

    Raises:
        UserError: on construction, an INPUT that means something else, or data sets of DATASETS.TRAIN with different
            classes; on a call, a file that cannot be read, or two that differ in size.
        UnreadableImageError: for training, an image that cannot be read.
    """

    def __init__(self, cfg: CfgNode, is_train: bool):
        check_input(cfg)
        self._is_train = is_train
        self._bit_depth = bit_depth(cfg)
        self._factors = tuple(cfg.INPUT.RANDOM_SCALE)
        self._sampling = cfg.INPUT.RANDOM_SCALE_SAMPLING
        self._flip = cfg.INPUT.RANDOM_FLIP == "horizontal"
        self._rotation, self._squash = cfg.INPUT.RANDOM_ROTATION, cfg.INPUT.SQUASH and tuple(cfg.INPUT.SQUASH)
        self._by_opencv = cfg.INPUT.RESAMPLING == "opencv"
        self._answers_in_input_size = cfg.TEST.RESIZE_BACK == "nearest"
        self._crop = tuple(map(int, cfg.INPUT.CROP.SIZE)) if cfg.INPUT.CROP.ENABLED else None
        self._fill = torch.tensor(cfg.MODEL.PIXEL_MEAN).round().clamp(0, 255).to(torch.uint8)
        self._classes = num_classes_and_offset(cfg.DATASETS.TRAIN) if is_train else None

    def read(self, record: dict) -> np.ndarray:
        """The (H, W, 3) uint8 RGB pixels of a record's image."""
        if self._is_train:
            return read_record(record, self._bit_depth, complete=True)
        return require_record(record, self._bit_depth)

    def __call__(self, record: dict, pixels: np.ndarray | None = None) -> dict:
        """Map a record; ``pixels`` are those of ``read`` where the caller has them."""
        image = torch.from_numpy(self.read(record) if pixels is None else pixels).permute(2, 0, 1)
        size = tuple(image.shape[1:])
        sample = {**record, "height": size[0], "width": size[1]}
        if not self._is_train:
            return self._for_test(sample, image)
        placement = self._draw(size)

        def placed(file_name: str, pixels: np.ndarray, fill: int) -> torch.Tensor:
            check_size(file_name, pixels, record["file_name"], size)
            return self._place(torch.from_numpy(pixels)[None], placement, EXACT, torch.tensor([fill]))[0]

        sample["image"] = self._place(image, placement, SMOOTH, self._fill)
        mask, depth = record.get("sem_seg_file_name"), record.get("depth_file_name")
        remedy = "DATASETS.TRAIN expects data sets for segmentation or depth (datasets/README.md)"
        expect(mask or depth, f"the record of {record['file_name']} has neither labels nor depth: {remedy}")
        if mask:
            expect(self._classes, f"{mask} has classes, but no data set of DATASETS.TRAIN says which")
            sample["sem_seg"] = placed(mask, read_labels(mask, *self._classes), VOID).long()
        if depth:
            sample["depth"] = placed(depth, read_depth(depth), 0) / placement.scale
        return sample

    def _for_test(self, sample: dict, image: torch.Tensor) -> dict:
        file_size = tuple(image.shape[1:])
        if self._squash:
            whole = Placement(1.0, 1.0, 0.0, self._squash, (0, 0), False)
            image = self._resampled(image, whole, SMOOTH, self._fill)
        if self._answers_in_input_size:
            sample |= {"height": image.shape[1], "width": image.shape[2], "file_size": file_size}
        return {**sample, "image": image.contiguous()}

    def _draw(self, size: tuple[int, int]) -> Placement:
        choice = self._sampling == "choice"
        scale = float(np.random.choice(self._factors) if choice else np.random.uniform(*self._factors))
        angle = float(np.random.uniform(-self._rotation, self._rotation)) if self._rotation else 0.0
        scaled_size = self._squash or tuple(max(1, round(length * scale)) for length in size)
        crop = self._crop or scaled_size
        spare = (max(0, length - side) for length, side in zip(scaled_size, crop, strict=True))
        corner = tuple(int(np.random.randint(pixels + 1)) for pixels in spare)
        zoom = scale if self._squash else 1.0
        return Placement(scale, zoom, angle, scaled_size, corner, self._flip and bool(np.random.random() < 0.5))

    def _place(self, pixels: torch.Tensor, placement: Placement, resizing: dict, fill: torch.Tensor) -> torch.Tensor:
        """The window of ``pixels`` (C, H, W); what the image does not fill is ``fill`` (C,)."""
        fill = fill.to(pixels.dtype)[:, None, None]
        pixels = self._resampled(pixels, placement, resizing, fill)
        height, width = self._crop or placement.scaled_size
        top, left = placement.corner
        window = pixels[:, top : top + height, left : left + width]
        if placement.flip and not self._by_opencv:
            window = window.flip(-1)
        placed = fill.repeat(1, height, width)
        placed[:, : window.shape[1], : window.shape[2]] = window
        return placed

    def _resampled(
        self, pixels: torch.Tensor, placement: Placement, resizing: dict, fill: torch.Tensor
    ) -> torch.Tensor:
        """``pixels`` (C, H, W) turned, zoomed and scaled."""
        if self._by_opencv:
            return _resampled_by_opencv(pixels, placement, cv2.INTER_CUBIC if resizing is SMOOTH else cv2.INTER_NEAREST)
        if placement.angle or placement.zoom != 1:
            pixels = _turn(pixels, placement, resizing, fill)
        return F.interpolate(pixels[None], size=placement.scaled_size, **resizing)[0]


def _resampled_by_opencv(pixels: torch.Tensor, placement: Placement, how: int) -> torch.Tensor:
    """``pixels`` (C, H, W) flipped, turned and zoomed in a frame of their size, and scaled, as in the published codes.

    Flipped first, since their centre, (W / 2, H / 2) where pixels count from their middles, is not that of the mirrored
    image.
    """
    array = pixels.permute(1, 2, 0).numpy()
    height, width = array.shape[:2]
    array = cv2.flip(array, 1) if placement.flip else array
    # Counter-clockwise, where Placement's angle is clockwise.
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), -placement.angle, placement.zoom)
    array = cv2.warpAffine(array, turn, (width, height), flags=how)
    array = cv2.resize(array, placement.scaled_size[::-1], interpolation=how)
    return torch.from_numpy(array).reshape(*placement.scaled_size, -1).permute(2, 0, 1)


def _turn(pixels: torch.Tensor, placement: Placement, resizing: dict, fill: torch.Tensor) -> torch.Tensor:
    """``pixels`` (C, H, W), rotated and zoomed around their centre in a frame of their size."""
    between = InterpolationMode.BILINEAR if resizing is SMOOTH else InterpolationMode.NEAREST
    turn = {"angle": placement.angle, "scale": placement.zoom, "translate": [0, 0], "shear": [0.0]}
    # Around 0, because torchvision darkens the border where it blends in a fill of its own.
    turned = affine(pixels.float() - fill, **turn, interpolation=between) + fill
    return turned if pixels.is_floating_point() else turned.round().to(pixels.dtype)


def check_input(cfg: CfgNode) -> None:
    """Raises UserError where cfg.INPUT asks for something that PixelMapper does not do."""
    crop, choice = cfg.INPUT.CROP, cfg.INPUT.RANDOM_SCALE_SAMPLING == "choice"
    whole_pixels = crop.TYPE == "absolute" and all(side == int(side) >= 1 for side in crop.SIZE)
    depth = cfg.MODEL.META_ARCHITECTURE == "DepthEstimator"
    wanted = {
        "INPUT.RANDOM_SCALE": (choice or len(cfg.INPUT.RANDOM_SCALE) == 2, "the lowest and highest of a range"),
        "INPUT.SQUASH": (not (cfg.INPUT.SQUASH and crop.ENABLED), "None where INPUT.CROP.ENABLED is True"),
        "TEST.RESIZE_BACK": (cfg.TEST.RESIZE_BACK == "bilinear" or not depth, "bilinear, as depths have no classes"),
        "INPUT.FORMAT": (cfg.INPUT.FORMAT == "RGB", "RGB"),
        "INPUT.RANDOM_FLIP": (cfg.INPUT.RANDOM_FLIP in FLIPS, f"one of {', '.join(FLIPS)}"),
        "INPUT.CROP": (whole_pixels or not crop.ENABLED, "TYPE absolute and SIZE in whole pixels"),
    }
    for key, (holds, expected) in wanted.items():
        expect(holds, f"{key} of segmentation and depth: expected {expected}")


def num_classes_and_offset(names: tuple[str, ...]) -> tuple[int, int] | None:
    """What read_labels needs to know, by the metadata of the data sets; None if none of them has classes."""
    counts = {}
    for name in names:
        register(name)
        metadata = MetadataCatalog.get(name)
        if classes := metadata.get("stuff_classes"):
            counts[name] = (tuple(classes), metadata.get("label_offset", 0))
            expect(metadata.get("ignore_label", VOID) == VOID, f"data set {name}: expected the ignore_label {VOID}")
    message = f"DATASETS.TRAIN: {', '.join(counts)} count different classes, expected data sets with the same"
    expect(len(set(counts.values())) <= 1, message)
    return next(((len(classes), offset) for classes, offset in counts.values()), None)
