"""The rules of the house that the syntax trees can tell: where a fact is declared, and which way arrows point."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from commands import ROOT

from revisit.compat.moved import EVALUATIONS
from revisit.keys import KEYS
from revisit.modeling.meta_arch.pretraining import methods
from revisit.plugins import load_plugins

# Each may import what stands above it, and its own room. Names below api are folders of projects/, then rings.
ROOMS = (
    ("errors",),
    ("compat", "files", "progress", "threads"),
    ("arrays", "markdown"),
    ("plugins",),
    ("keys",),
    ("config",),
    ("data",),
    ("modeling", "boxes"),
    ("evaluation", "checkpoint"),
    ("network",),
    ("engine",),
    ("command",),
    ("jobs",),
    ("model_zoo", "api"),
    ("LargeData", "Weights", "Pictures", "Pixels"),
    ("Planning", "Paper", "Predict", "FrozenEvaluations"),
    ("Rows", "Reports", "Teacher", "ToyScenes", "Tiles"),
    ("CompareStarts", "Objectives", "Discover"),
    ("Labels",),
    ("tools", "datasets"),
    ("studies", "examples"),
)
FILES_OF_CORE = {"__init__", "__main__"}
LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


@cache
def trees() -> dict[Path, ast.Module]:
    """The syntax of all source files: not of the module, which every process of the suite imports."""
    return {
        path.relative_to(ROOT): ast.parse(path.read_text())
        for ring in ("revisit", "projects", "tools", "datasets", "studies", "examples")
        for path in sorted((ROOT / ring).rglob("*.py"))
    }


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All of a tree, which most tests of the code ask for."""
    return tuple(ast.walk(tree))


def room_of(path: Path) -> str:
    """The room of a source file: a folder or file right below revisit/ or projects/, or another ring."""
    return path.parts[1].removesuffix(".py") if path.parts[0] in ("revisit", "projects") else path.parts[0]


def room_of_module(name: str) -> str:
    """That of a dotted name."""
    ring, _, rest = name.partition(".")
    return rest.partition(".")[0] if rest and ring in ("revisit", "projects") else ring


def words_of(tree: ast.Module) -> Iterator[str]:
    """All identifiers and strings of a syntax tree, docstrings too."""
    for node in nodes_of(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module", "value"):
            if isinstance(getattr(node, field, None), str):
                yield getattr(node, field)


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_arrows_only_point_down():
    upwards = []
    for path, tree in trees().items():
        room = room_of(path)
        for module in imported_names(tree):
            target = room_of_module(module)
            if room in LEVELS and target in LEVELS and target != room and LEVELS[target] >= LEVELS[room]:
                upwards.append(f"{path} imports {module}")
    assert upwards == []


def test_every_room_has_its_floor():
    without = {room_of(path) for path in trees()} - LEVELS.keys()
    assert without == {*FILES_OF_CORE, *EVALUATIONS}


def test_a_methods_file_is_its_mathematics_and_its_hooks():
    """No room around the methods names one."""
    load_plugins()
    names = {method.__name__.lower() for method in methods()}
    assert {"moco", "knnmoco", "densecl", "simclr"} <= names
    around = {path: tree for path, tree in trees().items() if room_of(path) in ("engine", "checkpoint", "data")}
    named = [
        f"{path}: {word!r}"
        for path, tree in around.items()
        for word in words_of(tree)
        if any(name in re.sub("[^a-z]", "", word.lower()) for name in names)
    ]
    assert named == []


def test_every_project_has_a_readme_and_its_line_in_the_map():
    projects = {path.parent.name for path in (ROOT / "projects").glob("*/*.py")} - EVALUATIONS.keys()
    table = (ROOT / "projects/README.md").read_text()
    lines = re.findall(r"^\| (\d) \| \[(\w+)\]\((\w+)/README\.md\) \| .+ \|$", table, re.MULTILINE)
    ground = LEVELS["api"]
    floors = {(str(LEVELS[name] - ground), name, name) for name in projects}
    assert len(lines) == len(projects) and set(lines) == floors
    assert [name for name in projects if not (ROOT / "projects" / name / "README.md").is_file()] == []


def test_a_key_is_declared_in_one_place():
    """By ``declare`` or a short form of a module's own, such as ``moco``."""
    load_plugins()
    statements = (node for tree in trees().values() for node in tree.body if isinstance(node, ast.Expr))
    calls = [node.value for node in statements if isinstance(node.value, ast.Call) and node.value.args]
    firsts = [getattr(call.args[0], "value", None) for call in calls]
    places = Counter(first for first in firsts if first in KEYS)
    assert {"MOCO.MOMENTUM", "VIEWS.LARGE_SIZE", "NEIGHBORS.WEIGHT", "KNN_EVAL.BANK"} <= places.keys()
    assert [key for key, count in places.items() if count > 1] == []


def test_every_citation_leads_to_a_heading():
    headings = set(re.findall(r"^#+ (.+)$", (ROOT / "docs/method.md").read_text(), re.MULTILINE))
    texts = [" ".join(word.split()) for tree in trees().values() for word in words_of(tree) if "docs/method.md" in word]
    cited = {page for text in texts for page in re.findall(r"docs/method\.md: ([^)]+)\)", text)}
    assert cited and {heading for page in cited for heading in page.split(", ")} <= headings


def test_every_dataclass_is_frozen():
    """A sampler or a crop is what it was made as, so that its draws depend on their counters alone."""
    nodes = (node for tree in trees().values() for node in nodes_of(tree) if isinstance(node, ast.ClassDef))
    made = [(node.name, ast.unparse(each)) for node in nodes for each in node.decorator_list]
    made = [(name, how) for name, how in made if how.startswith("dataclass")]
    assert made and [name for name, how in made if how != "dataclass(frozen=True)"] == []


def test_yaml_that_anybody_may_have_written_is_read_in_one_place():
    loaders = {"load", "safe_load", "unsafe_load", "full_load", "load_all", "load_yaml_with_base", "merge_from_file"}
    calls = [
        f"{path}: {ast.unparse(node)}"
        for path, tree in trees().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute) and node.attr in loaders
    ]
    by_yaml = [call for call in calls if "yaml" in call.partition(": ")[2] or "merge_from_file" in call]
    of_our_own_dump = "projects/Reports/text_tables.py: yaml.safe_load"
    assert by_yaml == ["revisit/files.py: yaml.load", of_our_own_dump]
    names = {name for tree in trees().values() for name in imported_names(tree)}
    assert names.isdisjoint(f"yaml.{loader}" for loader in loaders)


def test_arrays_that_anybody_may_have_written_are_read_in_one_place():
    readers = {"load", "read_array", "fromfile", "memmap", "loadtxt", "genfromtxt", "NpzFile"}
    calls = [
        f"{path}: {ast.unparse(node)}"
        for path, tree in trees().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute) and node.attr in readers
    ]
    assert [call for call in calls if re.search(r": (np|numpy|npy)\b", call)] == ["revisit/arrays.py: npy.read_array"]


def test_private_names_of_libraries_stand_in_compat_alone():
    """``self._x`` is one's own; so are the documented names of NamedTuple, os and sys. Torch has no public names for
    what simulates a step."""
    own = {"self", "cls", "super()", "os", "sys"}
    documented = {"_replace", "_asdict", "_fields"}
    used = []
    for path, tree in trees().items():
        if room_of(path) == "compat" or path == Path("projects/Planning/simulation.py"):
            continue
        for node in nodes_of(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) not in own:
                used.append(f"{path}: {ast.unparse(node)}")
        used += [f"{path}: {name}" for name in imported_names(tree) if any(map(is_private, name.split(".")))]
    assert [use for use in used if use.rpartition(".")[2] not in documented] == []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Names in full: ``from a.b import c`` has ``a.b.c``."""
    yield from imports_of(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
