"""What was published of weights: published.yaml, or a file of the user's in its form."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from projects.Paper.paper_tables import COLUMNS, Evaluation, Words, read_column
from revisit.compat.old_options import current_words
from revisit.errors import did_you_mean, expect, translated
from revisit.files import file_digest, local_copy, read_yaml

PUBLISHED = Path(__file__).with_name("published.yaml")
HASHES = ("sha256", "md5")
OF_LAYOUT = ("--source", "--only", "--drop", "--timm", "--how", "--format")
_RECIPE = re.compile(r"\w+/[\w-]+")
_KEY = re.compile(r"[A-Z][A-Z0-9_.]*")
_PLACE = re.compile(r"[/\\~]")
TIMM_DIFFERENCE = Evaluation("studies/verify/timm_difference.py", "", ("difference",))


@dataclass(frozen=True)
class PublishedScore:
    """A number that was printed, and the range in which a right implementation falls; both ends belong to it."""

    column: str
    evaluation: Evaluation
    is_trained: bool  # the file is a whole detector, which is judged as it is
    value: float
    low: float
    high: float
    printed: str  # where


@dataclass(frozen=True)
class PublishedFile:
    """Weights of others; ``hashes`` are by algorithm, whole or their first digits."""

    name: str
    title: str
    url: str
    licence: str
    hashes: Mapping[str, str]
    layout: Words  # options of tools/convert_to_d2.py
    scores: tuple[PublishedScore, ...]


def read_published(path: Path, name: str) -> PublishedFile:
    """The file that is called ``name``.

    Raises:
        UserError: there is none, or it lacks a licence, a score, or a range that holds its value.
    """
    content = read_yaml(path)
    with translated(f"reading {path}", content=True):
        files = content["files"]
        expect(
            name in files, f"{path} has no file {name!r}: expected one of {', '.join(files)}{did_you_mean(name, files)}"
        )
        facts = files[name]
        lacks = f"{path}: {name} states no"
        expect(facts.get("licence"), f'{lacks} licence: expected the one that its authors state, or "not stated"')
        expect(facts.get("scores"), f"{lacks} scores: expected at least one column with value and range")
        columns = {"timm_difference": (TIMM_DIFFERENCE, False)}
        columns |= {column: (form.paper, False) for column, form in COLUMNS.items()}
        columns |= {
            column: _own_column(form, f"{path}: {column}") for column, form in content.get("columns", {}).items()
        }
        scores = []
        for column, score in facts["scores"].items():
            expect(column in columns, f"{path}: {name} has a column {column}: expected one of {', '.join(columns)}")
            scores.append(_score(column, *columns[column], score, f"{path}: {name}, {column}"))
        hashes = {kind: str(facts[kind]) for kind in HASHES if kind in facts}
        layout = _layout(facts.get("layout", "--source auto"), f"{path}: {name}")
        return PublishedFile(name, facts["title"], facts["url"], facts["licence"], hashes, layout, tuple(scores))


def _own_column(form: dict[str, Any], where: str) -> tuple[Evaluation, bool]:
    """Of one of the recipes here, with KEY VALUE pairs that name neither code nor places."""
    form = dict(form)
    is_trained = form.pop("trained", False)
    recipe, *pairs = shlex.split(form["paper"])
    expect(_RECIPE.fullmatch(recipe), f"{where}: paper: {recipe}: expected ROOM/RECIPE, such as detection/toy")
    of_run = _keys_of_run()
    for key, value in zip_longest(pairs[::2], pairs[1::2], fillvalue="/"):
        expect(
            _KEY.fullmatch(key) and key not in of_run and not _PLACE.search(value),
            f"{where}: paper: {key} {value}: a published file names no code, no place and no run",
        )
    return read_column(**form).paper, is_trained


def _keys_of_run() -> set[str]:
    """Keys of a run and its machine, what IMPORTS names among them."""
    from revisit.config import add_revisit_config  # not at start-up: it takes seconds
    from revisit.keys import RUN, declaration, dotted_keys

    from detectron2.config import get_cfg

    cfg = get_cfg()
    add_revisit_config(cfg)
    return {key for key in dotted_keys(cfg) if declaration(key).scope == RUN}


def _layout(text: str, where: str) -> Words:
    """Options of tools/convert_to_d2.py that say how a file is laid out, which name neither code nor other files."""
    words = current_words("convert_to_d2", shlex.split(text))
    other = [word for word in words if word.startswith("-") and word not in OF_LAYOUT]
    expect(not other, f"{where}: layout: {' '.join(other)}: expected of {', '.join(OF_LAYOUT)}")
    return tuple(words)


def _score(column: str, evaluation: Evaluation, is_trained: bool, facts: dict[str, Any], where: str) -> PublishedScore:
    value, (low, high) = facts["value"], facts["range"]
    expect(low <= value <= high, f"{where}: the range {low} to {high} does not hold the published {value}")
    return PublishedScore(column, evaluation, is_trained, value, low, high, facts["printed"])


def original_copy(name: str) -> Path:
    """The user's copy of published weights: the file in the package of ``imagenet:NAME``, a path, or a URL.

    Raises:
        UserError: the package is missing, or a URL cannot be fetched.
    """
    kind, _, in_package = name.partition(":")
    if kind != "imagenet":
        return local_copy(name, "the weights")
    from projects.Weights.imagenet_packages import original_file  # not at start-up: it takes seconds

    return original_file(in_package)


def check_hash(file: Path, published: PublishedFile) -> str:
    """The file's sha256. Raises UserError where its bytes are not those that were published."""
    digests = {kind: file_digest(file, kind) for kind in {"sha256", *published.hashes}}
    for kind, expected in published.hashes.items():
        digest = digests[kind]
        expect(
            digest.startswith(expected.lower()),
            f"{file} is another file than {published.name}: its {kind} begins with {digest[: len(expected)]}, "
            f"expected {expected} ({published.url})",
        )
    return digests["sha256"]
