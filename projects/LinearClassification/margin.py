"""VOC07 SVM: one linear support-vector machine for each class, the VOC column of the paper's ablations."""

import numpy as np
from sklearn.svm import LinearSVC
from tqdm import tqdm

from .targets import columns, envelope_ap

MAX_ITER = 2000
CLASS_WEIGHT = {True: 2, False: 1}


def normalize(rows: np.ndarray) -> np.ndarray:
    """(N, C) features at a length of about 1: x / (|x| + 1e-5)."""
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5)


def svm_ap(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], cost: float, difficult_is_absent: bool
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """AP of each class in percent, the area under the interpolated envelope; the machines' weight (T, C) and bias (T,).

    Args:
        train, test: (N, C) features and (N, T) labels of 1, 0 (difficult) and -1.
        cost: C, of the squared hinge.
    """
    fitted, scored = (columns(normalize(rows), labels, difficult_is_absent) for rows, labels in (train, test))
    scores, machines = [], []
    pairs = tqdm(zip(fitted, scored, strict=True), total=train[1].shape[1], unit="class", desc="SVM")
    for problem, (rows, present) in pairs:
        machine = LinearSVC(C=cost, class_weight=CLASS_WEIGHT, max_iter=MAX_ITER, dual=True, random_state=0)
        scores.append(envelope_ap(machine.fit(*problem).decision_function(rows), present))
        machines.append(machine)
    return scores, *(np.concatenate([getattr(m, name) for m in machines]) for name in ("coef_", "intercept_"))
