"""Trees of files for data sets, and what is said of bad ones."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from revisit.data.catalog import get_records
from revisit.errors import UserError


def write(path: Path, content: bytes | str | Iterable[str] = b"") -> None:
    """A file and its folders; of names it has one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else "".join(f"{name}\n" for name in content)).encode()
    path.write_bytes(content)


def touch(*paths: Path) -> None:
    for path in paths:
        write(path)


def refusal(call: Callable[..., object], *args: object) -> str:
    """What a UserError says, in one line."""
    with pytest.raises(UserError) as error:
        call(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


def one_line_error(name: str) -> str:
    """What ``get_records`` says of a data set that it refuses."""
    return refusal(get_records, name)
