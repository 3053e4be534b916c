"""What a config value may be: rules, each a sentence for the user and a test."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from fvcore.common.registry import Registry


class Rule(NamedTuple):
    """What a value has to be: in words, with the unit, and as a test of a value of any type."""

    expected: str
    holds: Callable[[Any], bool]
    registry: Registry | None = None  # whose names it takes


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

    return Rule(f"{length}{order}, each {rule.expected}", holds, rule.registry)


def optional(rule: Rule) -> Rule:
    """As the rule, or None."""
    return Rule(f"None, or {rule.expected}", lambda v: v is None or rule.holds(v))


def registered(registry: Registry, name: str) -> Rule:
    """The name of an object in a registry, which may be filled until a config is checked. ``name``: the registry's."""
    return Rule(f"a name in {name}", lambda v: isinstance(v, str) and v in registry, registry)


SHARE = number(0, 1)
POSITIVE = number(open_low=True)
COUNT = integer(1, 2**20)
PIXELS = integer(1, 2**14, "px")
SWITCH = one_of(False, True)


def short_repr(value: object) -> str:
    """A value in a message, cut short where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
