"""Every recipe by name, as ``detectron2.model_zoo`` has its own.

from revisit import model_zoo
cfg = model_zoo.get_config("own_images/continue.yaml")
"""

import revisit.modeling  # noqa: F401  methods add their keys
from revisit.engine.merging import merged_config, read_stated
from revisit.errors import expect
from revisit.plugins import CONFIGS

from detectron2.config import CfgNode


def names() -> list[str]:
    """Of all recipes, such as ``pretrain/knn_moco.yaml``."""
    return sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.glob("*/**/*.yaml"))


def get_config_file(name: str) -> str:
    """The path of a recipe. Raises UserError for an unknown name."""
    path = CONFIGS / name
    expect(path.is_file() and "/" in name, f"no recipe {name}: expected one of {', '.join(names())}")
    return str(path)


def get_config(name: str) -> CfgNode:
    """A recipe's config over all defaults, as it is written: no schedule is resolved, nothing is checked."""
    return merged_config(read_stated(get_config_file(name)))
