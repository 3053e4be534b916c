"""From a record with a label or a depth per pixel to a model's input: read, and in training scale, cut and flip."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from revisit.data.images.deep_images import pixel_format
from revisit.data.images.image_bytes import PADDED, SEEN, WINDOW
from revisit.data.images.reader import require_record
from revisit.data.sources.catalog import register
from revisit.data.sources.labels import VOID, check_size, read_depth, read_labels
from revisit.errors import expect
from revisit.keys import PIXELWISE, declare, list_of, number

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

FLIPS = ("horizontal", "none")
# Ids and distances must not mix. Both resizings count pixels by their centres, so that image and labels stay aligned.
SMOOTH = {"mode": "bilinear", "antialias": True}
EXACT = {"mode": "nearest-exact"}
Size = tuple[int, int]  # height and width, px


declare(
    "INPUT.RANDOM_SCALE",
    (0.5, 2.0),
    "Training images are scaled by a factor from this range, then cut to INPUT.CROP.SIZE px and flipped.",
    list_of(number(0, 64, open_low=True), least=1, rising=True),
    read_by=PIXELWISE,
)

PIXEL_MAPPER_REGISTRY = Registry("PIXEL_MAPPER")


@dataclass(frozen=True)
class Placement:
    """Which part of an image a training sample shows, and how."""

    scale: float
    scaled_size: Size  # of the whole image once scaled
    corner: tuple[int, int]  # (top, left) of the window in the scaled image, px
    flip: bool  # left and right of the window change places


class PixelMapper:
    """Maps a record to an input of SemanticSegmentor or DepthEstimator.

    The result is the record with ``image``, uint8 (C, H, W), and the ``height`` and ``width`` of the file, px; for
    tests that is all. In training, image and maps are scaled by a factor s of INPUT.RANDOM_SCALE, cut to
    INPUT.CROP.SIZE px if INPUT.CROP.ENABLED, and flipped half of the time if INPUT.RANDOM_FLIP is "horizontal", by
    numpy's global generator. What of a sample the image does not fill has the rounded pixel mean. Then there are also,
    as far as the record names a file,

    - ``sem_seg``, int64 (H, W): train ids, and 255 for void and what is not filled.
    - ``depth``, float32 (H, W) metres: divided by s, since a thing that looks s times larger is s times nearer; 0
      where it is missing or not filled.

    A window of a larger image has its part of the maps. Its px are first as many fewer as its record says that they are
    SEEN, by which no depth changes. For tests it is filled up to the window's side with the rounded pixel mean, and
    ``height`` and ``width`` are that side.

    Another protocol is a subclass in PIXEL_MAPPER_REGISTRY, which says which configs it ``reads``.

    Raises:
        UserError: on construction, an INPUT that means something else, or data sets of DATASETS.TRAIN with different
            classes; on a call, a file that cannot be read, or two that differ in size.
        UnreadableImageError: for training, an image that cannot be read.
    """

    def __init__(self, cfg: CfgNode, is_train: bool):
        self.check(cfg)
        self._is_train = is_train
        self._pixels = pixel_format(cfg)
        self._factors = tuple(cfg.INPUT.RANDOM_SCALE)
        self._flip = cfg.INPUT.RANDOM_FLIP == "horizontal"
        self._crop = tuple(map(int, cfg.INPUT.CROP.SIZE)) if cfg.INPUT.CROP.ENABLED else None
        self._fill = torch.tensor(cfg.MODEL.PIXEL_MEAN).round().clamp(0, 255).to(torch.uint8)
        self._classes = num_classes_and_offset(cfg.DATASETS.TRAIN) if is_train else None

    @classmethod
    def reads(cls, cfg: CfgNode) -> bool:
        """Whether the config asks for what this mapper does and PixelMapper does not."""
        return False

    @classmethod
    def check(cls, cfg: CfgNode) -> None:
        """Raises UserError where cfg.INPUT asks for something that the mapper does not do."""
        is_range = len(cfg.INPUT.RANDOM_SCALE) == 2
        expect(is_range, "INPUT.RANDOM_SCALE of segmentation and depth: expected the lowest and highest of a range")
        check_input(cfg)

    @classmethod
    def recipe(cls, cfg: CfgNode) -> dict:
        """What a dry run says of the training samples."""
        crop = cfg.INPUT.CROP
        scale = {"factors": list(cfg.INPUT.RANDOM_SCALE), "sampling": "range"}
        return {"random_scale": scale, "crop": list(crop.SIZE) if crop.ENABLED else None}

    def read(self, record: dict) -> np.ndarray:
        """The (H, W, C) uint8 pixels of a record's image."""
        return require_record(record, self._pixels, replaceable=self._is_train)

    def __call__(self, record: dict, pixels: np.ndarray | None = None) -> dict:
        """Map a record; ``pixels`` are those of ``read`` where the caller has them."""
        image = torch.from_numpy(self.read(record) if pixels is None else pixels).permute(2, 0, 1)
        size = tuple(image.shape[1:])
        sample = {**record, "height": size[0], "width": size[1]}
        if not self._is_train:
            return self.for_test(sample, image) if PADDED not in record else self._window_for_test(sample, image)
        placement = self.draw(_seen_size(record, size))

        def placed(file_name: str, pixels: np.ndarray, fill: int) -> Tensor:
            check_size(file_name, pixels, record["file_name"], size)
            return self._place(torch.from_numpy(pixels)[None], placement, EXACT, torch.tensor([fill]))[0]

        sample["image"] = self._place(image, placement, SMOOTH, self._fill)
        mask, window = record.get("sem_seg_file_name"), record.get(WINDOW)
        depth = record.get("depth_file_name")
        remedy = "DATASETS.TRAIN expects data sets for segmentation or depth (datasets/README.md)"
        expect(mask or depth, f"the record of {record['file_name']} has neither labels nor depth: {remedy}")
        if mask:
            expect(self._classes, f"{mask} has classes, but no data set of DATASETS.TRAIN says which")
            sample["sem_seg"] = placed(mask, read_labels(mask, *self._classes, window), VOID).long()
        if depth:
            sample["depth"] = placed(depth, read_depth(depth, window), 0) / placement.scale
        return sample

    def for_test(self, sample: dict, image: Tensor) -> dict:
        """The input for a test, of the record with its size and the image, uint8 (C, H, W)."""
        return {**sample, "image": image.contiguous()}

    def _window_for_test(self, sample: dict, image: Tensor) -> dict:
        side = sample[PADDED]
        padded = _filled_up(image, self._fill[:, None, None], (side, side))
        seen = _seen_size(sample, (side, side))
        if seen != (side, side):
            padded = F.interpolate(padded[None], size=seen, **SMOOTH)[0]
        return self.for_test({**sample, "height": side, "width": side}, padded)

    def draw(self, size: Size) -> Placement:
        """A placement of an image of (height, width) px."""
        scale = float(np.random.uniform(*self._factors))
        scaled_size = tuple(max(1, round(length * scale)) for length in size)
        return Placement(scale, scaled_size, self.draw_corner(scaled_size), self.draw_flip())

    def draw_corner(self, scaled_size: Size) -> tuple[int, int]:
        crop = self._crop or scaled_size
        spare = (max(0, length - side) for length, side in zip(scaled_size, crop, strict=True))
        return tuple(int(np.random.randint(pixels + 1)) for pixels in spare)

    def draw_flip(self) -> bool:
        return self._flip and bool(np.random.random() < 0.5)

    def resize(self, pixels: Tensor, placement: Placement, resizing: dict, fill: Tensor) -> Tensor:
        """``pixels`` (C, H, W) in the scaled size; ``fill`` (C, 1, 1) is for what no pixel reaches."""
        return F.interpolate(pixels[None], size=placement.scaled_size, **resizing)[0]

    def flip(self, window: Tensor, placement: Placement) -> Tensor:
        return window.flip(-1) if placement.flip else window

    def _place(self, pixels: Tensor, placement: Placement, resizing: dict, fill: Tensor) -> Tensor:
        """The window of ``pixels`` (C, H, W); what the image does not fill is ``fill`` (C,)."""
        fill = fill.to(pixels.dtype)[:, None, None]
        pixels = self.resize(pixels, placement, resizing, fill)
        height, width = self._crop or placement.scaled_size
        top, left = placement.corner
        window = self.flip(pixels[:, top : top + height, left : left + width], placement)
        return _filled_up(window, fill, (height, width))


def _filled_up(pixels: Tensor, fill: Tensor, size: Size) -> Tensor:
    """``pixels`` (C, h, w), and what they do not fill of (C, H, W) in ``size``: ``fill`` (C, 1, 1)."""
    filled = fill.repeat(1, *size)
    filled[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    return filled


def _seen_size(record: dict, size: Size) -> Size:
    """Px of the file, (H, W), as a network sees them."""
    if SEEN not in record:
        return size
    return tuple(max(1, round(length * record[SEEN] / record[PADDED])) for length in size)


def pixel_mapper_of(cfg: CfgNode) -> type[PixelMapper]:
    """The class in PIXEL_MAPPER_REGISTRY that reads the config, else PixelMapper."""
    return next((mapper for _, mapper in PIXEL_MAPPER_REGISTRY if mapper.reads(cfg)), PixelMapper)


def check_input(cfg: CfgNode) -> None:
    """Raises UserError where cfg.INPUT asks for something that no mapper of pixels does."""
    crop = cfg.INPUT.CROP
    is_size = len(crop.SIZE) == 2 and all(map(_is_whole_side, crop.SIZE))
    fits = not crop.ENABLED or (crop.TYPE == "absolute" and is_size)
    reader = "of segmentation and depth: expected"
    expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT {reader} RGB")
    expect(cfg.INPUT.RANDOM_FLIP in FLIPS, f"INPUT.RANDOM_FLIP {reader} one of {', '.join(FLIPS)}")
    expect(fits, f"INPUT.CROP {reader} TYPE absolute and SIZE height and width, whole px")


def _is_whole_side(side: object) -> bool:
    return isinstance(side, int | float) and float(side).is_integer() and side >= 1


def num_classes_and_offset(names: tuple[str, ...]) -> tuple[int, int] | None:
    """What read_labels needs to know, by the metadata of the data sets; None if none of them has classes."""
    counts = {}
    for name in names:
        metadata = register(name).metadata
        if classes := metadata.get("stuff_classes"):
            counts[name] = (tuple(classes), metadata.get("label_offset", 0))
            expect(metadata.get("ignore_label", VOID) == VOID, f"data set {name}: expected the ignore_label {VOID}")
    message = f"DATASETS.TRAIN: {', '.join(counts)} count different classes, expected data sets with the same"
    expect(len(set(counts.values())) <= 1, message)
    return next(((len(classes), offset) for classes, offset in counts.values()), None)
