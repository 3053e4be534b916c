"""What plugs into the core: projects of this repository and other packages, which the core does not know by name."""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from revisit.places import PACKAGES

GROUP = "revisit.plugins"  # of entry points, each of which names a module


@cache
def load_plugins() -> None:
    """Import every ``projects/NAME/plugin.py`` and every module of the entry-point group ``revisit.plugins``.

    A plug-in registers what it adds when it is imported: methods, backbones, layouts of labels, config keys.
    """
    for path in sorted(PACKAGES.glob("projects/*/plugin.py")):
        import_module(f"projects.{path.parent.name}.plugin")
    for entry in entry_points(group=GROUP):
        entry.load()
