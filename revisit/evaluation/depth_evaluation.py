"""How well the depth of every pixel is estimated (configs/depth/nyud_deeplab_R50.yaml)."""

import logging
import math

import numpy as np

from revisit.data.labels import check_size, read_depth
from revisit.errors import UserError

from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

SMALLEST = 1e-9  # metres; estimates are clipped to it, because ratios need positive ones
RATIO = 1.25


class DepthEvaluator(DatasetEvaluator):
    """Compares DepthEstimator's outputs with the truth in the file that each input names; 0 there means missing."""

    def __init__(self, dataset_name: str):
        self._name = dataset_name
        self.reset()

    def reset(self) -> None:
        self._sums: list[np.ndarray] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Add up the errors of a batch.

        Args:
            inputs: dicts with ``depth_file_name``, and ``file_name``, ``height`` and ``width`` of the image.
            outputs: dicts with ``depth``, (H, W) metres at the size of that file.
        """
        for record, output in zip(inputs, outputs, strict=True):
            file_name, depth = record["depth_file_name"], output["depth"].cpu().double().numpy()
            truth = read_depth(file_name)
            check_size(file_name, truth, record["file_name"], (record["height"], record["width"]))
            assert depth.shape == truth.shape, f"{file_name}: prediction {depth.shape}, expected {truth.shape}"
            self._sums.append(sums_of_errors(depth, truth))

    def evaluate(self) -> dict[str, dict[str, float]] | None:
        """Results under ``depth`` over all pixels of the set with a truth; None but on the main process.

        rmse: root of the mean squared error, metres; absrel: mean of error / truth; delta1, delta2, delta3: percent
        of the pixels where neither of estimate and truth exceeds the other by a factor of 1.25, 1.25**2, 1.25**3.

        Raises:
            UserError: no pixel has a truth.
        """
        parts = comm.gather(self._sums)
        if not comm.is_main_process():
            return None
        sums = np.array([image for part in parts for image in part]).reshape(-1, 6)
        # The exact sum does not depend on the order, so neither do the results on the number of processes.
        count, squares, relative, *deltas = (math.fsum(column) for column in sums.T)
        if not count:
            raise UserError(
                f"nothing to evaluate in {self._name}: none of its {len(sums)} depth maps has a pixel of known "
                "depth; expected metres, with 0 only where the depth is missing"
            )
        results = {"rmse": math.sqrt(squares / count), "absrel": relative / count}
        results |= {f"delta{n}": 100 * delta / count for n, delta in enumerate(deltas, start=1)}
        logging.getLogger(__name__).info(results)
        return {"depth": results}


def sums_of_errors(depth: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Over the pixels of one image whose truth is not 0: what the results are made of.

    Args:
        depth: float64 (H, W) metres; clipped to SMALLEST.
        truth: (H, W) metres.

    Returns:
        float64 (6,): pixels, squared errors, errors / truth, pixels within RATIO, RATIO**2 and RATIO**3.
    """
    valid = truth != 0
    t = truth[valid].astype(np.float64)
    p = np.maximum(depth[valid], SMALLEST)
    ratio = np.maximum(p / t, t / p)
    within = [(ratio < RATIO**n).sum() for n in (1, 2, 3)]
    return np.array([t.size, ((p - t) ** 2).sum(), (np.abs(p - t) / t).sum(), *within])
