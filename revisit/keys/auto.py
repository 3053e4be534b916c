"""Keys that decide themselves: what 0, -1 or auto stands for follows from other keys and from facts of the run.

Such a key is declared with ``resolve``. ``resolve_auto_values`` is the one place that changes a config once it is
merged.
"""

import fnmatch
import logging
from collections.abc import Collection, Iterator
from dataclasses import replace
from graphlib import TopologicalSorter

from revisit.keys.declarations import (
    KEYS,
    OF_DETECTRON2,
    Key,
    alternatives,
    assign,
    declaration,
    dotted_keys,
    is_among,
    is_read,
    value_of,
    with_values,
)
from revisit.keys.facts import Decision, Facts

from detectron2.config import CfgNode

logger = logging.getLogger(__name__)


def resolve_auto_values(cfg: CfgNode, facts: Facts) -> list[str]:
    """Decide, in place, what the keys of a config leave open and the facts settle.

    A key comes after those that its declaration names. A resumed run keeps what its earlier part decided, where the
    decision says so. A key that is stated nearer to the user than another one is not replaced by its decision.

    Returns:
        Names of the keys that took a decision. Each is logged in a line.
    """
    was_frozen = cfg.is_frozen()
    cfg.defrost()
    decided = []
    for key in _in_order(cfg):
        decision = key.resolve(cfg, replace(facts, key=key.name))
        if decision is None:
            continue
        values, why = _values(key.name, value_of(cfg, key.name), decision, facts)
        changed = {name: value for name, value in values.items() if value_of(cfg, name) != value}
        for name, value in changed.items():
            assign(cfg, name, value)
        if changed:
            decided.append(key.name)
            logger.log(decision.level, f"{', '.join(f'{name} {value!r}' for name, value in changed.items())}: {why}")
    if was_frozen:
        cfg.freeze()
    return decided


def _in_order(cfg: CfgNode) -> Iterator[Key]:
    """Keys of the config that decide themselves, each after those that it goes by."""
    names = dotted_keys(cfg)
    declared = [key for key in (*KEYS.values(), *OF_DETECTRON2) if key.resolve]
    named = [(name, key) for key in declared for name in fnmatch.filter(names, key.name)]
    keys = dict(named)
    assert len(keys) == len(named), "a key has two ways to decide itself"
    before = {name: [other for other in keys if is_among(other, key.after)] for name, key in keys.items()}
    order = TopologicalSorter(before).static_order()
    return (keys[name]._replace(name=name) for name in order if name in keys)


def is_free(name: str, stated: Collection[str]) -> bool:
    """Whether neither a key is stated nor another one that decides the same, such as a period in epochs."""
    key = declaration(name)
    twins = {twin.name for twin in alternatives().get(key.decides, ()) if twin.off is not None}
    return name not in stated and (name not in twins or twins.isdisjoint(stated))


def _values(name: str, now: object, decision: Decision, facts: Facts) -> tuple[dict[str, object], str]:
    """Values by key, and why; those of the earlier part of a resumed run where it has decided and they are kept."""
    stated = facts.stated_nearer(name)
    others = {key: value for key, value in decision.others.items() if is_free(key, stated)}
    values = {name: decision.value, **others}
    earlier = facts.before.get(name, now)
    has_decided = name in facts.before and (earlier != now or earlier == decision.value)
    if decision.kept and has_decided:
        return {key: facts.before.get(key, value) for key, value in values.items()}, "as the run began"
    return values, decision.why


def is_open(cfg: CfgNode) -> bool:
    """Whether the network reads a key that still waits for the number of images."""
    return any(is_read(cfg, name) and value_of(cfg, name) == 0 for name, key in KEYS.items() if key.by_images)


def counted(cfg: CfgNode, images: int) -> CfgNode:
    """A copy in which the keys that wait for the number of images go by so many."""
    for name, key in KEYS.items():
        decision = key.resolve(cfg, Facts(name, images)) if key.by_images else None
        if decision:
            cfg = with_values(cfg, {name: decision.value})
    return cfg
