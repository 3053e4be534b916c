"""From one image to its views: draw the boxes and the looks, cut, resize, give each view its look."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self, TypedDict

import numpy as np

from revisit.compat.moved import warn_of_moved
from revisit.data.images.deep_images import pixel_format
from revisit.data.images.reader import Picture
from revisit.data.randomness import Stream, counter_rng
from revisit.data.views.annotation import Arrays, DrawnImage, ViewAnnotator, annotator_of
from revisit.data.views.crops import ConstrainedMultiCrop, CropBoxes
from revisit.data.views.looks import DrawLook, Look, anchor_look, positive_look
from revisit.data.views.resampling import RESAMPLERS
from revisit.errors import expect

from detectron2.config import CfgNode
from fvcore.common.registry import Registry


class Views(TypedDict, total=False):
    """Views of one image, all uint8, by the names of ViewMapper.shapes. Absent without small crops: ``small``."""

    anchor: np.ndarray  # (H, W, C)
    positive: np.ndarray  # (H, W, C)
    small: np.ndarray  # (N, h, w, C)
    boxes: CropBoxes  # in px of the whole image
    looks: list[Look]  # of the anchor, the positive and the small positives
    annotations: Arrays  # what the method's ViewAnnotator adds


class ViewPlan(NamedTuple):
    """What is drawn of an image's views before its pixels are known."""

    boxes: CropBoxes  # in px of the whole image
    looks: list[Look]  # of the anchor, the positive and the small positives
    annotations: Arrays  # as Views has them


@dataclass(frozen=True)
class ViewMapper:
    """Anchor, large positive and N small positives of an image (docs/method.md: Views).

    The views are a function of (seed, epoch, image index) and the image alone. A plug-in's subclass may add views: it
    overrides ``shapes`` and ``of_picture``. Or it leaves a part of the work to the model's device: it overrides
    ``fill`` and ``deferred``.
    """

    crops: ConstrainedMultiCrop
    large_size: int  # px
    small_size: int  # px
    seed: int
    anchor_look: DrawLook
    positive_look: DrawLook
    resize: Callable[..., np.ndarray]  # one of RESAMPLERS
    annotator: ViewAnnotator = ViewAnnotator()
    channels: int = 3

    @classmethod
    def from_config(cls, cfg: CfgNode) -> Self:
        """The mapper that cfg.VIEWS and cfg.SEED describe."""
        views = cfg.VIEWS
        return cls(
            crops=ConstrainedMultiCrop.from_config(cfg),
            large_size=views.LARGE_SIZE,
            small_size=views.SMALL_SIZE,
            seed=cfg.SEED,
            anchor_look=anchor_look(cfg),
            positive_look=positive_look(cfg),
            resize=RESAMPLERS[views.RESAMPLING],
            annotator=annotator_of(cfg),
            channels=pixel_format(cfg).count,
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of an image's views, by name."""
        large = (self.large_size, self.large_size, self.channels)
        shapes: dict[str, tuple[int, ...]] = {"anchor": large, "positive": large}
        if self.crops.num_small:
            shapes["small"] = (self.crops.num_small, self.small_size, self.small_size, self.channels)
        return shapes

    def __call__(self, image: np.ndarray, epoch: int, index: int) -> Views:
        """Draw the views of image ``index`` in ``epoch``."""
        return self.of_picture(Picture(image), epoch, index)

    def of_picture(self, picture: Picture, epoch: int, index: int, room: Arrays | None = None) -> Views:
        """As calling the mapper with the decoded image; into ``room``, uint8 of ``shapes``, if that is given.

        Raises:
            UnreadableImageError: see Picture.decode; or the annotator cannot use the image.
        """
        image = picture.decode()
        height, width = image.shape[:2]
        plan = self.plan(height, width, epoch, index, picture.record)
        arrays = room or {name: np.empty(shape, np.uint8) for name, shape in self.shapes.items()}
        views = [arrays["anchor"], arrays["positive"], *arrays.get("small", ())]
        for view, box, look in zip(views, plan.boxes.stacked(), plan.looks, strict=True):
            self.fill(view, image, box, look)
        return Views(**arrays, **plan._asdict())

    def plan(self, height: int, width: int, epoch: int, index: int, record: Mapping | None = None) -> ViewPlan:
        """Draw all boxes, then all looks, of image ``index`` in ``epoch``, which has ``height`` x ``width`` px.

        The annotator sees the ``record`` of the data set.
        """
        rng = counter_rng(self.seed, Stream.VIEWS, epoch, index)
        boxes = self.crops(height, width, rng)
        num_small = self.crops.num_small
        draws = [self.anchor_look] + [self.positive_look] * (1 + num_small)
        looks = [draw(rng) for draw in draws]
        sizes = np.array([self.large_size] * 2 + [self.small_size] * num_small)
        generator = partial(counter_rng, self.seed, Stream.ANNOTATIONS, epoch, index)
        drawn = DrawnImage(record or {}, height, width, boxes.stacked(), looks, sizes, generator)
        return ViewPlan(boxes, looks, self.annotator(drawn))

    def fill(self, view: np.ndarray, image: np.ndarray, box: np.ndarray, look: Look) -> None:
        """Cut ``box`` (4,) from the (H, W, C) image into the (S, S, C) ``view``, with its look."""
        view[...] = look.apply(self.resize(image, box, len(view)))

    def deferred(self, views: list[Views]) -> Callable[[dict, object], dict] | None:
        """What is left for the device to do with the views of a batch: a function of (batch, device) that returns the
        entries of the batch that it changes. Nothing, here."""
        return None


VIEW_MAPPER_REGISTRY = Registry("VIEW_MAPPER")
VIEW_MAPPER_REGISTRY.__doc__ = """
What replaces the mapper of trainings: functions of the config, which return a subclass of ``ViewMapper``, or None to
leave it as it is. Views of further names in its ``shapes`` are in the batch, the plan of a step and the pictures.
"""


def register_mapper(choose: Callable[[CfgNode], type[ViewMapper] | None]) -> None:
    """The door of version 0.1."""
    warn_of_moved("register_mapper", "VIEW_MAPPER_REGISTRY.register")
    VIEW_MAPPER_REGISTRY.register(choose)


def training_mapper(cfg: CfgNode) -> ViewMapper:
    """The mapper of a training, whose views may lack what it leaves to the device; those of ``ViewMapper.from_config``
    are complete.

    Raises:
        UserError: plug-ins replace it by several.
    """
    chosen = [mapper for _, choose in VIEW_MAPPER_REGISTRY if (mapper := choose(cfg))]
    names = " and ".join(sorted(mapper.__name__ for mapper in chosen))
    expect(len(chosen) < 2, f"{names} replace the mapper of views: expected one of them, so switch off the others")
    (mapper,) = chosen or [ViewMapper]
    return mapper.from_config(cfg)
