"""MODEL_ZOO.md, the table of all recipes, from their headers.

python -m revisit.model_zoo > MODEL_ZOO.md      # after a change of a recipe's header
"""

import re
from pathlib import Path

from revisit.markdown import markdown_table
from revisit.model_zoo import get_config_file, names

_HEAD = """\
# Model zoo

Every recipe of `configs/`; those of the studies are in the READMEs of `projects/`.
`python tools/train_net.py --config-file configs/NAME` runs one, and `revisit.model_zoo.get_config("NAME")` returns its
config. No weights of ours are published; `MODEL.WEIGHTS` takes some of others [by a name](docs/weights.md#by-a-name).
*Ours* is what the recipe gave here, if it has been run. *Paper* is what Van Gansbeke et al. (NeurIPS 2021) print for a
ResNet-50 by the same recipe: the same data, the same epochs. Written from the headers of the recipes by `python -m
revisit.model_zoo`.
"""
_HEADERS = ("recipe", "what", "data", "cost", "paper", "ours")
_NOT_MEASURED = "Ours at this scale: not measured."
_TABLE = f"#{' ' * 13}"  # how lines of a header begin that are set as a table
_IN_HEADER = "(a table, in the recipe)"
_TITLES = {
    "pretrain": "Pretraining, as in the paper",
    "own_images": "Your own images",
    "detection": "Detection",
    "segmentation": "Semantic segmentation",
    "depth": "Depth",
    "cifar10": "CIFAR-10",
    "blood_cells": "Blood cells",
    "toy": "ToyScenes, on a CPU",
}


def header_of(name: str) -> dict[str, str]:
    """What a recipe says of itself: ``Title``, and by label what follows ``Command``, ``Cost``, ``Ours`` and others."""
    label = "Title"
    facts = {label: ""}
    for line in Path(get_config_file(name)).read_text().splitlines():
        if not line.startswith("#"):
            break
        if line.startswith(_TABLE):
            text = "" if facts[label].endswith(_IN_HEADER) else _IN_HEADER
        elif start := re.match(r"# ([A-Z][a-z]+) {2,}(.*)", line):
            label, text = start[1], start[2]
        else:
            text = line[1:].strip()
        facts[label] = f"{facts.get(label, '')} {text}".strip()
    return facts


def table() -> str:
    """MODEL_ZOO.md."""
    parts = [_HEAD]
    for folder, title in _TITLES.items():
        rows = [_row(name) for name in names() if name.startswith(f"{folder}/")]
        parts.append(f"## {title}\n\n{markdown_table(_HEADERS, rows)}\n")
    return "\n".join(parts)


def _row(name: str) -> list[str]:
    facts = header_of(name)
    paper = facts.get("Paper", "").replace(_NOT_MEASURED, "")
    link, ours = f"[{name}](configs/{name})", facts.get("Ours") or "not run"
    cells = (link, facts["Title"], facts.get("Data", ""), facts.get("Cost", ""), paper, ours)
    return [cell.strip().replace("|", "/") for cell in cells]


if __name__ == "__main__":
    print(table(), end="")
