"""Every recipe by name, as ``detectron2.model_zoo`` has its own; and MODEL_ZOO.md, the table of them.

from revisit import model_zoo
cfg = model_zoo.get_config("own_images/continue.yaml")

python -m revisit.model_zoo > MODEL_ZOO.md      # after a change of a recipe's header
"""

import re
from pathlib import Path

import revisit.modeling  # noqa: F401  methods add their keys
from revisit.engine.merging import merged_config
from revisit.errors import expect
from revisit.places import CONFIGS

from detectron2.config import CfgNode

_HEAD = """\
# Model zoo

Every recipe of `configs/`; those of the studies are in the READMEs of `projects/`.
`python tools/train_net.py --config-file configs/NAME` runs one, and `revisit.model_zoo.get_config("NAME")` returns its
config. No weights are published: *ours* is what the recipe gave here, if it has been run. *Paper* is what Van Gansbeke et
al. (NeurIPS 2021) print for a ResNet-50 by the same recipe: the same data, the same epochs. Written from the headers of
the recipes by `python -m revisit.model_zoo`.
"""
_NOT_MEASURED = "Ours at this scale: not measured."
_TABLE, _IN_HEADER = f"#{' ' * 13}", "(a table, in the recipe)"  # lines of a header that are set as a table
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


def names() -> list[str]:
    """Of all recipes, such as ``pretrain/knn_moco.yaml``."""
    return sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.glob("*/**/*.yaml"))


def get_config_file(name: str) -> str:
    """The path of a recipe. Raises UserError for a name that there is not."""
    path = CONFIGS / name
    expect(path.is_file() and "/" in name, f"no recipe {name}: expected one of {', '.join(names())}")
    return str(path)


def get_config(name: str) -> CfgNode:
    """A recipe's config over all defaults, as it is written: no schedule is resolved, nothing is checked."""
    return merged_config(get_config_file(name))


def header_of(name: str) -> dict[str, str]:
    """What a recipe says of itself: ``Title``, and by label what follows ``Command``, ``Cost``, ``Ours`` and others."""
    facts, label = {"Title": ""}, "Title"
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
        parts.append(f"## {title}\n\n| recipe | what | data | cost | paper | ours |\n|---|---|---|---|---|---|")
        for name in (name for name in names() if name.startswith(f"{folder}/")):
            facts = header_of(name)
            paper = facts.get("Paper", "").replace(_NOT_MEASURED, "")
            link, ours = f"[{name}](configs/{name})", facts.get("Ours") or "not run"
            cells = (link, facts["Title"], facts.get("Data", ""), facts.get("Cost", ""), paper, ours)
            parts.append(f"| {' | '.join(cell.strip().replace('|', '/') for cell in cells)} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(table(), end="")
