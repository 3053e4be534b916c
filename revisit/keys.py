"""Config keys, each declared once, beside the code that owns it: default, meaning, range, and who reads it.

``add_declared_keys``, ``check_values``, the keys that a resumed run may change, the warning of keys that nothing reads,
and the page docs/config.md (``python -m revisit.config``) all follow from the declarations.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from functools import reduce
from itertools import groupby
from typing import Any, NamedTuple

from revisit.errors import UserError

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from fvcore.common.registry import Registry


class Rule(NamedTuple):
    """What a value has to be: in words, with the unit, and as a test of a value of any type."""

    expected: str
    holds: Callable[[Any], bool]


def integer(low: int = 0, high: int = 2**31 - 1, unit: str = "") -> Rule:
    """A whole number from ``low`` to ``high``, both included."""
    limit = f"from {low} to {high}" if high < 2**31 - 1 else f"of at least {low}"
    return Rule(f"a whole number {limit}{unit and ' ' + unit}", lambda v: type(v) is int and low <= v <= high)


def number(low: float = 0.0, high: float = math.inf, unit: str = "", *, open_low: bool = False) -> Rule:
    """A finite number from ``low``, which ``open_low`` excludes, to ``high``."""
    bottom = f"above {low:g}" if open_low else f"of at least {low:g}"
    limit = bottom if math.isinf(high) else f"{bottom}, and at most {high:g}"

    def holds(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # nan neither
        return number and (low < value if open_low else low <= value) and value <= high

    return Rule(f"a number {limit}{unit and ' ' + unit}", holds)


def one_of(*choices: object) -> Rule:
    """One of a few values."""
    words = ", ".join("''" if choice == "" else str(choice) for choice in choices)
    return Rule(f"one of {words}", lambda v: any(type(v) is type(choice) and v == choice for choice in choices))


def list_of(rule: Rule, count: int | None = None, *, least: int = 0, rising: bool = False) -> Rule:
    """A list of values that ``rule`` holds for: ``count`` of them, or at least so many, none smaller than the last."""
    at_least = f"at least {least} value{'s' * (least > 1)}" if least else "a list"
    length = f"{count} values" if count else at_least
    order = ", in rising order" if rising else ""

    def holds(values: Any) -> bool:
        fits = isinstance(values, list | tuple) and len(values) >= least and count in (None, len(values))
        return fits and all(map(rule.holds, values)) and (not rising or list(values) == sorted(values))

    return Rule(f"{length}{order}, each {rule.expected}", holds)


def optional(rule: Rule) -> Rule:
    """As the rule, or None."""
    return Rule(f"None, or {rule.expected}", lambda v: v is None or rule.holds(v))


def registered(registry: Registry, name: str) -> Rule:
    """The name of an object in a registry, which may be filled until a config is checked. ``name``: the registry's."""
    return Rule(f"a name in {name}", lambda v: isinstance(v, str) and v in registry)


# Kinds of networks, as names of meta-architectures that read_by takes.
DETECTORS = ("GeneralizedRCNN", "RetinaNet")  # those that predict boxes
PIXELWISE = ("SemanticSegmentor", "DepthEstimator")  # those that predict every pixel
FINETUNING = (*DETECTORS, *PIXELWISE)
PRETRAINING = "Pretraining"  # the base class of every pretraining method

SHARE, POSITIVE, COUNT = number(0, 1), number(open_low=True), integer(1, 2**20)
PIXELS = integer(1, 2**14, "px")
SWITCH = one_of(False, True)


class Key(NamedTuple):
    """A declaration. One of Detectron2's has neither default nor meaning, and its name may have * for some parts."""

    name: str
    default: object
    meaning: str
    rule: Rule | None
    paper: object
    may_change: bool
    read_by: tuple[str, ...]
    owner: str  # module that declares it
    by_images: Callable[[CfgNode, int], object] | None = None


KEYS: dict[str, Key] = {}  # ours, by full name
OF_DETECTRON2: dict[str, Key] = {}  # by full name or pattern; the first match counts


def declare(
    name: str,
    default: object,
    meaning: str,
    rule: Rule | None = None,
    *,
    paper: object = None,
    may_change: bool = False,
    read_by: str | Collection[str] = (),
    by_images: Callable[[CfgNode, int], object] | None = None,
) -> None:
    """Declare one of our keys, when the module that owns it is imported.

    Args:
        meaning: a sentence or two, with the symbol that docs/method.md has for it; docs/config.md prints it.
        rule: what values are sensible whatever the other keys say; None: any of the default's type.
        paper: the paper's value for kNN-MoCo on COCO, where it gives one.
        may_change: whether a resumed run may have another value without being another experiment.
        read_by: meta-architectures, by class name, that read it, with their subclasses; (): all.
        by_images: what 0 stands for, of a config and its number of training images.
    """
    owner = sys._getframe(1).f_globals["__name__"]
    assert name not in KEYS or KEYS[name].owner == owner, f"{name} is declared by {KEYS[name].owner} and {owner}"
    KEYS[name] = Key(name, default, meaning, rule, paper, may_change, _names(read_by), owner, by_images)


def of_detectron2(
    *patterns: str, rule: Rule | None = None, may_change: bool = False, read_by: str | Collection[str] = ()
) -> None:
    """Say of keys that Detectron2 declares what ``declare`` says of ours."""
    for pattern in patterns:
        OF_DETECTRON2[pattern] = Key(pattern, None, "", rule, None, may_change, _names(read_by), "detectron2")


def _names(read_by: str | Collection[str]) -> tuple[str, ...]:
    return (read_by,) if isinstance(read_by, str) else tuple(read_by)


def declaration(name: str) -> Key | None:
    """Of a full key; None of one of Detectron2's that nothing has to be said of."""
    if name in KEYS:
        return KEYS[name]
    return next((key for pattern, key in OF_DETECTRON2.items() if fnmatchcase(name, pattern)), None)


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


def dotted_keys(node: dict, prefix: str = "") -> dict[str, Any]:
    """All keys of a config or of nested dicts, in full, with their values."""
    values = {}
    for key, value in node.items():
        values |= dotted_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def short_repr(value: object) -> str:
    """A value in a message, cut short where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def check_values(cfg: CfgNode) -> None:
    """Raise UserError for the first key whose value has no sense whatever the other keys say."""
    for name, value in dotted_keys(cfg).items():
        key = declaration(name)
        if key and key.rule and not key.rule.holds(value):
            raise UserError(f"{name} is {short_repr(value)}: expected {key.rule.expected}")


def resolve_by_images(cfg: CfgNode, images: int) -> None:
    """Put what 0 stands for, in place, into keys that are declared ``by_images``."""
    for name, key in KEYS.items():
        if key.by_images and value_of(cfg, name) == 0:
            cfg.merge_from_list([name, key.by_images(cfg, images)])


def is_read(cfg: CfgNode, name: str) -> bool:
    """Whether the network of MODEL.META_ARCHITECTURE reads a key; a network that nothing is known of reads all of
    Detectron2's."""
    key = declaration(name)
    if key is None or not key.read_by:
        return True
    network = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)
    if is_among(name, getattr(network, "also_reads", ())):
        return True
    lineage = {cls.__name__ for cls in network.__mro__} if isinstance(network, type) else set()
    return bool(lineage & set(key.read_by)) or (name not in KEYS and not lineage & {PRETRAINING, *FINETUNING})


def reference(keys: Iterable[Key]) -> str:
    """The page docs/config.md: a table for each section of our keys."""
    lines, ordered = [_HEADER], sorted(keys, key=lambda key: key.name.rpartition(".")[::2])
    for section, of_section in groupby(ordered, key=lambda key: key.name.rpartition(".")[0]):
        lines.append(
            f"\n## {section or 'Others'}\n\n| key | default | meaning | values | paper |\n|---|---|---|---|---|"
        )
        for key in of_section:
            default, paper = (f"`{value!r}`".replace("|", "\\|") for value in (key.default, key.paper))
            change = " A resumed run may change it." if key.may_change else ""
            readers = f" Read by {', '.join(key.read_by)}." if key.read_by else ""
            expected = key.rule.expected if key.rule else f"of type {type(key.default).__name__}"
            meaning, paper = f"{key.meaning}{readers}{change}", "" if key.paper is None else paper
            cells = (f"`{key.name}`", default, meaning, expected, paper)
            lines.append("| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


_HEADER = """\
# Config keys

Every key that Revisit adds to Detectron2's, from its declaration in the code (`python -m revisit.config` prints this
page). *Values* is the range of the key; *paper* is the paper's value for kNN-MoCo on COCO, if it gives one. A resumed
run refuses other values, unless the table allows it to change the key."""
