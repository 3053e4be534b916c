"""Weights by a name instead of a file, such as ``imagenet:efficientnet_lite0``: converted once, and kept for the user.

Plug-ins say which names there are: whatever knows a package or a network address stands in them.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from revisit.checkpoint.flags import read_flags
from revisit.errors import UserError
from revisit.files import local_copy, make_folder, one_at_a_time, user_cache
from revisit.plugins import load_plugins

from fvcore.common.registry import Registry

logger = logging.getLogger(__name__)

NAMED_WEIGHTS_REGISTRY = Registry("NAMED_WEIGHTS")
NAMED_WEIGHTS_REGISTRY.__doc__ = """
Functions of what follows the colon in ``imagenet:NAME``, each registered under the word before it. They return the
converted file on this machine, with its flags next to it (``kept_file``), and raise UserError where they cannot.
"""


def is_named(weights: str) -> bool:
    """Whether weights are named by a word that is registered and a colon, not by a file or a URL."""
    load_plugins()
    kind, colon, _ = weights.partition(":")
    return bool(colon) and kind in NAMED_WEIGHTS_REGISTRY


def weights_file(weights: str, what: str = "MODEL.WEIGHTS") -> Path:
    """The file of weights on this machine, named ``imagenet:NAME``, by its path or by its URL. Raises UserError where
    there is none, with ``what`` it is for."""
    if not is_named(weights):
        return local_copy(weights, what)
    kind, _, name = weights.partition(":")
    return NAMED_WEIGHTS_REGISTRY.get(kind)(name)


def expected_weights() -> str:
    """What may name weights, for a message."""
    return " or ".join(("a file of weights", *(f"{kind}:NAME" for kind, _ in NAMED_WEIGHTS_REGISTRY)))


def cache_folder() -> Path:
    """Where converted weights are kept."""
    return user_cache() / "weights"


def kept_file(name: str, write: Callable[[Path], None]) -> Path:
    """The file ``name`` below ``cache_folder``, which ``write`` writes, with its flags, where it is missing or damaged.

    Of several processes one writes it, and the others wait.
    """
    path = cache_folder() / name
    if _is_whole(path):
        return path
    make_folder(path.parent, "the folder of converted weights (XDG_CACHE_HOME)")
    with one_at_a_time(f"{path}.lock"):
        if not _is_whole(path):
            write(path)
            logger.info(f"wrote {path}")
    return path


def _is_whole(path: Path) -> bool:
    """Whether both files are there, and the checksum in the flags is that of the weights."""
    try:
        return path.is_file() and read_flags(path)[0] is not None
    except UserError as error:
        logger.warning(f"{error}: converting them again")
        return False
