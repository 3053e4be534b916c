"""Config files and KEY VALUE pairs over the defaults: what a value's type may be, and what a typing error meant."""

import difflib
from collections.abc import Callable, Sequence

import yaml

from revisit.errors import UserError, expect
from revisit.keys import declaration, declare, dotted_keys, shown

from detectron2.config import CfgNode

declare(
    "IMPORTS",
    (),
    "Modules that are imported before anything is built, such as ('my_package.my_method',): the methods, heads, data "
    "sets and config keys that they register are then known by name. Python's path first, then the working directory.",
    may_change=True,
)

COMMAND_LINE = "command line"
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def merge_file(cfg: CfgNode, path: str) -> None:
    """Merge a config file and those that it is based on, in place. Raises UserError with the file's name."""

    def merge() -> None:
        found = CfgNode(CfgNode.load_yaml_with_base(path, allow_unsafe=False))
        if found.get("VERSION", cfg.VERSION) != cfg.VERSION:
            cfg.merge_from_file(path, allow_unsafe=False)  # which knows the keys of older ones
            return
        known = dotted_keys(cfg)
        for key, value in dotted_keys(found).items():
            if key in known and (fitted := _fitted(key, value, known[key])) is not value:
                *nodes, last = key.split(".")
                node = found
                for name in nodes:
                    node = node[name]
                node[last] = fitted
        cfg.merge_from_other_cfg(found)

    _merge(cfg, merge, path)


def read_keys(path: str) -> dict[str, object]:
    """What a config file and those that it is based on state, by full key. Raises UserError with the file's name."""
    keys: dict[str, object] = {}
    _merge(
        CfgNode(),
        lambda: keys.update(dotted_keys(CfgNode(CfgNode.load_yaml_with_base(path, allow_unsafe=False)))),
        path,
    )
    return keys


def merge_pairs(cfg: CfgNode, opts: Sequence[object]) -> None:
    """Merge KEY VALUE pairs, as they are typed or as values, in place. Raises UserError."""

    def merge() -> None:
        known = dotted_keys(cfg)
        for key, value in zip(opts[::2], opts[1::2], strict=True):
            cfg.merge_from_list([key, _fitted(key, value, known[key]) if key in known else value])

    _merge(cfg, merge, COMMAND_LINE)


def imports_of(config_file: str, opts: Sequence[object]) -> tuple[str, ...]:
    """The value that IMPORTS will have."""
    cfg = CfgNode({"IMPORTS": ()})

    def merge() -> None:
        found = CfgNode.load_yaml_with_base(config_file, allow_unsafe=False)
        if "IMPORTS" in found:
            cfg.merge_from_list(["IMPORTS", _fitted("IMPORTS", found["IMPORTS"], ())])

    if config_file:
        _merge(cfg, merge, config_file)
    pairs = [pair for pair in zip(opts[::2], opts[1::2], strict=True) if pair[0] == "IMPORTS"]
    merge_pairs(cfg, [word for pair in pairs for word in pair])
    return cfg.IMPORTS


def check_pairs(opts: Sequence[object]) -> None:
    """Raise UserError for what comes after the options and is no pair KEY VALUE."""
    if late := [str(word) for word in opts[::2] if str(word).startswith("--")]:
        raise UserError(f"{late[0]} comes after KEY VALUE: options go before the first KEY, next to --config-file")
    expect(len(opts) % 2 == 0, f"expected pairs KEY VALUE after the options, got {' '.join(map(str, opts))}")


def _fitted(key: str, value: object, default: object) -> object:
    """The value with a whole number as a float where the default is one. Raises UserError for one of another type."""
    found = CfgNode._decode_cfg_value(value)
    if type(default) is float and type(found) is int and abs(found) < 1e300:
        return float(found)
    kinds = {type(default), *((list, tuple) if isinstance(default, list | tuple) else ())}
    if default is not None and type(found) not in kinds:
        declared = declaration(key)
        words = declared.rule.expected if declared and declared.rule else _WORDS.get(type(default), "a list")
        if isinstance(found, str) and list in kinds:
            path = key.startswith("DATASETS.") and "/" in found and ":" not in found
            words += f"; did you mean \"('{'folder:' * path}{found}',)\"?"
        raise UserError(f"{key} is {shown(found)}: expected {words}")
    return value


def _merge(cfg: CfgNode, merge: Callable[[], None], where: str) -> None:
    try:
        merge()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except RecursionError as error:
        raise UserError(f"{where}: _BASE_ leads back to the file itself") from error
    except OSError as error:
        raise UserError(f"{where}: {error}") from error
    except (KeyError, ValueError, AssertionError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
        if not reason.startswith("Non-existent"):
            raise UserError(f"{where}: {reason}") from error
        key = reason.rpartition(" ")[2]
        close = difflib.get_close_matches(key, dotted_keys(cfg), n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"{where}: unknown config key {key}{hint}") from error
