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


_MOST = 2**31 - 1  # that a whole number may be


def integer(low: int = 0, high: int = _MOST, unit: str = "") -> Rule:
    """A whole number from ``low`` to ``high``, both included."""
    limit = f"of at least {low}"
    if high < _MOST:
        limit = f"from {low} to {high}"

    def holds(value: Any) -> bool:
        return type(value) is int and low <= value <= high

    return Rule(f"a whole number {limit} {unit}".rstrip(), holds)


def number(low: float = 0.0, high: float = math.inf, unit: str = "", *, open_low: bool = False) -> Rule:
    """A finite number from ``low``, which ``open_low`` excludes, to ``high``."""
    limit = f"above {low:.9g}" if open_low else f"of at least {low:.9g}"
    if math.isfinite(high):
        limit += f", and at most {high:.9g}"

    def holds(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < 1e300:  # beyond float's range, or nan
            return False
        above = low < value if open_low else low <= value
        return above and value <= high

    return Rule(f"a number {limit} {unit}".rstrip(), holds)


def one_of(*choices: object) -> Rule:
    """One of a few values."""
    words = ["''" if choice == "" else str(choice) for choice in choices]

    def holds(value: Any) -> bool:
        alike = [choice for choice in choices if type(choice) is type(value)]  # 1 is not True
        return value in alike

    return Rule(f"one of {', '.join(words)}", holds)


def list_of(rule: Rule, count: int | None = None, *, least: int = 0, rising: bool = False) -> Rule:
    """A list of values that ``rule`` holds for: ``count`` of them, or at least so many, none smaller than the last."""
    length = "a list"
    if count:
        length = f"{count} values"
    elif least:
        length = f"at least {least} value{'s' * (least > 1)}"
    order = ", in rising order" if rising else ""

    def holds(values: Any) -> bool:
        if not isinstance(values, list | tuple) or len(values) < least:
            return False
        if count is not None and len(values) != count:
            return False
        if not all(map(rule.holds, values)):
            return False
        return not rising or list(values) == sorted(values)

    return Rule(f"{length}{order}, each {rule.expected}", holds, rule.registry)


def optional(rule: Rule) -> Rule:
    """As the rule, or None."""

    def holds(value: Any) -> bool:
        return value is None or rule.holds(value)

    return Rule(f"None, or {rule.expected}", holds)


def registered(registry: Registry, name: str) -> Rule:
    """The name of an object in a registry, which may be filled until a config is checked. ``name``: the registry's."""

    def holds(value: Any) -> bool:
        return isinstance(value, str) and value in registry

    return Rule(f"a name in {name}", holds, registry)


SHARE = number(0, 1)
POSITIVE = number(open_low=True)
COUNT = integer(1, 2**20)
PIXELS = integer(1, 2**14, "px")
SWITCH = one_of(False, True)


def short_repr(value: object) -> str:
    """A value in a message, cut short where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
