"""Keys that others have replaced: configs, command lines and runs that have them keep their meaning, and it is said."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from revisit.config_rules import dotted_keys

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


class Replacement(NamedTuple):
    """The new key, and its value by a config's values by dotted key, with the old one, and a number of processes."""

    new: str
    value: Callable[[Mapping[str, Any], int], Any]


_REPLACED: dict[str, Replacement] = {}
_LATER = {"VIEWS.REDUCED_IMAGES": False}  # what runs did before there were these keys


def replace_key(old: str, new: str, value: Callable[[Mapping[str, Any], int], Any]) -> None:
    """From now on ``old`` means ``new``, with what ``value`` makes of it; ``value`` may raise UserError."""
    _REPLACED[old] = Replacement(new, value)


def await_older_keys(cfg: CfgNode) -> dict[str, Any]:
    """Before anything is merged: let ``cfg`` take older keys, and unset the new ones, whose defaults are returned."""
    defaults = {new: dotted_keys(cfg)[new] for new, _ in _REPLACED.values()}
    for old, (new, _) in _REPLACED.items():
        for key in (old, new):
            node, name = _place(cfg, key)
            node[name] = None
    return defaults


def settle_older_keys(
    cfg: CfgNode, defaults: Mapping[str, Any], opts: Sequence[object], num_processes: int, run: Mapping[str, Any]
) -> None:
    """After everything is merged: the new keys as they are stated, else as the older key says, else as in ``run``.

    Args:
        defaults: of ``await_older_keys``.
        opts: the KEY VALUE pairs that were typed; they win over a file.
        run: ``state_of_run`` of the run that is taken up; {} if there is none.
    """
    typed, values, before = set(map(str, opts[::2])), dotted_keys(cfg), run.get("config", {})
    begun = without_older_keys(before, run.get("world_size", 1))
    for old, (new, value) in _REPLACED.items():
        node, name = _place(cfg, new)
        if values[old] is not None and (old in typed or new not in typed):
            node[name] = value(values, num_processes)
            logger.warning(f"{old} {values[old]} is an older key: it is taken as what it means now, {new} {node[name]}")
        elif values[new] is None:
            node[name] = begun.get(new, defaults[new])
            if old in before or node[name] != defaults[new]:
                origin = f"{old} {before[old]}, an older key" if old in before else "it"
                logger.warning(f"{new} {node[name]}: nothing else is stated, and the run began with {origin}")
        node, name = _place(cfg, old)
        del node[name]


def without_older_keys(values: Mapping[str, Any], num_processes: int) -> dict[str, Any]:
    """A checkpoint's config by dotted key, of a run of so many processes, by the keys of today."""
    here = {old: replacement for old, replacement in _REPLACED.items() if old in values}
    return (
        _LATER
        | {key: value for key, value in values.items() if key not in here}
        | {new: value(values, num_processes) for new, value in here.values()}
    )


def _place(cfg: CfgNode, key: str) -> tuple[CfgNode, str]:
    *nodes, name = key.split(".")
    for node in nodes:
        cfg = cfg[node]
    return cfg, name
