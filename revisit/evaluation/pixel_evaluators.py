"""How well every pixel is classified, by mIoU and its relatives, and how well its depth is estimated."""

import logging
import math
from collections import Counter

import cv2
import numpy as np
import torch

from revisit.data.sources.labels import VOID, check_size, read_depth, read_labels
from revisit.errors import expect
from revisit.evaluation.registry import EVALUATOR_REGISTRY, Score

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm


# Detectron2's own evaluator is no base for this one: 0.6 reads the raw file (ids that start at 1 stay shifted), keeps
# run lengths of every prediction, and leaves a class out of the mean on main where 0.6 counts a 0.
@EVALUATOR_REGISTRY.register()
class SemSegEvaluator(DatasetEvaluator):
    """Compares SemanticSegmentor's outputs with the truth in the file that each input names. The data set's metadata
    have ``stuff_classes`` (names) and perhaps ``label_offset``."""

    TYPES = ("sem_seg", "cityscapes_sem_seg")
    SCORES = (Score("sem_seg/mIoU"), Score("sem_seg/fwIoU"), Score("sem_seg/mACC"), Score("sem_seg/pACC"))
    NETWORKS = ("SemanticSegmentor",)

    def __init__(self, dataset_name: str, cfg: CfgNode | None = None):
        metadata = MetadataCatalog.get(dataset_name)
        self._name = dataset_name
        self._classes = list(metadata.stuff_classes)
        self._offset = metadata.get("label_offset", 0)
        self.reset()

    def reset(self) -> None:
        self._confusion = np.zeros((len(self._classes), len(self._classes)), np.int64)

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Count the pixels of inputs with ``sem_seg_file_name``, and ``file_name``, ``height`` and ``width`` of the
        image (where these are the logits' size alone, ``file_size`` (H, W) is the image's), and of outputs with
        ``sem_seg``, logits (C, height, width)."""
        num_classes = len(self._classes)
        for record, output in zip(inputs, outputs, strict=True):
            file_name = record["sem_seg_file_name"]
            logits = output["sem_seg"]
            truth = read_labels(file_name, num_classes, self._offset)
            size = (record["height"], record["width"])
            check_size(file_name, truth, record["file_name"], record.get("file_size", size))
            expected = (num_classes, *size)
            assert logits.shape == expected, f"{file_name}: prediction {tuple(logits.shape)}, expected {expected}"
            self._confusion += confusion_matrix(predicted_classes(logits, truth.shape), truth, num_classes)

    def evaluate(self) -> dict[str, dict[str, float]] | None:
        """Percentages under ``sem_seg``, named as Detectron2 does; None but on the main process.

        mIoU: mean IoU of the classes that occur in the truth or in a prediction; fwIoU: IoU weighted by the
        truth's pixels; mACC: mean accuracy of the classes of the truth; pACC: accuracy over all pixels. Then
        ``IoU-NAME`` of the classes in the mIoU, ``ACC-NAME`` of those in the mACC; of two classes with one
        name, the id tells them apart.

        Raises UserError where every pixel of the truth is void.
        """
        parts = comm.gather(self._confusion)
        if not comm.is_main_process():
            return None
        confusion = sum(parts)
        expect(
            confusion.any(),
            f"nothing to evaluate in {self._name}: every pixel of its truth is void; expected classes",
        )
        results = {"sem_seg": score(confusion, _unique(self._classes))}
        logging.getLogger(__name__).info(results)
        return results


def predicted_classes(logits: torch.Tensor, size: tuple[int, int]) -> np.ndarray:
    """(H, W) uint8: the strongest class of the logits (C, h, w), for each pixel of ``size`` at the place that OpenCV
    takes: pixel n of H is of row floor(n h / H)."""
    classes = logits.argmax(dim=0).to(torch.uint8).cpu().numpy()
    return cv2.resize(classes, size[::-1], interpolation=cv2.INTER_NEAREST)


def confusion_matrix(predicted: np.ndarray, truth: np.ndarray, num_classes: int) -> np.ndarray:
    """(N, N) int64: pixels by true and by predicted class, of those where both are known (not VOID)."""
    valid = (truth != VOID) & (predicted != VOID)
    return count_pairs(truth[valid], predicted[valid], (num_classes, num_classes))


def count_pairs(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """(R, C) int64: how often each pair of ids occurs in two arrays of the same shape, of ids below R and below C."""
    cells = shape[1] * rows.astype(np.int64).ravel() + columns.ravel()
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)


def score(confusion: np.ndarray, classes: list[str]) -> dict[str, float]:
    """Percentages of an int64 confusion matrix (N, N), truth by row and prediction by column, not all 0."""
    hits = confusion.diagonal()
    in_truth = confusion.sum(axis=1)
    in_prediction = confusion.sum(axis=0)
    union = in_truth + in_prediction - hits
    iou = {c: 100 * float(hits[c] / union[c]) for c in np.flatnonzero(union)}
    accuracy = {c: 100 * float(hits[c] / in_truth[c]) for c in np.flatnonzero(in_truth)}
    total = in_truth.sum()
    return {
        "mIoU": float(np.mean(list(iou.values()))),
        "fwIoU": float(sum(iou[c] * in_truth[c] for c in accuracy) / total),
        "mACC": float(np.mean(list(accuracy.values()))),
        "pACC": 100 * float(hits.sum() / total),
        **{f"IoU-{classes[c]}": value for c, value in iou.items()},
        **{f"ACC-{classes[c]}": value for c, value in accuracy.items()},
    }


def _unique(names: list[str]) -> list[str]:
    count = Counter(names)
    return [name if count[name] == 1 else f"{name}#{number}" for number, name in enumerate(names)]


SMALLEST = 1e-9  # metres; estimates are clipped to it, because ratios need positive ones
RATIO = 1.25


@EVALUATOR_REGISTRY.register()
class DepthEvaluator(DatasetEvaluator):
    """Compares DepthEstimator's outputs with the truth in the file that each input names; 0 there means missing."""

    TYPES = ("depth",)
    SCORES = (
        Score("depth/rmse", "lower", "m"),
        Score("depth/absrel", "lower", ""),
        Score("depth/delta1"),
        Score("depth/delta2"),
        Score("depth/delta3"),
    )
    NETWORKS = ("DepthEstimator",)

    def __init__(self, dataset_name: str, cfg: CfgNode | None = None):
        self._name = dataset_name
        self.reset()

    def reset(self) -> None:
        self._sums: list[np.ndarray] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Add up the errors of inputs with ``depth_file_name``, and ``file_name``, ``height`` and ``width`` of the
        image, and of outputs with ``depth``, (H, W) metres at the size of that file."""
        for record, output in zip(inputs, outputs, strict=True):
            file_name = record["depth_file_name"]
            depth = output["depth"].cpu().double().numpy()
            truth = read_depth(file_name)
            check_size(file_name, truth, record["file_name"], (record["height"], record["width"]))
            assert depth.shape == truth.shape, f"{file_name}: prediction {depth.shape}, expected {truth.shape}"
            self._sums.append(sums_of_errors(depth, truth))

    def evaluate(self) -> dict[str, dict[str, float]] | None:
        """Results under ``depth`` over all pixels of the set with a truth; None but on the main process.

        rmse: root of the mean squared error, metres; absrel: mean of error / truth; delta1, delta2, delta3: percent
        of the pixels where neither of estimate and truth exceeds the other by a factor of 1.25, 1.25**2, 1.25**3.

        Raises UserError where no pixel has a truth.
        """
        parts = comm.gather(self._sums)
        if not comm.is_main_process():
            return None
        sums = np.array([image for part in parts for image in part]).reshape(-1, 6)
        # The exact sum does not depend on the order, so neither do the results on the number of processes.
        count, squares, relative, *deltas = (math.fsum(column) for column in sums.T)
        expect(
            count > 0,
            f"nothing to evaluate in {self._name}: none of its {len(sums)} depth maps has a pixel of known depth; "
            "expected metres, with 0 only where the depth is missing",
        )
        results = {"rmse": math.sqrt(squares / count), "absrel": relative / count}
        results |= {f"delta{n}": 100 * delta / count for n, delta in enumerate(deltas, start=1)}
        logging.getLogger(__name__).info(results)
        return {"depth": results}


def sums_of_errors(depth: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Over the pixels of one image whose truth is not 0, both float (H, W) metres: float64 (6,), the number of pixels,
    squared errors, errors / truth, pixels within RATIO, RATIO**2 and RATIO**3."""
    valid = truth != 0
    t = truth[valid].astype(np.float64)
    p = np.maximum(depth[valid], SMALLEST)
    ratio = np.maximum(p / t, t / p)
    within = [(ratio < RATIO**n).sum() for n in (1, 2, 3)]
    return np.array([t.size, ((p - t) ** 2).sum(), (np.abs(p - t) / t).sum(), *within])
