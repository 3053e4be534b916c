"""Labels with places where nothing is learned: a detection there is neither right nor wrong."""

from typing import Any

from torch import Tensor

from detectron2.structures import Instances

IGNORED = "ignored"  # a field that is true of an annotation which only says where; such a one is ``iscrowd`` too


class ObjectsAndIgnored(Instances):
    """The objects of an image, and (N, 4) xyxy px ``ignored``, boxes of others, of which only these are known."""

    def __init__(self, objects: Instances, ignored: Tensor):
        super().__init__(objects.image_size, **objects.get_fields())
        self._ignored = ignored

    @property
    def ignored(self) -> Tensor:
        return self._ignored

    def to(self, *args: Any, **kwargs: Any) -> "ObjectsAndIgnored":
        return ObjectsAndIgnored(super().to(*args, **kwargs), self._ignored.to(*args, **kwargs))
