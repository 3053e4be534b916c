"""Which tensors of a file to take: of several averages one, below a prefix, without those that match a pattern."""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
from torch import Tensor

from revisit.checkpoint.reading import TOP_LEVEL, as_tensor, clipped, tensors_in_file, unwrapped
from revisit.errors import UserError, expect, first_few
from revisit.modeling.backbone.description import Tensors

FEWEST = 6  # tensors that show a network
_AVERAGE = re.compile(r"(^|_)(ema|teacher)(_|$)")  # names of weights that are a moving average of others in the file


def chosen(checkpoint: dict, weights_of: str = "", strip: str = "", drop: Sequence[str] = ()) -> tuple[dict, list[str]]:
    """The checkpoint with some of its tensors, and in words which they are.

    Args:
        weights_of: ``ema`` or ``student``, of a checkpoint that holds a moving average and what it is an average of; ""
            takes what lies under ``model``, ``state_dict`` or ``teacher``.
        strip: takes only the tensors whose names begin with it, without it.
        drop: patterns (fnmatch) of names whose tensors are left out first.

    Names are those of the file, or those without wrappers such as ``module.``. Raises UserError where nothing matches.
    """
    checkpoint, notes = average_or_weights(checkpoint, weights_of)
    if not drop and not strip:
        return checkpoint, notes
    tensors = named_tensors(checkpoint)
    for pattern in drop:
        dropped, tensors = _divided(pattern, tensors, partial(fnmatchcase, pat=pattern))
        notes.append(f"--drop {pattern}: {len(dropped)} tensors dropped: {kinds(list(dropped))}")
    if strip:
        below, left = _divided(strip, tensors, lambda key: key.startswith(strip))
        tensors = {key.removeprefix(strip): value for key, value in below.items()}
        notes.append(f"--only {strip}: {len(below)} tensors begin with it; left out: {kinds(list(left))}")
    return with_tensors(checkpoint, tensors), notes


def average_or_weights(checkpoint: dict, wanted: str = "") -> tuple[dict, list[str]]:
    """The checkpoint with the weights that are ``wanted``, ``ema`` or ``student``, under ``model``, and in words which
    they are where it has both."""
    averages = [key for key, value in checkpoint.items() if _AVERAGE.search(str(key)) and _tensors_in(value)]
    plain = [key for key in ("model", "state_dict", "student") if _tensors_in(checkpoint.get(key))]
    if not averages:
        names = [str(key)[:60] for key in checkpoint]
        expect(wanted != "ema", f"--how ema: the checkpoint has no moving average ({first_few(names)})")
        return checkpoint, []
    expect(wanted != "student" or bool(plain), f"--how student: the checkpoint has {first_few(averages)} alone")
    of_teacher = wanted == "" and plain == ["student"]
    is_average = wanted == "ema" or not plain or of_teacher
    taken, *_ = averages if is_average else plain
    rest = {key: value for key, value in checkpoint.items() if key not in (*averages, *plain)}
    note = _note(taken, is_average, has_both=bool(plain))
    return {**rest, "model": _tensors_in(checkpoint[taken])}, [note]


def _note(taken: str, is_average: bool, has_both: bool) -> str:
    kind, other = ("the moving average", "student") if is_average else ("the weights without average", "ema")
    way_out = f"; --how {other} takes the other" if has_both else ""
    return f"taken: {taken}, {kind}{way_out}"


def named_tensors(checkpoint: dict) -> Tensors:
    """The tensors with the names that they have in the file; those of nested dicts are joined: ``net.conv1.bias``."""
    tensors = tensors_in_file(checkpoint)
    is_below = any(isinstance(checkpoint.get(name), dict) for name in TOP_LEVEL)
    return tensors if is_below or len(tensors) >= FEWEST else _flat(checkpoint, "", set())


def with_tensors(checkpoint: dict, tensors: Tensors) -> dict:
    """The checkpoint with these tensors alone, under ``model``."""
    rest = {key: value for key, value in checkpoint.items() if not _flat({key: value}, "", set())}
    return {**rest, "model": tensors}


def kinds(keys: Sequence[str]) -> str:
    """How the keys begin, for a message."""
    first_words = {".".join(key.split(".")[:2]) for key in keys}
    shown = {clipped(words) for words in first_words}
    return first_few(sorted(shown)) or "nothing"


def _divided(what: str, tensors: Tensors, matches: Callable[[str], bool]) -> tuple[Tensors, Tensors]:
    """Those of such names, and the others: as the file names them, or without wrappers, whichever has such a name."""
    for named in (tensors, unwrapped(tensors)):
        chosen = {key: value for key, value in named.items() if matches(key)}
        if chosen:
            return chosen, {key: value for key, value in named.items() if key not in chosen}
    raise UserError(f"{what} fits no tensor of the checkpoint: expected the names of some of {kinds(list(tensors))}")


def _tensors_in(value: object) -> dict:
    """The tensors of a part of a checkpoint, directly or one level below, without torch's count of averages; or {}."""
    values = value if isinstance(value, dict) else {}
    for key in ("module", "state_dict", "model"):
        if isinstance(values.get(key), dict):
            values = values[key]
            break
    kept = {key: tensor for key, tensor in values.items() if key != "n_averaged"}
    are_tensors = all(isinstance(tensor, Tensor) for tensor in kept.values())
    return kept if are_tensors else {}


def _flat(content: dict, prefix: str, visited: set[int]) -> Tensors:
    """The tensors in nested dicts, each dict once, by their dotted names; without those of optimizers."""
    visited.add(id(content))
    tensors = {}
    for key, value in content.items():
        if isinstance(value, Tensor | np.ndarray):
            tensors[f"{prefix}{key}"] = as_tensor(value)
        elif isinstance(value, dict) and id(value) not in visited and "optimizer" not in str(key):
            tensors |= _flat(value, f"{prefix}{key}.", visited)
    return tensors
