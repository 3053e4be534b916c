"""From one image to its views: draw the boxes, cut, resize, give each view its look."""

from dataclasses import dataclass
from typing import Self, TypedDict

import numpy as np

from revisit.data.augmentation import BLUR_PROBABILITY, GREY_PROBABILITY, draw_look
from revisit.data.augmentation_on_arrays import apply_look
from revisit.data.augmentation_on_device import RECORD, record_of
from revisit.data.crops import RESAMPLERS, ConstrainedMultiCrop, CropBoxes
from revisit.randomness import Stream, counter_rng

from detectron2.config import CfgNode


class Views(TypedDict, total=False):
    """Views of one image, all uint8 RGB. Absent without small crops: ``small``.

    NAME_looks are there when looks are the device's to apply: the views called NAME have none yet.
    """

    anchor: np.ndarray  # (H, W, 3)
    positive: np.ndarray  # (H, W, 3)
    small: np.ndarray  # (N, h, w, 3)
    boxes: CropBoxes
    anchor_looks: np.ndarray  # () of augmentation_on_device.RECORD
    positive_looks: np.ndarray  # ()
    small_looks: np.ndarray  # (N,)


@dataclass(frozen=True)
class ViewMapper:
    """Anchor, large positive and N small positives of an image (docs/method.md: Views).

    The views are a function of (seed, epoch, image index) and the image alone. The anchor always has the
    standard look; ``policy`` is the positives'. With ``looks_on_device`` looks are drawn, not applied.
    """

    crops: ConstrainedMultiCrop
    large_size: int
    small_size: int
    policy: str
    seed: int
    grey_probability: float = GREY_PROBABILITY
    blur_probability: float = BLUR_PROBABILITY
    looks_on_device: bool = False
    resampling: str = "area"

    @classmethod
    def from_config(cls, cfg: CfgNode) -> Self:
        """The mapper that cfg.VIEWS and cfg.SEED describe."""
        views, on_device = cfg.VIEWS, cfg.DATALOADER.AUGMENT_ON_DEVICE
        keys = ("LARGE_SCALE", "SMALL_SCALE", "NUM_SMALL", "MIN_OVERLAP", "MAX_IOU")
        crops = ConstrainedMultiCrop(**{key.lower(): views[key] for key in keys})
        sizes = (views.LARGE_SIZE, views.SMALL_SIZE)
        shares = (views.GREY_PROBABILITY, views.BLUR_PROBABILITY)
        return cls(crops, *sizes, views.POLICY, cfg.SEED, *shares, on_device, views.RESAMPLING)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of an image's views, by name."""
        large, small = ((size, size, 3) for size in (self.large_size, self.small_size))
        some = {"small": (self.crops.num_small, *small)} if self.crops.num_small else {}
        return {"anchor": large, "positive": large, **some}

    def __call__(self, image: np.ndarray, epoch: int, index: int, room: dict[str, np.ndarray] | None = None) -> Views:
        """Draw the views of image ``index`` in ``epoch``, into ``room``, uint8 of ``shapes``, if that is given."""
        rng = counter_rng(self.seed, Stream.VIEWS, epoch, index)
        boxes = self.crops(*image.shape[:2], rng)
        views = room or {name: np.empty(shape, np.uint8) for name, shape in self.shapes.items()}
        names = views if self.looks_on_device else ()
        resize = RESAMPLERS[self.resampling]
        looks = {f"{name}_looks": np.empty(views[name].shape[:-3], RECORD) for name in names}

        def fill(name: str, place: tuple[int, ...], box: np.ndarray, policy: str) -> None:
            look = draw_look(
                policy, rng, grey_probability=self.grey_probability, blur_probability=self.blur_probability
            )
            view = views[name][place]
            if self.looks_on_device:
                resize(image, box, len(view), view)
                looks[f"{name}_looks"][place] = record_of(look, len(view))
            else:
                view[...] = apply_look(resize(image, box, len(view)), look)

        fill("anchor", (), boxes.anchor, "standard")
        fill("positive", (), boxes.positive, self.policy)
        for n, box in enumerate(boxes.small):
            fill("small", (n,), box, self.policy)
        return Views(**views, **looks, boxes=boxes)
