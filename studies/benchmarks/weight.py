#!/usr/bin/env python
"""What a reader of the code has to hold: nodes of the syntax trees, branches, files on the way, files to open.

Lines are no goal: fewer of them can be denser. `make weight` prints this page; with --dynamic it also starts a small
training, to see which files read the config before the first step and which functions change it.
"""

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from studies.benchmarks.config_traffic import config_traffic

ROOT = Path(__file__).resolve().parents[2]
BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.comprehension, ast.Try)
MOST_BRANCHES = 10  # of a function that one reads once
# Whoever changes this opens these files, whole.
OPENED = {
    "the loss": ("modeling/losses", "modeling/meta_arch/knn_moco.py"),  # the formulas, and their one caller
    "the queue": ("modeling/queue.py", "modeling/queue_size.py"),  # how it holds keys, and how many
    "a crop": ("data/views/crops.py", "data/views/mapper.py"),
    "the schedule": ("engine/schedules.py", "engine/solver.py"),
    "an evaluation": ("evaluation/registry.py", "evaluation/classifiers.py"),
    "a label layout": (
        "data/sources/layouts.py",
        "data/sources/coco_boxes.py",
        "data/sources/label_files.py",
    ),
}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def branches(function: ast.FunctionDef) -> int:
    return sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that are neither empty nor a comment nor of a docstring."""
    documented = docstring_lines(tree)
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and line[0] != "#" and n not in documented for n, line in enumerate(stripped, start=1))


def weigh(folder: Path) -> tuple[int, float, list[str]]:
    """AST nodes, nodes a code line, and the functions above MOST_BRANCHES, of all sources below a folder."""
    nodes, lines, branching = 0, 0, []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        nodes += sum(1 for _ in ast.walk(tree))
        lines += code_lines(text, tree)
        deep = (function for function in functions(tree) if branches(function) > MOST_BRANCHES)
        branching += [f"{path.relative_to(folder)}:{function.name} {branches(function)}" for function in deep]
    return nodes, nodes / max(lines, 1), branching


def rooms(ring: Path) -> list[str]:
    """The folders of a ring that are rooms: they have a page of their own."""
    return sorted(page.parent.name for page in ring.glob("*/README.md"))


def arrows(ring: Path) -> set[tuple[str, str]]:
    """Which of a ring's rooms import which others."""
    inside, found = rooms(ring), set()
    for room in inside:
        for path in (ring / room).rglob("*.py"):
            names = imported_names(ast.parse(path.read_text()))
            parts = (name.split(".") for name in names if name.startswith(f"{ring.name}."))
            found |= {(room, words[1]) for words in parts if words[1] in inside and words[1] != room}
    return found


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Names in full: ``from a.b import c`` has ``a.b.c``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def in_circles(pairs: set[tuple[str, str]]) -> list[str]:
    """The rooms from which arrows lead back to themselves."""
    left = set(pairs)
    while dead_ends := {room for _, room in left} - {room for room, _ in left}:
        left = {(room, other) for room, other in left if other not in dead_ends}
    while starts := {room for room, _ in left} - {room for _, room in left}:
        left = {(room, other) for room, other in left if room not in starts}
    return sorted({room for room, _ in left})


def lines_to_open(names: tuple[str, ...]) -> int:
    paths = [ROOT / "revisit" / name for name in names]
    files = [file for path in paths for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    return sum(len(file.read_text().splitlines()) for file in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dynamic", action="store_true", help="also follow the config of a small training, 30 seconds")
    args = parser.parse_args()
    core, density, branching = weigh(ROOT / "revisit")
    around, density_around, branching_around = weigh(ROOT / "projects")
    print(f"core                  {core:,} nodes, {density:.1f} a code line")
    print(f"projects              {around:,} nodes, {density_around:.1f} a code line")
    print(f"core and projects     {core + around:,} nodes")
    pairs = arrows(ROOT / "projects")
    print(f"rooms of projects     {len(rooms(ROOT / 'projects'))}")
    print(f"arrows among them     {len(pairs)}, in circles: {', '.join(in_circles(pairs)) or 'none'}")
    number = f"{len(branching)} functions of the core, {len(branching_around)} of projects"
    print(f"above {MOST_BRANCHES} branches     {number}")
    for function in branching:
        print(f"                      {function}")
    for change, names in OPENED.items():
        print(f"to change {change:<16} {lines_to_open(names):,} lines in files that one opens")
    if args.dynamic:
        with tempfile.TemporaryDirectory() as folder:
            readers, changers = config_traffic(Path(folder))
        print(f"read the config       {len(readers)} files before the first step: {', '.join(sorted(readers))}")
        print(f"change the config     {len(changers)} functions: {', '.join(sorted(changers))}")


if __name__ == "__main__":
    sys.exit(main())
