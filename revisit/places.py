"""Where commands, recipes and projects lie: beside this package, or inside it where it was installed from a wheel."""

from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1]  # the checkout, or where packages are installed
HOMES = (Path(__file__).resolve().parent / "home", PACKAGES)  # a wheel has what is no package in home/
CONFIGS = next((home / "configs" for home in HOMES if (home / "configs").is_dir()), PACKAGES / "configs")


def find(name: str) -> str:
    """The path of a file that a checkout has as ``name``, such as tools/train_net.py; ``name`` where there is none."""
    return next((str(home / name) for home in HOMES if (home / name).is_file()), name)


def typed(name: str) -> str:
    """``find``'s file as a command names it: ``name`` itself where it is seen from here."""
    return name if Path(name).is_file() else find(name)


def recipe_names() -> list[str]:
    """Of all recipes, below configs/: own_images/pretrain.yaml."""
    return [path.relative_to(CONFIGS).as_posix() for path in sorted(CONFIGS.rglob("*.yaml"))]


def find_config(name: str) -> str:
    """The path of a config file: as it is seen from here, else a recipe's, with or without ``configs/`` before it."""
    if not name or Path(name).is_file():
        return name
    recipe = CONFIGS / name
    return str(recipe) if recipe.is_file() else find(name)
