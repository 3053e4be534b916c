from pathlib import Path

import pytest


@pytest.fixture
def examples_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/extending.md shows can be imported by its names."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
