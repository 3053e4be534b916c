"""Text files of names, one a line: of images (split files) or of classes."""

from collections import Counter
from pathlib import Path

from revisit.errors import UserError, expect, translated
from revisit.files import read_yaml, written_whole

NAMES_IN_LABELS = "classes.txt"  # which tools for labelling put next to the labels
YAML = (".yaml", ".yml")


def read_split(path: Path) -> list[str]:
    """Names of images, one a line; blanks around them, empty lines and the kind of line end mean nothing.

    Raises:
        UserError: a file that is missing, names nothing, or names an image twice.
    """
    names = read_names_of_images(path, "split file")
    expect(names, f"split file {path} is empty: expected one image name a line")
    ((name, count),) = Counter(names).most_common(1)
    expect(count == 1, f"split file {path} names {name} {count} times: expected every image once")
    return names


def read_names_of_images(path: Path, what: str) -> list[str]:
    """The lines that are not empty, without blanks around them; the UserError of another file calls it ``what``."""
    return list(filter(None, map(str.strip, read_lines(path, what, errors="surrogateescape"))))


def read_lines(path: Path, what: str, errors: str = "strict") -> list[str]:
    """The lines of a text file in UTF-8; the UserError of another one calls it ``what``."""
    with translated(f"reading {what} {path}", content=True):
        return path.read_text(encoding="utf-8-sig", errors=errors).splitlines()


def check_split(path: Path, names: list[str]) -> None:
    """Raises UserError if there is a split file already and it names other images."""
    if path.exists() and set(read_split(path)) != set(names):
        message = f"split file {path} exists and names other images than the {len(names)} to be written"
        raise UserError(f"{message}: move it away, or choose another split")


def write_split(path: Path, names: list[str]) -> None:
    """Write a split, sorted, whole or not at all; see check_split."""
    check_split(path, names)
    with written_whole(path) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in sorted(names)), errors="surrogateescape")


def read_class_names(file: Path) -> list[str]:
    """Classes by number: the lines of a text file, or ``names`` of the YAML file that YOLO is trained with, as text.

    Raises:
        UserError: no such file, or no names in it.
    """
    with translated(f"reading class names from {file}", content=True):
        if file.suffix in YAML:
            names = read_yaml(file, as_text=True).get("names")
        else:
            names = "\n".join(read_lines(file, "class names")).rstrip().splitlines()
        if isinstance(names, dict):
            names = [names.get(str(number)) for number in range(len(names))]
    are_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    stripped = [name.strip() for name in names] if are_texts else [""]
    are_different = "" not in stripped and len(set(stripped)) == len(stripped) > 0
    expect(are_different, f"{file} holds no class names: expected different ones, of the classes 0, 1, 2 and so on")
    return stripped
