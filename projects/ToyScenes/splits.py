"""The four image sets of ToyScenes, and the scene that each of their images shows."""

import enum

import numpy as np

from projects.ToyScenes.appearance import HELDOUT, TRAIN, Appearance
from projects.ToyScenes.classes import class_quotas, class_weights
from projects.ToyScenes.plan import ScenePlan, plan_object_centric, plan_scene_centric
from revisit.randomness import Stream, counter_rng

GENERATOR_VERSION = 1  # the generator is frozen: whatever changes a picture must change this number
HELDOUT_SHARE = 4  # one held-out image for this many train images


class Split(enum.IntEnum):
    """An image set. Numbers are part of the random stream: never renumber."""

    OBJECT_TRAIN = 0
    OBJECT_HELDOUT = 1
    SCENE_TRAIN = 2
    SCENE_HELDOUT = 3

    @property
    def is_heldout(self) -> bool:
        return self in (Split.OBJECT_HELDOUT, Split.SCENE_HELDOUT)

    @property
    def is_object_centric(self) -> bool:
        return self in (Split.OBJECT_TRAIN, Split.OBJECT_HELDOUT)

    @property
    def appearance(self) -> Appearance:
        return HELDOUT if self.is_heldout else TRAIN

    def num_images(self, num_train: int) -> int:
        """Images in this set when each train set has ``num_train``."""
        return num_train // HELDOUT_SHARE if self.is_heldout else num_train


def object_classes(split: Split, num_train: int, long_tailed: bool) -> np.ndarray:
    """Class id of each image of an object-centric set, int64 (images,). Held-out sets stay uniform."""
    quotas = class_quotas(split.num_images(num_train), long_tailed and not split.is_heldout)
    return np.repeat(np.arange(len(quotas)), quotas)


def plan_image(seed: int, split: Split, index: int, num_train: int = 2000, long_tailed: bool = False) -> ScenePlan:
    """The scene of image ``index`` of a set: a function of its arguments alone.

    Args:
        seed: of the whole data set, 0 <= seed < 2**63.
        split: the image set.
        index: 0 <= index < ``split.num_images(num_train)``.
        num_train: images of each train set; with ``long_tailed``, it decides which class the index has.
        long_tailed: classes of train sets follow ``class_weights(True)``.
    """
    rng = counter_rng(seed, Stream.TOY_SCENE, split, index)
    if split.is_object_centric:
        class_id = int(object_classes(split, num_train, long_tailed)[index])
        return plan_object_centric(rng, split.appearance, class_id)
    return plan_scene_centric(rng, split.appearance, class_weights(long_tailed and not split.is_heldout))
