"""The page docs/config.md, which ``python -m revisit.config`` prints."""

from collections.abc import Iterable
from itertools import groupby

from revisit.keys.declarations import Key


def reference(keys: Iterable[Key]) -> str:
    """The page docs/config.md: a table for each section of our keys."""
    lines, ordered = [_HEADER], sorted(keys, key=lambda key: key.name.rpartition(".")[::2])
    for section, of_section in groupby(ordered, key=lambda key: key.name.rpartition(".")[0]):
        lines.append(
            f"\n## {section or 'Others'}\n\n| key | default | meaning | values | paper |\n|---|---|---|---|---|"
        )
        for key in of_section:
            default, paper = (f"`{value!r}`".replace("|", "\\|") for value in (key.default, key.paper))
            change = " A resumed run may change it." if key.may_change else ""
            readers = f" Read by {', '.join(key.read_by)}." if key.read_by else ""
            expected = key.rule.expected if key.rule else f"of type {type(key.default).__name__}"
            meaning, paper = f"{key.meaning}{readers}{change}", "" if key.paper is None else paper
            cells = (f"`{key.name}`", default, meaning, expected, paper)
            lines.append("| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


_HEADER = """\
# Config keys

Every key that Revisit adds to Detectron2's, from its declaration in the code (`python -m revisit.config` prints this
page). *Values* is the range of the key; *paper* is the paper's value for kNN-MoCo on COCO, if it gives one. A resumed
run refuses other values, unless the table allows it to change the key."""
