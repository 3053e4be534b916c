"""Features of a whole data set by a frozen backbone, over all processes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from revisit.data.catalog import get_records
from revisit.data.crops import crop_and_resize
from revisit.data.reader import require_record
from revisit.data.workers import SignalSafeLoader

from detectron2.data.samplers import InferenceSampler
from detectron2.evaluation import DatasetEvaluator, inference_on_dataset
from detectron2.utils import comm

BATCH = 64


class Features(NamedTuple):
    """Features of a data set in its order."""

    rows: Tensor  # (M, Cg) float32 unit rows
    labels: Tensor  # (M,) int64; -1 where the data set has none


class CenterCropDataset(Dataset):
    """Images for evaluation: short side to 256/224 of ``size``, then the central (3, size, size) uint8 RGB."""

    def __init__(self, records: list[dict], size: int, bit_depth: int | None = None):
        self._records = records
        self._size = size
        self._bit_depth = bit_depth

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict:
        record = self._records[index]
        image = center_crop(require_record(record, self._bit_depth), self._size)
        return {"image": torch.from_numpy(image).permute(2, 0, 1), "label": record.get("label", -1)}


def center_crop(image: np.ndarray, size: int) -> np.ndarray:
    """(H, W, 3) uint8 -> (size, size, 3): the resize to 256/224 and the crop of it, in one resampling."""
    height, width = image.shape[:2]
    side = round(min(height, width) * 224 / 256)
    x0, y0 = (width - side) // 2, (height - side) // 2
    return crop_and_resize(image, np.array([x0, y0, x0 + side, y0 + side]), size)


def whole_image(image: np.ndarray, size: int) -> np.ndarray:
    """(H, W, 3) uint8 -> (size, size, 3), whatever its shape."""
    height, width = image.shape[:2]
    return crop_and_resize(image, np.array([0, 0, width, height]), size)


TRANSFORMS = {"square": whole_image, "center_crop": center_crop}  # how a frozen network sees an image


class _FeatureCollector(DatasetEvaluator):
    """Keeps the features that the model returns; the main process gets those of all, in the data set's order."""

    def reset(self) -> None:
        self._rows: list[Tensor] = []
        self._labels: list[int] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        self._rows += [output["feature"].cpu() for output in outputs]
        self._labels += [record["label"] for record in inputs]

    def evaluate(self) -> Features | None:
        rows = torch.stack(self._rows) if self._rows else torch.empty(0)
        parts = comm.gather((rows, torch.tensor(self._labels, dtype=torch.int64)))
        if not comm.is_main_process():
            return None
        parts = [part for part in parts if len(part[1])]
        return Features(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))


def extract_features(
    model: nn.Module, dataset: str, image_size: int, num_workers: int, bit_depth: int | None = None
) -> Features | None:
    """Features of every image of a data set by name, in evaluation mode; None but on the main process."""
    records = get_records(dataset)
    loader = SignalSafeLoader(
        CenterCropDataset(records, image_size, bit_depth),
        sampler=InferenceSampler(len(records)),
        batch_size=BATCH,
        num_workers=num_workers,
        collate_fn=list,
    )
    return inference_on_dataset(model, loader, _FeatureCollector()) or None  # which makes {} of None
