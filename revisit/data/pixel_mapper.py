"""From a record with a label or a depth per pixel to a model's input: read, and in training scale, cut and flip."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from revisit.config import bit_depth
from revisit.data.catalog import register
from revisit.data.labels import VOID, check_size, read_depth, read_labels
from revisit.data.reader import require_image
from revisit.errors import expect

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

FLIPS = ("horizontal", "none")
_HERE = "segmentation and depth here"
# Ids and distances must not mix. Both resizings count pixels by their centres, so that image and labels stay aligned.
SMOOTH = {"mode": "bilinear", "antialias": True}
EXACT = {"mode": "nearest-exact"}


@dataclass(frozen=True)
class Placement:
    """Which part of an image a training sample shows, and how."""

    scale: float
    scaled_size: tuple[int, int]  # (height, width) of the whole image once scaled, px
    corner: tuple[int, int]  # (top, left) of the window in the scaled image, px
    flip: bool  # left and right of the window change places


class PixelMapper:
    """Maps a record to an input of SemanticSegmentor or DepthEstimator.

    The result is the record with ``image``, uint8 (3, H, W) RGB, and the ``height`` and ``width`` of the file, px.
    For tests that is all. In training, image and maps are scaled by a factor s of INPUT.RANDOM_SCALE, cut to
    INPUT.CROP.SIZE px if INPUT.CROP.ENABLED, and flipped half of the time if INPUT.RANDOM_FLIP is "horizontal", by
    numpy's global generator; no other size of INPUT changes anything. What of a crop a small image does not fill has
    the rounded pixel mean. Then there are also, as far as the record names a file,

    - ``sem_seg``, int64 (H, W): train ids, and 255 for void and what is not filled.
    - ``depth``, float32 (H, W) metres: divided by s, since a thing that looks s times larger is s times nearer; 0
      where it is missing or not filled.

    Args:
        cfg: a config with Revisit's keys. All data sets of DATASETS.TRAIN with classes must have the same ones.
        is_train: whether images are changed at random and labels are read.

    Raises:
        UserError: on construction, an INPUT that means something else; on a call, a file that cannot be read, or
            two that differ in size.
    """

    def __init__(self, cfg: CfgNode, is_train: bool):
        check_input(cfg)
        self._is_train = is_train
        self._bit_depth = bit_depth(cfg)
        self._factors = tuple(cfg.INPUT.RANDOM_SCALE)
        self._sampling = cfg.INPUT.RANDOM_SCALE_SAMPLING
        self._flip = cfg.INPUT.RANDOM_FLIP == "horizontal"
        self._crop = tuple(map(int, cfg.INPUT.CROP.SIZE)) if cfg.INPUT.CROP.ENABLED else None
        self._fill = torch.tensor(cfg.MODEL.PIXEL_MEAN).round().clamp(0, 255).to(torch.uint8)
        self._classes = _num_classes_and_offset(cfg.DATASETS.TRAIN) if is_train else None

    def __call__(self, record: dict) -> dict:
        image = torch.from_numpy(require_image(record["file_name"], self._bit_depth)).permute(2, 0, 1)
        size = tuple(image.shape[1:])
        sample = {**record, "height": size[0], "width": size[1]}
        if not self._is_train:
            return {**sample, "image": image.contiguous()}
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

    def _draw(self, size: tuple[int, int]) -> Placement:
        choice = self._sampling == "choice"
        scale = float(np.random.choice(self._factors) if choice else np.random.uniform(*self._factors))
        scaled_size = tuple(max(1, round(length * scale)) for length in size)
        crop = self._crop or scaled_size
        spare = (max(0, length - side) for length, side in zip(scaled_size, crop, strict=True))
        corner = tuple(int(np.random.randint(pixels + 1)) for pixels in spare)
        return Placement(scale, scaled_size, corner, self._flip and bool(np.random.random() < 0.5))

    def _place(self, pixels: torch.Tensor, placement: Placement, resizing: dict, fill: torch.Tensor) -> torch.Tensor:
        """The window of ``pixels`` (C, H, W); what it lacks at its right and bottom is ``fill`` (C,)."""
        pixels = F.interpolate(pixels[None], size=placement.scaled_size, **resizing)[0]
        height, width = self._crop or placement.scaled_size
        top, left = placement.corner
        window = pixels[:, top : top + height, left : left + width]
        if placement.flip:
            window = window.flip(-1)
        placed = fill.to(pixels.dtype)[:, None, None].repeat(1, height, width)
        placed[:, : window.shape[1], : window.shape[2]] = window
        return placed


def check_input(cfg: CfgNode) -> None:
    """Raises UserError where cfg.INPUT asks for something that PixelMapper does not do."""
    flip, crop, factors = cfg.INPUT.RANDOM_FLIP, cfg.INPUT.CROP, tuple(cfg.INPUT.RANDOM_SCALE)
    two = cfg.INPUT.RANDOM_SCALE_SAMPLING == "choice" or len(factors) == 2
    expect(two, f"INPUT.RANDOM_SCALE is {factors}: INPUT.RANDOM_SCALE_SAMPLING range expects the lowest and highest")
    expect(cfg.INPUT.FORMAT == "RGB", f"INPUT.FORMAT is {cfg.INPUT.FORMAT}: {_HERE} expect RGB")
    expect(flip in FLIPS, f"INPUT.RANDOM_FLIP is {flip!r}: {_HERE} expect {' or '.join(FLIPS)}")
    whole = crop.TYPE == "absolute" and all(side == int(side) >= 1 for side in crop.SIZE)
    found = f"INPUT.CROP is {crop.TYPE} {tuple(crop.SIZE)}"
    expect(whole or not crop.ENABLED, f"{found}: {_HERE} expect TYPE absolute and SIZE in whole pixels")


def _num_classes_and_offset(names: tuple[str, ...]) -> tuple[int, int] | None:
    """What read_labels needs to know, by the metadata of the data sets; None if none of them has classes."""
    found = {}
    for name in names:
        register(name)
        metadata = MetadataCatalog.get(name)
        if classes := metadata.get("stuff_classes"):
            found[name] = (tuple(classes), metadata.get("label_offset", 0), metadata.get("ignore_label", VOID))
    if not found:
        return None
    name, (classes, offset, ignored) = next(iter(found.items()))
    names = ", ".join(found)
    same = len(set(found.values())) == 1
    expect(same, f"DATASETS.TRAIN: {names} count different classes, expected data sets with the same")
    expect(ignored == VOID, f"data set {name} has the ignore_label {ignored} in its metadata: expected {VOID}")
    return len(classes), offset
