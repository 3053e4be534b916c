"""How a score over seeds is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
    """``mean ± standard deviation`` of the values, to so many decimals; a lone value stands alone."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"
