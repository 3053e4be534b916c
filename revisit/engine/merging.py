"""Config files and KEY VALUE pairs over the defaults: what a value's type may be, and what a typing error meant."""

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from revisit.checkpoint.run_folder import Trained
from revisit.compat.private_names import decode_value
from revisit.config import ELSEWHERE, REMOVED, add_revisit_config
from revisit.engine.command import in_one_word, pairs_of
from revisit.errors import UserError, did_you_mean, expect, translated, typed_list
from revisit.files import is_url, output_path, read_yaml
from revisit.keys import (
    NETWORK,
    RUN,
    alternatives,
    assign,
    declaration,
    declare,
    dotted_keys,
    short_repr,
    value_of,
)
from revisit.plugins import find_config, import_modules, recipe_names

from detectron2.config import CfgNode, get_cfg
from fvcore.common.config import BASE_KEY

declare(
    "IMPORTS",
    (),
    "Modules that are imported before anything is built, such as ('my_package.my_method',): the methods, heads, data "
    "sets and config keys that they register are then known by name. Python's path first, then the working directory.",
    may_change=True,
    scope=RUN,
)

AUTO, COMMAND_LINE = "auto", "command line"
MOST_FILES = 30  # that a config is made of
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
_OF_NONE = {type(None), *_WORDS, list, tuple}  # types of values that a key whose default is None may have

logger = logging.getLogger(__name__)


class Stated(NamedTuple):
    """What config files and a command line state by themselves, by full key: values as they are written."""

    file: str  # the last of the files; "" without any
    levels: list[dict[str, object]]  # of each file, those that others are based on first
    typed: dict[str, object]  # on the command line

    @property
    def keys(self) -> list[list[str]]:
        """The keys of each place, those of the command line last. A length of 0 leaves it to others."""
        places = (*self.levels, self.typed)
        return [
            [key for key, value in place.items() if declaration(key).decides != "length" or is_on(value)]
            for place in places
        ]


def read_stated(config_file: str, opts: Sequence[object] = ()) -> Stated:
    """Read a config file or recipe where there is one, with those that it is based on, and KEY VALUE pairs.

    Raises UserError for a file that does not exist, and for words that are no pairs.
    """
    path = find_config(config_file)
    if path and not Path(path).is_file():
        meant = did_you_mean(path.removeprefix("configs/"), recipe_names(), most=3)
        raise UserError(f"config file {path} not found (MODEL_ZOO.md){meant}")
    typed = pairs_of(opts)
    levels = list(_levels(path, [])) if path else []
    return Stated(path, levels, typed)


def merged_config(stated: Stated, trained: Trained | None = None) -> CfgNode:
    """The defaults, under a checkpoint's config where there is one, under what files and command line state.

    What they name in IMPORTS is imported first, because it may declare config keys. Raises UserError for a key that
    does not exist, or a value of another type.
    """
    _import_stated(stated)
    cfg = get_cfg()
    add_revisit_config(cfg)
    in_file = _over_each_other(stated.levels)
    if trained:
        _merge_checkpoint(cfg, trained, in_file.keys() | stated.typed.keys())
        in_file = {key: value for key, value in in_file.items() if not _leaves_open(key, value, trained)}
    _merge(cfg, in_file, stated.file)
    _merge(cfg, decisive(stated.typed), COMMAND_LINE)
    folder = output_path(value_of(cfg, "OUTPUT_DIR"), "OUTPUT_DIR")
    assign(cfg, "OUTPUT_DIR", str(folder))
    assign(cfg, "MODEL.WEIGHTS", os.path.expanduser(cfg.MODEL.WEIGHTS))
    return cfg


def _merge_checkpoint(cfg: CfgNode, trained: Trained, stated: Collection[str]) -> None:
    """Set what a checkpoint's config has, in place, but for keys of its run and URLs that nobody has stated."""
    shared = dotted_keys(cfg).keys() & trained.config.keys()
    taken = {key: trained.config[key] for key in shared if declaration(key).scope != RUN}
    for key in [key for key, value in taken.items() if is_url(str(value)) and key not in stated]:
        logger.warning(
            f"{trained.weights} names {key} {short_repr(taken.pop(key))}: nothing is fetched for a checkpoint; give "
            "the key to use it"
        )
    _merge(cfg, taken, trained.weights)


def _leaves_open(key: str, value: object, trained: Trained) -> bool:
    """Whether a file leaves a part of the network to the data, such as its classes: the checkpoint has it already."""
    declared = declaration(key)
    is_open = declared.off is not None and value == declared.off
    return is_open and declared.scope == NETWORK and key in trained.config


def _import_stated(stated: Stated) -> None:
    for where, levels in ((stated.file, stated.levels), (COMMAND_LINE, [stated.typed])):
        named = [level["IMPORTS"] for level in levels if "IMPORTS" in level]
        for value in named[-1:]:
            import_modules(fitted("IMPORTS", value, (), where))


def read_keys(path: str) -> dict[str, object]:
    """What a config file and those that it is based on state, by full key. Raises UserError with the file's name."""
    return _over_each_other(_levels(path, []))


def _over_each_other(levels: Iterable[Mapping[str, object]]) -> dict[str, object]:
    values = {}
    for level in levels:
        values |= decisive(level)
    return values


def decisive(level: Mapping[str, object]) -> dict[str, object]:
    """The keys that one place states, and for those that decide the same thing the value that leaves it to them: what
    stands nearer to the user counts, whatever a base or a default says by another key."""
    values = dict(level)
    for keys in alternatives().values():
        if any(key.name in level and (key.off is None or is_on(level[key.name])) for key in keys):
            values |= {key.name: key.off for key in keys if key.off is not None and key.name not in level}
    return values


def is_on(value: object) -> bool:
    """Whether a value, as it is typed or as such, is neither 0 nor empty."""
    return bool(decode_value(value))


def _levels(path: str, read: list[str]) -> Iterator[dict[str, object]]:
    """What every file of a chain states by itself, those that others are based on first; ``read`` are the files."""
    read.append(path)
    expect(len(read) <= MOST_FILES, f"{path}: {BASE_KEY} leads to more than {MOST_FILES} files, or back to itself")
    content = read_yaml(path)
    expect(isinstance(content, dict), f"{path}: expected keys and values, such as SEED: 1")
    bases = content.pop(BASE_KEY, [])
    for base in bases if isinstance(bases, list) else [bases]:
        yield from _levels(_base_file(base, path), read)
    with translated(path):
        yield dotted_keys(CfgNode(content))


def _base_file(base: object, path: str) -> str:
    """Where the file lies that another is based on: seen from that one's folder, else as --config-file takes it."""
    expect(
        isinstance(base, str) and not is_url(base), f"{path}: {BASE_KEY} is {short_repr(base)}: expected a file's name"
    )
    file = Path(path).parent / Path(base).expanduser()
    if file.is_file():
        return str(file)
    file = Path(find_config(base))
    expect(file.is_file(), f"{path}: {BASE_KEY} {base} not found from here, nor among the recipes (MODEL_ZOO.md)")
    return str(file)


def _merge(cfg: CfgNode, values: Mapping[str, object], where: str) -> None:
    """Set full keys to values, given as they are typed or as such, in place. Raises UserError that says ``where``."""
    current = dotted_keys(cfg)
    for key in [key for key in values if key not in current]:
        meant = ELSEWHERE.get(key.removeprefix("SOLVER."), key)
        in_words = in_one_word([str(word) for pair in values.items() for word in pair]) if where == COMMAND_LINE else ""
        hint = f": it was removed; {REMOVED[key]}" if key in REMOVED else in_words or did_you_mean(meant, current)
        raise UserError(f"{where}: unknown config key {key}{hint}")
    for key, value in values.items():
        with translated(where):
            assign(cfg, key, fitted(key, value, current[key], where))


def _as_list(key: str, text: str) -> str:
    """What was meant by a text that is no list, whatever brackets and quotation marks it has; of data sets folders."""
    inside = text.strip("()[]'\", ")  # a name alone may have commas, as those of channels' files
    names = re.split(r"""['"]?,\s*['"]?""", inside) if text.startswith(("(", "[")) else [inside]
    are_data = key.startswith("DATASETS.")
    meant = []
    for name in names:
        is_folder = are_data and ":" not in name and ("/" in name or os.path.isdir(name))
        meant.append(f"folder:{name}" if is_folder else name)
    return typed_list(meant)


def fitted(key: str, value: object, default: object, where: str) -> object:
    """What a value, as it is typed or as such, is as the default's type: a whole number may be a float, a list a tuple.

    Raises UserError for one of another type.
    """
    decoded = decode_value(value)
    if type(default) is float and type(decoded) is int and abs(decoded) < 1e300:
        return float(decoded)
    if type(default) is type(value) is str and type(decoded) in (int, float):
        return value  # a name of digits, such as 2024_11_30 of a folder
    is_list = isinstance(default, list | tuple)
    if is_list and decoded == AUTO and declaration(key).resolve:
        return type(default)()  # which is open
    kinds = {list, tuple} if is_list else _OF_NONE if default is None else {type(default)}
    if type(decoded) not in kinds:
        raise UserError(f"{where}: {key} is {short_repr(decoded)}: expected {_expected(key, decoded, default)}")
    return type(default)(decoded) if is_list else decoded


def _expected(key: str, value: object, default: object) -> str:
    """What a key takes, in words, where it has a value of another type."""
    rule = declaration(key).rule
    words = rule.expected if rule else _WORDS.get(type(default), "a list")
    if not isinstance(default, list | tuple):
        is_name = type(default) is str and isinstance(value, list | tuple) and len(value) == 1
        return f"{words}; did you mean {str(value[0])!r}?" if is_name else words
    if isinstance(value, str):
        return f"{words}; did you mean {_as_list(key, value)}?"
    is_one = rule is not None and rule.holds((value,))
    return f'{words}; did you mean "({value!r},)"?' if is_one else words
