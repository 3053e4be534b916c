"""From one image to its views: draw the boxes and the looks, cut, resize, give each view its look."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self, TypedDict

import numpy as np

from revisit.data.augmentation_on_device import RECORD, record_of
from revisit.data.images.reader import Picture
from revisit.data.randomness import Stream, counter_rng
from revisit.data.views.annotation import DrawnImage, ViewAnnotator, annotator_of
from revisit.data.views.augmentation import BLUR_PROBABILITY, GREY_PROBABILITY, Look, draw_look
from revisit.data.views.augmentation_on_arrays import apply_look
from revisit.data.views.crops import RESAMPLERS, ConstrainedMultiCrop, CropBoxes

from detectron2.config import CfgNode


class Views(TypedDict, total=False):
    """Views of one image, all uint8 RGB. Absent without small crops: ``small``.

    NAME_looks are there when looks are the device's to apply: the views called NAME have none yet.
    """

    anchor: np.ndarray  # (H, W, 3)
    positive: np.ndarray  # (H, W, 3)
    small: np.ndarray  # (N, h, w, 3)
    boxes: CropBoxes  # in px of the whole image
    anchor_looks: np.ndarray  # () of augmentation_on_device.RECORD
    positive_looks: np.ndarray  # ()
    small_looks: np.ndarray  # (N,)
    annotations: dict[str, np.ndarray]  # what the method's ViewAnnotator adds


class ViewPlan(NamedTuple):
    """What is drawn of an image's views before its pixels are known."""

    boxes: CropBoxes  # in px of the whole image
    looks: list[Look]  # of the anchor, the positive and the small positives
    annotations: dict[str, np.ndarray]  # as Views has them


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
    annotator: ViewAnnotator = ViewAnnotator()

    @classmethod
    def from_config(cls, cfg: CfgNode) -> Self:
        """The mapper that cfg.VIEWS and cfg.SEED describe."""
        views, on_device = cfg.VIEWS, cfg.DATALOADER.AUGMENT_ON_DEVICE
        keys = ("LARGE_SCALE", "SMALL_SCALE", "NUM_SMALL", "MIN_OVERLAP", "MAX_IOU")
        crops = ConstrainedMultiCrop(**{key.lower(): views[key] for key in keys})
        sizes = (views.LARGE_SIZE, views.SMALL_SIZE)
        shares = (views.GREY_PROBABILITY, views.BLUR_PROBABILITY)
        how = (views.RESAMPLING, annotator_of(cfg))
        return cls(crops, *sizes, views.POLICY, cfg.SEED, *shares, on_device, *how)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of an image's views, by name."""
        large, small = ((size, size, 3) for size in (self.large_size, self.small_size))
        some = {"small": (self.crops.num_small, *small)} if self.crops.num_small else {}
        return {"anchor": large, "positive": large, **some}

    def __call__(self, image: np.ndarray, epoch: int, index: int, room: dict[str, np.ndarray] | None = None) -> Views:
        """Draw the views of image ``index`` in ``epoch``, into ``room``, uint8 of ``shapes``, if that is given."""
        return self._cut(image, self.plan(*image.shape[:2], epoch, index), room)

    def of_picture(self, picture: Picture, epoch: int, index: int, room: dict[str, np.ndarray] | None = None) -> Views:
        """As calling the mapper with the decoded image.

        Raises:
            UnreadableImageError: see Picture.decode.
        """
        image = picture.decode()
        return self._cut(image, self.plan(*image.shape[:2], epoch, index, picture), room)

    def plan(self, height: int, width: int, epoch: int, index: int, picture: Picture | None = None) -> ViewPlan:
        """Draw all boxes, then all looks, of image ``index`` in ``epoch``, which has ``height`` x ``width`` px.

        The annotator sees the ``picture``'s record.
        """
        rng = counter_rng(self.seed, Stream.VIEWS, epoch, index)
        boxes = self.crops(height, width, rng)
        shares = {"grey_probability": self.grey_probability, "blur_probability": self.blur_probability}
        policies = ["standard"] + [self.policy] * (1 + self.crops.num_small)
        looks = [draw_look(policy, rng, **shares) for policy in policies]
        sizes = np.array([self.large_size] * 2 + [self.small_size] * self.crops.num_small)
        crops = np.vstack(boxes[:3])
        record = picture.record if picture else {}
        generator = partial(counter_rng, self.seed, Stream.ANNOTATIONS, epoch, index)
        annotations = self.annotator(DrawnImage(record, height, width, crops, looks, sizes, generator))
        return ViewPlan(boxes, looks, annotations)

    def _cut(self, image: np.ndarray, plan: ViewPlan, room: dict[str, np.ndarray] | None) -> Views:
        """The views of an image by their plan."""
        views = room or {name: np.empty(shape, np.uint8) for name, shape in self.shapes.items()}
        resize = RESAMPLERS[self.resampling]
        boxes = np.vstack(plan.boxes[:3])  # (2 + N, 4)
        for (name, place), box, look in zip(self._places, boxes, plan.looks, strict=True):
            view = views[name][place]
            if self.looks_on_device:
                resize(image, box, len(view), view)
            else:
                view[...] = apply_look(resize(image, box, len(view)), look)
        looks = self.looks_of(plan) if self.looks_on_device else {}
        return Views(**views, **looks, annotations=plan.annotations, boxes=plan.boxes)

    @property
    def _places(self) -> list[tuple[str, tuple[int, ...]]]:
        return [("anchor", ()), ("positive", ()), *(("small", (n,)) for n in range(self.crops.num_small))]

    def looks_of(self, plan: ViewPlan) -> dict[str, np.ndarray]:
        """NAME_looks, as Views has them, for the device to apply."""
        looks = {f"{name}_looks": np.empty(shape[:-3], RECORD) for name, shape in self.shapes.items()}
        for (name, place), look in zip(self._places, plan.looks, strict=True):
            looks[f"{name}_looks"][place] = record_of(look, self.shapes[name][-2])
        return looks
