"""The table that `make check-peers` prints: how far each of our numbers is from another library's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

BAR = 1e-10
_rows: list[tuple[str, str, float, float]] = []


@pytest.fixture
def agree() -> Callable[..., None]:
    """``agree(what, library, ours, theirs)``: numbers or arrays of one shape, no further apart than ``bar``, relative
    to the largest of theirs where that is above 1. Of losses also the gradients in a ``leaf``."""

    def check(what: str, library: str, ours: Any, theirs: Any, leaf: Tensor | None = None, *, bar: float = BAR) -> None:
        if leaf is not None:
            gradients = (torch.autograd.grad(loss.sum(), leaf, retain_graph=True)[0] for loss in (ours, theirs))
            check(f"{what}, gradient", library, *gradients)
            ours, theirs = ours.item(), theirs.item()
        ours, theirs = (np.asarray(each, dtype=np.float64) for each in (ours, theirs))
        assert ours.shape == theirs.shape and ours.size
        difference = float(np.abs(ours - theirs).max() / max(1, np.abs(theirs).max()))
        _rows.append((what, library, difference, bar))
        assert difference <= bar

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _rows:
        terminalreporter.section("largest differences from other libraries")
        widths = [max(len(row[n]) for row in _rows) for n in range(2)]
        for what, library, difference, bar in _rows:
            place = f"{what:{widths[0]}}  {library:{widths[1]}}"
            terminalreporter.write_line(f"{place}  {difference:7.1e}, at most {bar:g}")
