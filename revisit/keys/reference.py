"""The page docs/config.md, which ``python -m revisit.config`` prints."""

from collections.abc import Iterable
from itertools import groupby

from revisit.keys.declarations import Key
from revisit.markdown import markdown_table


def reference(keys: Iterable[Key]) -> str:
    """The page docs/config.md: a table for each section of our keys."""
    parts, ordered = [_HEADER], sorted(keys, key=lambda key: key.name.rpartition(".")[::2])
    for section, of_section in groupby(ordered, key=lambda key: key.name.rpartition(".")[0]):
        parts.append(f"## {section or 'Others'}\n\n{markdown_table(_COLUMNS, map(_row, of_section))}")
    return "\n\n".join(parts) + "\n"


def _row(key: Key) -> list[str]:
    default, paper = (f"`{value!r}`" for value in (key.default, key.paper))
    change = " A resumed run may change it." if key.may_change else ""
    readers = f" Read by {', '.join(key.read_by)}." if key.read_by else ""
    expected = key.rule.expected if key.rule else f"of type {type(key.default).__name__}"
    meaning, paper = f"{key.meaning}{readers}{change}", "" if key.paper is None else paper
    return [f"`{key.name}`", default, meaning, expected, paper]


_COLUMNS = ("key", "default", "meaning", "values", "paper")
_HEADER = """\
# Config keys

Every key that Revisit adds to Detectron2's, from its declaration in the code (`python -m revisit.config` prints this
page). *Values* is the range of the key; *paper* is the paper's value for kNN-MoCo on COCO, if it gives one. A resumed
run refuses other values, unless the table allows it to change the key."""
