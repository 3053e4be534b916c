"""TEST.EXPECTED_RESULTS: scores that a run is to have, for who runs it as a test."""

import logging
import math
import sys
from collections.abc import Mapping, Sequence

from revisit.keys import Rule, list_of, of_detectron2

from detectron2.evaluation.testing import flatten_results_dict

logger = logging.getLogger(__name__)


def check_expected(expected: Sequence[Sequence], results: Mapping) -> None:
    """Exit with code 1, and a line in the log, unless the results have every score that is expected.

    Args:
        expected: rows of a task, such as ``bbox`` or ``NAME/bbox``, its score, such as ``AP``, a number, and by how
            much it may differ. A score without a task, such as ``knn_top1``, is both.
        results: by task, as an evaluation returns them, or as its file has them: None is undefined there.
    """
    scores = flatten_results_dict(results)
    wrong = []
    for task, score, number, tolerance in expected:
        name = score if task == score else f"{task}/{score}"
        if name not in scores:
            wrong.append(f"there is no {name} among {', '.join(scores)}")
            continue
        value = math.nan if scores[name] is None else scores[name]
        if not abs(value - number) <= tolerance:  # NaN, too
            wrong.append(f"{name} is {value:.4g}, expected {number:g} +- {tolerance:g}")
    if wrong:
        logger.error(f"TEST.EXPECTED_RESULTS: {'; '.join(wrong)}")
        sys.exit(1)
    if expected:
        logger.info("the results are as TEST.EXPECTED_RESULTS has them")


def _is_row(row: object) -> bool:
    if not (isinstance(row, list | tuple) and len(row) == 4):
        return False
    are_names = all(isinstance(name, str) for name in row[:2])
    return are_names and all(isinstance(number, int | float) for number in row[2:])


_ROW = Rule("a task, a score, a number and by how much it may differ", _is_row)
of_detectron2("TEST.EXPECTED_RESULTS", rule=list_of(_ROW), may_change=True)
