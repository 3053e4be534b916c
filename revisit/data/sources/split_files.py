"""Text files of names, one a line: of images (split files) or of classes."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from revisit.errors import UserError, expect, on_one_line, translated
from revisit.files import below, input_file, read_yaml, write_whole

NAMES_IN_LABELS = "classes.txt"  # which tools for labelling put next to the labels
YAML = (".yaml", ".yml")
BLANKS = " \t"  # around a name
BOM = "\ufeff"  # which some programs put before a text


def read_split(path: Path) -> list[str]:
    """Names of images, one a line, below the folders of a data set; blanks around them, a slash before them, empty
    lines and a carriage return before a line end mean nothing.

    Raises:
        UserError: a file that is missing, names nothing, an image twice, or one that lies elsewhere (``..``).
    """
    names = [below(name, f"split file {path}") for name in read_names_of_images(path, "split file")]
    expect(names, f"split file {path} is empty: expected one image name a line")
    ((name, count),) = Counter(names).most_common(1)
    expect(count == 1, f"split file {path} names {name} {count} times: expected every image once")
    return names


def image_of(stem: Path) -> Path:
    """The photograph of a name in a published tree: a .jpg, or a .tif where that is there."""
    tiff = Path(f"{stem}.tif")
    return tiff if tiff.is_file() else Path(f"{stem}.jpg")


def read_names_of_images(path: Path, what: str) -> list[str]:
    """The lines that are not empty, without blanks around them; the UserError of another file calls it ``what``."""
    lines = read_lines(path, what, errors="surrogateescape")
    return [name for line in lines if (name := line.strip(BLANKS))]


def read_lines(path: Path, what: str, errors: str = "strict") -> list[str]:
    """The lines of a text file in UTF-8; the UserError of another one calls it ``what``.

    A line feed alone ends one, perhaps with a carriage return before it: names may hold what else Python takes for the
    end of a line, and would become two.
    """
    expect(path.exists() and not path.is_dir(), f"{what} {path} not found")
    with translated(f"reading {what} {path}", content=True):
        text = input_file(path).read_bytes().decode("utf-8-sig", errors)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def text_of_names(names: Iterable[str], what: str) -> str:
    """What a text file of these names holds. Raises UserError for one that would be read as another, or as two, which
    are ``what``."""
    names = list(names)
    for name in names:
        is_line = name == on_one_line(name).strip(BLANKS + BOM) != ""
        way_out = "expected one without line ends, or blanks around it: rename it"
        expect(is_line, f"{what} is called {name!r}, which no list can hold: {way_out}")
    return "".join(f"{name}\n" for name in names)


def check_split(path: Path, names: list[str]) -> None:
    """Raises UserError if there is a split file already and it names other images."""
    if path.exists() and set(read_split(path)) != set(names):
        message = f"split file {path} exists and names other images than the {len(names)} to be written"
        raise UserError(f"{message}: move it away, or choose another split")


def write_split(path: Path, names: list[str]) -> None:
    """Write a split, sorted, whole or not at all; see check_split."""
    check_split(path, names)
    write_whole(path, text_of_names(sorted(names), "an image"))


def read_class_names(file: Path) -> list[str]:
    """Classes by number: the lines of a text file, or ``names`` of the YAML file that YOLO is trained with, as text.

    Raises:
        UserError: no such file, or no names in it, or not ``nc`` of them.
    """
    if file.suffix in YAML:
        content = read_yaml(file, as_text=True)
    else:
        content = {"names": "\n".join(read_lines(file, "class names")).rstrip().split("\n")}
    names = content.get("names") if isinstance(content, dict) else None
    if isinstance(names, dict):
        names = [names.get(str(number)) for number in range(len(names))]
    are_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    stripped = [name.strip() for name in names] if are_texts else [""]
    are_different = "" not in stripped and len(set(stripped)) == len(stripped) > 0
    for name in stripped:
        expect(on_one_line(name) == name, f"{file} has a class {name!r}: expected one without control characters")
    expect(are_different, f"{file} holds no class names: expected different ones, of the classes 0, 1, 2 and so on")
    stated, count = content.get("nc"), len(stripped)
    expect(stated in (None, str(count)), f"{file} has nc: {stated}, but {count} names: expected as many as classes")
    return stripped
