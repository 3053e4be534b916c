"""What lies around the core: projects and other packages that plug in, modules that a config names, commands, recipes.

They lie next to this package, or inside it, in home/, if it was installed from a wheel.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from revisit.compat.moved import now_at, warn_of_moved, warn_once
from revisit.errors import DEBUG, UserError, first_line

GROUP = "revisit.plugins"  # of entry points, each of which names a module
PACKAGES = Path(__file__).resolve().parents[1]  # the checkout, or where packages are installed
HOMES = (Path(__file__).resolve().parent / "home", PACKAGES)
IS_WHEEL = (HOMES[0] / "projects").is_dir()
PROJECTS = HOMES[0 if IS_WHEEL else 1] / "projects"
# What keeps packages from reporting a run to those who made them, where it is set before their import.
REPORTING = {"ORT_DISABLE_TELEMETRY": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "RAY_USAGE_STATS_ENABLED": "0"}
NAME = "revisit.home.projects" if IS_WHEEL else "projects"  # as Python imports them
TRAIN = "tools/train_net.py"  # as a checkout names it: the program of every training
PLUGGED_IN = ("projects.Objectives", "projects.ToyScenes")  # which IMPORTS had to name in version 0.1
CONFIGS = next((home / "configs" for home in HOMES if (home / "configs").is_dir()), PACKAGES / "configs")


@cache
def load_plugins() -> None:
    """Import every ``projects/NAME/plugin.py`` and every module of the entry-point group ``revisit.plugins``.

    A plug-in registers what it adds when it is imported: methods, backbones, layouts of labels, config keys. Raises
    UserError for one of another package that cannot be imported.
    """
    from importlib.metadata import entry_points  # not at start-up: half of the time that importing this takes

    for path in sorted(PROJECTS.glob("*/plugin.py")):
        importlib.import_module(f"{NAME}.{path.parent.name}.plugin")
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # whatever its code raises
            if DEBUG in os.environ:
                traceback.print_exc()
            package, version = (entry.dist.name, entry.dist.version) if entry.dist else ("a package", "of unknown name")
            raise UserError(
                f"{package} {version} has a plug-in, {entry.value}, that fails ({type(error).__name__}, "
                f"{first_line(error)}): expected another version, or none: pip uninstall {package}; --debug prints "
                "the traceback"
            ) from error


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name, which register what they define; the working directory is searched last, and only if it
    has a module that nothing else has.

    An exception that a module's own code raises passes unchanged. Raises UserError for a name that no module has.
    """
    for name in names:
        if name in PLUGGED_IN:
            warn_once(f"IMPORTS names {name}, which needs no import any more: leave it out")
            continue
        try:
            if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
                raise ModuleNotFoundError("no module can have this name", name=str(name))
            _look_here(name.partition(".")[0])
            _import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # it is there, and imports something that is not
                raise
            raise UserError(
                f"IMPORTS: cannot import {name!r} ({error}): expected a module's dotted name, such as "
                "my_package.my_method, in the working directory or on PYTHONPATH"
            ) from error


def _look_here(name: str) -> None:
    """Search the working directory too, from now on, for a module that it alone has, and what that imports.

    Not before it is asked for: libraries try to import packages that they can do without, and would run a file of that
    name in a folder from elsewhere.
    """
    folder = os.getcwd()
    if folder in sys.path or not PathFinder.find_spec(name, [folder]):
        return
    try:
        spec = find_spec(name)
    except ValueError:  # it was made, not read from a file
        return
    if spec is None or spec.origin is None:  # folders alone, or a wheel's projects, which others may join
        sys.path.append(folder)


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or not _is_in_wheel(name):
            raise
        importlib.import_module(f"revisit.home.{name}")  # a file projects.py of yours has no room for others


def _is_in_wheel(name: str) -> bool:
    """Whether this was installed from a wheel, which has this module or package of projects."""
    place = HOMES[0].joinpath(*name.split("."))
    return name.partition(".")[0] == "projects" and (place.is_dir() or place.with_suffix(".py").is_file())


class _NamesOfCheckout(MetaPathFinder, Loader):
    """Of a wheel: ``projects.NAME`` in your modules and configs is what it is in a checkout, where no package of yours
    has it. A wheel's own code does not need this (setup.py)."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_package = HOMES[0].joinpath(*name.split(".")).is_dir()
        return spec_from_loader(name, self, is_package=is_package) if _is_in_wheel(name) else None

    def exec_module(self, module: ModuleType) -> None:
        own = importlib.import_module(f"revisit.home.{module.__name__}")
        if hasattr(own, "__path__"):  # no place on the disk of its own, from which modules would be loaded twice
            module.__getattr__ = partial(getattr, own)  # type: ignore[method-assign]
        else:
            sys.modules[module.__name__] = own


if IS_WHEEL:
    sys.meta_path.append(_NamesOfCheckout())


def require_package(name: str, message: str) -> ModuleType:
    """The module of a package that an environment may lack. Raises UserError with the message where it does.

    Packages of REPORTING report nothing, unless the environment says that they may.
    """
    for variable, value in REPORTING.items():
        os.environ.setdefault(variable, value)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(message) from error


def find_file(name: str) -> str:
    """The path of a file that a checkout has as ``name``, such as tools/train_net.py; ``name`` where there is none."""
    now = now_at(name)
    place = next((str(home / now) for home in HOMES if (home / now).is_file()), "")
    if place and now != name:
        warn_of_moved(name, now)
    return place or name


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
