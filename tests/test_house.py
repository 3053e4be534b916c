"""The rules of the house that the syntax trees can tell."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ROOT

from revisit.modeling.meta_arch.pretraining import methods

SOURCES = sorted(path for ring in ("revisit", "projects", "tools", "datasets") for path in (ROOT / ring).rglob("*.py"))
# Each may import what stands to its left, and its own room. Names at the right end are rings.
ROOMS = (
    ("errors",),
    ("compat", "files", "imports", "randomness", "urls"),
    ("keys",),
    ("config",),
    ("data", "modeling"),
    ("evaluation", "checkpoint"),
    ("viz",),
    ("engine",),
    ("model_zoo",),
    ("projects",),
    ("tools", "datasets"),
)
LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(path: Path) -> str:
    """The room of a source file: a folder or file right below revisit/, or another ring."""
    ring, second = path.relative_to(ROOT).parts[:2]
    return second.removesuffix(".py") if ring == "revisit" else ring


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def words_of(tree: ast.Module) -> Iterator[str]:
    """All identifiers and strings of a syntax tree, docstrings too."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(getattr(node, field, None), str):
                yield getattr(node, field)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", ["engine", "checkpoint", "data"])
def test_the_rooms_around_the_methods_name_none(room):
    names = {re.sub("[^a-z]", "", name.lower()) for method in methods() for name in (method.__name__, method.TITLE)}
    assert {"moco", "knnmoco", "densecl"} <= names
    for path in (ROOT / "revisit" / room).rglob("*.py"):
        if path.name == "foreign_layouts.py":  # the one table of foreign checkpoints
            continue
        for word in words_of(tree_of(path)):
            plain = re.sub("[^a-z]", "", word.lower())
            assert not any(name in plain for name in names), f"{path.relative_to(ROOT)}: {word!r}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_only_point_down(path):
    room = room_of(path)
    for module in imports_of(tree_of(path)):
        ring, _, rest = module.partition(".")
        target = rest.partition(".")[0] if ring == "revisit" and rest else ring
        if room not in LEVELS or target not in LEVELS or target == room:
            continue
        assert LEVELS[target] < LEVELS[room], f"{path.relative_to(ROOT)} imports {module}"


def test_every_citation_leads_to_a_heading():
    text = (ROOT / "docs/method.md").read_text()
    headings = set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    sections = set(re.findall(r"\b(?:[1-6](?:\.\d)?|[A-G](?:\.\d)?)\b", text[text.index("## The paper's sections") :]))
    cited = 0
    for path in SOURCES:
        for text in (word for word in words_of(tree_of(path)) if "(" in word):
            assert "METHOD:" not in text and "PROTOCOLS:" not in text, path
            text = " ".join(text.split())
            for page in re.findall(r"docs/method\.md: ([^)]+)\)", text):
                assert set(page.split(", ")) <= headings, f"{path.relative_to(ROOT)}: {page}"
                cited += 1
            for section in re.findall(r"paper, (?:Section|Appendix) ([\w.]+)", text):
                assert section in sections, f"{path.relative_to(ROOT)}: {section}"
            for file in re.findall(r"\(((?:projects|configs|docs)/[\w/.-]+\.(?:md|yaml))\)", text):
                assert (ROOT / file).is_file(), f"{path.relative_to(ROOT)}: {file}"
    assert cited > 10
