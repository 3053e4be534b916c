from pathlib import Path

import pytest

HERE = __file__.removesuffix("conftest.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Studies register what they add when they are imported: nothing of it where their tests do not run."""
    is_left_out = "not studies" in config.option.markexpr and str(collection_path).startswith(HERE)
    return is_left_out or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker("studies")
