"""VOC07 SVM: one linear support-vector machine for each class, the VOC column of the paper's ablations."""

from __future__ import annotations

import numpy as np
from sklearn.svm import LinearSVC
from tqdm import tqdm

from .targets import envelope_ap, known

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
    train_rows, test_rows = normalize(train[0]), normalize(test[0])
    scores, machines = [], []
    for learnt, judged in tqdm(list(zip(train[1].T, test[1].T, strict=True)), unit="class", desc="SVM"):
        counted, present = known(learnt, difficult_is_absent)
        machine = LinearSVC(C=cost, class_weight=CLASS_WEIGHT, max_iter=MAX_ITER, dual=True, random_state=0)
        machine.fit(train_rows[counted], present)
        counted, present = known(judged, difficult_is_absent)
        scores.append(envelope_ap(machine.decision_function(test_rows[counted]), present))
        machines.append(machine)
    return scores, *(np.concatenate([getattr(m, name) for m in machines]) for name in ("coef_", "intercept_"))
