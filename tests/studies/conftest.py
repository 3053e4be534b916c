import pytest

HERE = __file__.removesuffix("conftest.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker("studies")
