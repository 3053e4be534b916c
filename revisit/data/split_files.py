"""Split files: the names of a data set's images, one a line."""

from collections import Counter
from pathlib import Path

from revisit.errors import UserError
from revisit.files import written_whole


def read_split(path: Path) -> list[str]:
    """Names of images, one a line; blanks around them, empty lines and the kind of line end mean nothing.

    Raises:
        UserError: a file that is missing, is no text, names nothing, or names an image twice.
    """
    if not path.is_file():
        raise UserError(f"split file {path} not found: expected one image name a line (datasets/README.md)")
    names = [line for line in map(str.strip, read_lines(path, "split file")) if line]
    if not names:
        raise UserError(f"split file {path} is empty: expected one image name a line")
    ((name, count),) = Counter(names).most_common(1)
    if count > 1:
        raise UserError(f"split file {path} names {name} {count} times: expected every image once")
    return names


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a text file; the UserError of a file in another encoding calls it ``what``."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not a text file in UTF-8") from error


def check_split(path: Path, names: list[str]) -> None:
    """Raises UserError if there is a split file already and it names other images."""
    if path.exists() and set(read_split(path)) != set(names):
        raise UserError(
            f"split file {path} is there already and names other images than the {len(names)} to be written: "
            "move it away, or choose another split"
        )


def write_split(path: Path, names: list[str]) -> None:
    """Write a split, sorted, whole or not at all; see check_split."""
    check_split(path, names)
    with written_whole(path) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in sorted(names)))
