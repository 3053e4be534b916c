"""Modules outside of the tree that a config names in IMPORTS: own methods, heads and data sets."""

import importlib
import os
import sys
from collections.abc import Iterable

from revisit.errors import UserError


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name, which register what they define; the working directory is searched last.

    An exception that a module's own code raises passes unchanged.

    Raises:
        UserError: a name that no module has.
    """
    if os.getcwd() not in sys.path:  # a program in tools/ finds only what lies beside it
        sys.path.append(os.getcwd())
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise _not_importable(name, "no module can have this name")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # it is there, and imports something that is not
                raise
            raise _not_importable(name, str(error)) from error


def _not_importable(name: object, reason: str) -> UserError:
    return UserError(
        f"IMPORTS: cannot import {name!r} ({reason}): expected a module's dotted name, such as my_package.my_method, "
        "in the working directory or on PYTHONPATH"
    )
