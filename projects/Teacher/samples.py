"""Samples of a training with labels, each with its share of photographs without: one order for both."""

from functools import lru_cache

import numpy as np
import torch
from torch.utils.data import Dataset

from projects.Teacher.geometry import look_at_image
from revisit.data.finetuning.detection_mapper import DetectionMapper
from revisit.data.loading.finetune_loader import MappedRecords
from revisit.data.randomness import counter_rng
from revisit.data.sources.catalog import get_records
from revisit.data.sources.records import LABEL_FILES, LABELS, Records
from revisit.data.views.looks import positive_look

from detectron2.config import CfgNode

ORDER, SEED = 1201, 1202  # streams: of the photographs' order by (epoch,), and of the seed of what their mapper draws


def unlabelled_records(cfg: CfgNode) -> Records:
    """The photographs of DATASETS.UNLABELLED, without the labels that some may have."""
    records = [record for name in cfg.DATASETS.UNLABELLED for record in get_records(name)]
    left_out = {*LABELS, *LABEL_FILES}
    return [{key: value for key, value in record.items() if key not in left_out} for record in records]


class TwoLooks:
    """Maps a record to a weakly and a strongly changed form.

    ``image`` is the (C, H, W) uint8 image in INPUT.FORMAT, as the mapper of labelled images flips and resizes it;
    ``strong`` the same with a look of VIEWS.POLICY, (C, H, W) uint8; ``moves`` (3, 3) float64, to which point (x, y, 1)
    of ``strong`` a point of ``image`` has moved.
    """

    def __init__(self, cfg: CfgNode):
        self._map = DetectionMapper(cfg, is_train=True)
        self._draw = positive_look(cfg)
        self._channels = slice(None, None, -1 if cfg.INPUT.FORMAT == "BGR" else 1)  # RGB of INPUT.FORMAT, and back

    def __call__(self, record: dict) -> dict:
        sample = self._map(record)
        pixels = sample["image"].permute(1, 2, 0).numpy()
        rgb = np.ascontiguousarray(pixels[..., self._channels])
        rng = np.random.default_rng(np.random.randint(2**31))  # of the global generator, which the loader has seeded
        changed, moves = look_at_image(rgb, self._draw(rng))
        strong = np.ascontiguousarray(changed[..., self._channels].transpose(2, 0, 1))
        return {**sample, "strong": torch.from_numpy(strong), "moves": torch.from_numpy(moves)}


class WithUnlabelled(Dataset):
    """Labelled samples by (position in the run, record index), each with ``unlabelled``, a list of samples.

    Which photographs they are depends on (seed, position) alone: a run may resume anywhere and have any number of
    processes. All photographs have been seen once before one is seen again.
    """

    def __init__(self, labelled: Dataset, unlabelled: MappedRecords, *, count: int, seed: int):
        self._labelled = labelled
        self._unlabelled = unlabelled
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return len(self._labelled)

    def __getitem__(self, key: tuple[int, int]) -> dict:
        position, _ = key
        first = position * self._count
        places = range(first, first + self._count)
        photographs = [self._unlabelled[n, self._index(n)] for n in places]
        return {**self._labelled[key], "unlabelled": photographs}

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, len(self._unlabelled))
        order = _order(self._seed, epoch, len(self._unlabelled))
        return int(order[place])


@lru_cache(2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return counter_rng(seed, ORDER, epoch).permutation(count)


def with_unlabelled(cfg: CfgNode, labelled: Dataset) -> Dataset:
    """Each sample of a training with photographs of DATASETS.UNLABELLED."""
    other_seed = int(counter_rng(cfg.SEED, SEED).integers(2**62))  # else both kinds would draw the same flips
    unlabelled = MappedRecords(unlabelled_records(cfg), TwoLooks(cfg), other_seed)
    return WithUnlabelled(labelled, unlabelled, count=cfg.TEACHER.IMAGES_PER_LABELLED, seed=cfg.SEED)
