"""Modules outside of the tree: those that a config names in IMPORTS, and packages that may not be installed."""

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from revisit.errors import UserError


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name, which register what they define; the working directory is searched last.

    An exception that a module's own code raises passes unchanged. Raises UserError for a name that no module has.
    """
    if os.getcwd() not in sys.path:  # a program in tools/ finds only what lies beside it
        sys.path.append(os.getcwd())
    for name in names:
        try:
            if not all(part.isidentifier() for part in str(name).split(".")):
                raise ModuleNotFoundError("no module can have this name", name=name)
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
