"""What lies around the core: projects and other packages that plug in, modules that a config names, commands, recipes.

Commands and recipes lie next to this package, or inside it if it was installed from a wheel.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from revisit.errors import UserError

GROUP = "revisit.plugins"  # of entry points, each of which names a module
PACKAGES = Path(__file__).resolve().parents[1]  # the checkout, or where packages are installed
HOMES = (Path(__file__).resolve().parent / "home", PACKAGES)  # a wheel has what is no package in home/
CONFIGS = next((home / "configs" for home in HOMES if (home / "configs").is_dir()), PACKAGES / "configs")


@cache
def load_plugins() -> None:
    """Import every ``projects/NAME/plugin.py`` and every module of the entry-point group ``revisit.plugins``.

    A plug-in registers what it adds when it is imported: methods, backbones, layouts of labels, config keys.
    """
    for path in sorted(PACKAGES.glob("projects/*/plugin.py")):
        importlib.import_module(f"projects.{path.parent.name}.plugin")
    for entry in entry_points(group=GROUP):
        entry.load()


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name, which register what they define; the working directory is searched last.

    An exception that a module's own code raises passes unchanged. Raises UserError for a name that no module has.
    """
    if os.getcwd() not in sys.path:  # a program in tools/ finds only what lies next to it
        sys.path.append(os.getcwd())
    for name in names:
        try:
            if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
                raise ModuleNotFoundError("no module can have this name", name=str(name))
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # it is there, and imports something that is not
                raise
            raise UserError(
                f"IMPORTS: cannot import {name!r} ({error}): expected a module's dotted name, such as "
                "my_package.my_method, in the working directory or on PYTHONPATH"
            ) from error


def require_package(name: str, message: str) -> ModuleType:
    """The module of a package that an environment may lack. Raises UserError with the message where it does."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(message) from error


def find_file(name: str) -> str:
    """The path of a file that a checkout has as ``name``, such as tools/train_net.py; ``name`` where there is none."""
    return next((str(home / name) for home in HOMES if (home / name).is_file()), name)


def name_from_here(name: str) -> str:
    """``find_file``'s path as a command names it: ``name`` itself where it is seen from the working directory."""
    return name if Path(name).is_file() else find_file(name)


def recipe_names() -> list[str]:
    """Of all recipes, below configs/: own_images/pretrain.yaml."""
    return [path.relative_to(CONFIGS).as_posix() for path in sorted(CONFIGS.rglob("*.yaml"))]


def find_config(name: str) -> str:
    """The path of a config file: as it is seen from here, else a recipe's, with or without ``configs/`` before it."""
    if not name or Path(name).is_file():
        return name
    recipe = CONFIGS / name
    return str(recipe) if recipe.is_file() else find_file(name)
