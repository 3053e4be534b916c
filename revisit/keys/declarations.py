"""Config keys, each declared once, next to the code that owns it: default, meaning, range, and who reads it.

``add_declared_keys``, ``check_values``, the keys that a resumed run may change, the warning of keys that nothing reads,
the values that decide themselves, and the page docs/config.md all follow from the declarations.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache, partial, reduce
from typing import Any, NamedTuple

from revisit.errors import UserError
from revisit.keys.architectures import Architecture, architecture_named
from revisit.keys.facts import Decision, Facts, Resolve
from revisit.keys.values import Rule, short_repr

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from fvcore.common.registry import Registry

# Kinds of networks, as names of meta-architectures that read_by takes.
DETECTORS = ("GeneralizedRCNN", "RetinaNet")  # those that predict boxes
PIXELWISE = ("SemanticSegmentor", "DepthEstimator")  # those that predict every pixel
FINETUNING = (*DETECTORS, *PIXELWISE)
PRETRAINING = "Pretraining"  # the base class of every pretraining method

# What a value is part of.
NETWORK = "network"  # the trained network, its boxes and its input: whoever uses a checkpoint must agree with it
TRAINING = "training"  # how the network was trained: whoever uses a checkpoint may choose another value
RUN = "run"  # the run and its machine: never taken from a checkpoint. What IMPORTS names is code


class Key(NamedTuple):
    """A declaration. One of Detectron2's has neither default nor meaning, and its name may have * for some parts."""

    name: str
    default: object = None
    meaning: str = ""
    rule: Rule | None = None
    paper: object = None
    may_change: bool = False
    read_by: tuple[str, ...] = ()
    scope: str = ""
    decides: str = ""
    off: object = None
    resolve: Resolve | None = None
    also_decides: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    by_images: bool = False
    owner: str = "detectron2"  # module that declares it


UNSTATED = Key("")  # its fields are as in a declaration that does not state them; None is not 0
KEYS: dict[str, Key] = {}  # ours, by full name
OF_DETECTRON2: list[Key] = []  # in order: of two that speak of one thing, the first counts


def declare(
    name: str,
    default: object,
    meaning: str,
    rule: Rule | None = None,
    *,
    by_images: Callable[[CfgNode, int], object] | None = None,
    **fields: Any,
) -> None:
    """Declare one of our keys, when the module that owns it is imported.

    Args:
        meaning: a sentence or two, with the symbol that docs/method.md has for it; docs/config.md prints it.
        rule: which values are sensible whatever the other keys say; None: any of the default's type.
        paper: the paper's value for kNN-MoCo on COCO, where it gives one.
        may_change: whether a resumed run may have another value without being another experiment.
        read_by: meta-architectures, by class name, that read it, with their subclasses; (): all.
        scope: NETWORK, TRAINING or RUN; "": as the patterns of ``of_detectron2`` say.
        decides: what several keys decide, such as "length". Where one of them is stated, the others are ``off``.
        off: the value that leaves the decision to the other keys; None: the value stays as it is.
        resolve: decides the value by other keys and the facts of the run (``revisit.keys.auto``).
        also_decides: keys that ``resolve`` decides with this one, where they are not stated.
        after: keys that have to be decided before this one, by name or pattern.
        by_images: what 0 stands for, of a config and its number of training images; instead of ``resolve``.
    """
    owner = sys._getframe(1).f_globals["__name__"]
    assert name not in KEYS or KEYS[name].owner == owner, f"{name} is declared by {KEYS[name].owner} and {owner}"
    if by_images:
        fields |= {"by_images": True, "resolve": _by_images(by_images), "after": "SOLVER.IMS_PER_BATCH"}
    KEYS[name] = Key(name, default, meaning, rule, owner=owner, **_with_tuples(fields))
    declaration.cache_clear()


def _by_images(of_images: Callable[[CfgNode, int], object]) -> Resolve:
    def resolve(cfg: CfgNode, facts: Facts) -> Decision | None:
        if facts.images is None or value_of(cfg, facts.key) != 0 or not is_read(cfg, facts.key):
            return None
        return Decision(of_images(cfg, facts.images), f"by the {facts.images} images", kept=True)

    return resolve


def of_detectron2(*patterns: str, **fields: Any) -> None:
    """Declare for Detectron2's keys what ``declare`` states for ours: rule, may_change, read_by, scope, decides, off,
    resolve, after. What several patterns state for a key adds up."""
    OF_DETECTRON2.extend(Key(pattern, **_with_tuples(fields)) for pattern in patterns)
    declaration.cache_clear()


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a declaration, where one name may stand for a tuple of one."""
    tuples = {}
    for field in ("read_by", "after"):
        names = fields.get(field, ())
        tuples[field] = (names,) if isinstance(names, str) else tuple(names)
    return {**fields, **tuples}


@cache
def declaration(name: str) -> Key:
    """What is declared of a full key: of each field the first declaration that has it."""
    merged = KEYS.get(name, Key(name))
    for key in OF_DETECTRON2:
        if not fnmatchcase(name, key.name):
            continue
        is_open = {field for field in Key._fields if getattr(merged, field) == getattr(UNSTATED, field)}
        merged = merged._replace(**{field: getattr(key, field) for field in is_open})
    return merged


def is_among(name: str, patterns: Iterable[str]) -> bool:
    """Whether a full key is one of some, whose names may have * for some parts."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def add_declared_keys(cfg: CfgNode) -> None:
    """Add the default of every declared key to a config, in place."""
    for key in KEYS.values():
        *nodes, last = key.name.split(".")
        node = cfg
        for part in nodes:
            node = node.setdefault(part, CfgNode())
        node[last] = key.default


def value_of(cfg: CfgNode, key: str) -> Any:
    """The value of a full key."""
    return reduce(getattr, key.split("."), cfg)


def assign(cfg: CfgNode, key: str, value: object) -> None:
    """Set a full key, in place: all that changes a config once it is made comes through here."""
    *nodes, last = key.split(".")
    setattr(reduce(getattr, nodes, cfg), last, value)


def with_values(cfg: CfgNode, values: Mapping[str, object]) -> CfgNode:
    """A copy, not frozen, with other values of full keys."""
    cfg = cfg.clone()
    cfg.defrost()
    for key, value in values.items():
        assign(cfg, key, value)
    return cfg


def dotted_keys(node: dict, prefix: str = "") -> dict[str, Any]:
    """All keys of a config or of nested dicts, in full, with their values."""
    values = {}
    for key, value in node.items():
        values |= dotted_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def check_values(cfg: CfgNode) -> None:
    """Raise UserError for the first key whose value has no sense whatever the other keys say."""
    for name, value in dotted_keys(cfg).items():
        rule = declaration(name).rule
        if rule and not rule.holds(value):
            raise UserError(f"{name} is {short_repr(value)}: expected {rule.expected}{_names_in(rule.registry)}")


def _names_in(registry: Registry | None) -> str:
    """What a registry has, for a message; "" without one."""
    if registry is None:
        return ""
    names = ", ".join(sorted(name for name, _ in registry)) or "nothing"
    return f", which has {names}; a module of IMPORTS may add others"


def alternatives() -> dict[str, list[Key]]:
    """Keys by what they decide together."""
    groups: dict[str, list[Key]] = {}
    for key in (*KEYS.values(), *OF_DETECTRON2):
        if key.decides:
            groups.setdefault(key.decides, []).append(key)
    return groups


def network_of(cfg: CfgNode) -> type[Architecture]:
    """The meta-architecture that MODEL.META_ARCHITECTURE names. Raises KeyError, which says the name."""
    return architecture_named(cfg.MODEL.META_ARCHITECTURE)


def architecture_of(cfg: CfgNode) -> str:
    """The name of the meta-architecture that predicts: MODEL.META_ARCHITECTURE, or the one that it is built around."""
    return predictor_of(cfg.MODEL.META_ARCHITECTURE, partial(value_of, cfg))


def predictor_of(architecture: str, value: Callable[[str], Any]) -> str:
    """The name of the meta-architecture that predicts; ``value`` gives a full key's."""
    key = architecture_named(architecture).around if architecture in META_ARCH_REGISTRY else ""
    return value(key) if key else architecture


def is_read(cfg: CfgNode, name: str) -> bool:
    """Whether the network of MODEL.META_ARCHITECTURE reads a key; a network that nothing is known of reads all of
    Detectron2's. A method's ``also_reads`` and ``unread`` come before what it inherits."""
    readers = declaration(name).read_by
    if not readers:
        return True
    network = network_of(cfg)
    if is_among(name, network.also_reads):
        return True
    if is_among(name, network.unread):
        return False
    lineage = {cls.__name__ for cls in network.__mro__} | {architecture_of(cfg)} & {*FINETUNING}
    return bool(lineage & set(readers)) or (name not in KEYS and not lineage & {PRETRAINING, *FINETUNING})
