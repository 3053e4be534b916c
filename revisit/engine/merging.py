"""Config files and KEY VALUE pairs over the defaults: what a value's type may be, and what a typing error meant."""

from collections.abc import Mapping, Sequence

from revisit.checkpoint.run_folder import Trained
from revisit.config import OF_A_RUN, add_revisit_config
from revisit.errors import UserError, did_you_mean, expect, translated
from revisit.imports import import_modules
from revisit.keys import declaration, declare, dotted_keys, is_among, shown

from detectron2.config import CfgNode, get_cfg

declare(
    "IMPORTS",
    (),
    "Modules that are imported before anything is built, such as ('my_package.my_method',): the methods, heads, data "
    "sets and config keys that they register are then known by name. Python's path first, then the working directory.",
    may_change=True,
)

COMMAND_LINE = "command line"
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def merged_config(config_file: str, opts: Sequence[object] = (), trained: Trained | None = None) -> CfgNode:
    """The defaults, under a checkpoint's config and a config file where there are any, under KEY VALUE pairs.

    What they name in IMPORTS is imported first, because it may declare config keys. Raises UserError for a file or key
    that does not exist, or a value of another type.
    """
    if late := [str(word) for word in opts[::2] if str(word).startswith("--")]:
        raise UserError(f"{late[0]} comes after KEY VALUE: options go before the first KEY, next to --config-file")
    expect(len(opts) % 2 == 0, f"expected pairs KEY VALUE after the options, got {' '.join(map(str, opts))}")
    in_file = read_keys(config_file) if config_file else {}
    typed = dict(zip(map(str, opts[::2]), opts[1::2], strict=True))
    defaults = get_cfg()
    for values, where in ((in_file, config_file), (typed, COMMAND_LINE)):
        if "IMPORTS" in values:
            imports = CfgNode({"IMPORTS": ()})
            _merge(imports, {"IMPORTS": values["IMPORTS"]}, where)
            import_modules(imports.IMPORTS)
    add_revisit_config(defaults)
    if trained:
        known = dotted_keys(defaults).keys() & trained.config.keys()
        taken = {key: trained.config[key] for key in known if not is_among(key, OF_A_RUN)}
        _merge(defaults, taken, trained.weights)
    _merge(defaults, in_file, config_file)
    _merge(defaults, typed, COMMAND_LINE)
    return defaults


def read_keys(path: str) -> dict[str, object]:
    """What a config file and those that it is based on state, by full key. Raises UserError with the file's name."""
    with translated(path):
        return dotted_keys(CfgNode(CfgNode.load_yaml_with_base(path, allow_unsafe=False)))


def _merge(cfg: CfgNode, values: Mapping[str, object], where: str) -> None:
    """Set full keys to values, given as they are typed or as such, in place. Raises UserError that says ``where``."""
    current = dotted_keys(cfg)
    for key, value in values.items():
        if key not in current:
            raise UserError(f"{where}: unknown config key {key}{did_you_mean(key, current)}")
        with translated(where):
            cfg.merge_from_list([key, _fitted(key, value, current[key], where)])


def _fitted(key: str, value: object, default: object, where: str) -> object:
    """The value with a whole number as a float where the default is one. Raises UserError for one of another type."""
    decoded = CfgNode._decode_cfg_value(value)
    if type(default) is float and type(decoded) is int and abs(decoded) < 1e300:
        return float(decoded)
    kinds = {type(default), *((list, tuple) if isinstance(default, list | tuple) else ())}
    if default is not None and type(decoded) not in kinds:
        declared = declaration(key)
        words = declared.rule.expected if declared and declared.rule else _WORDS.get(type(default), "a list")
        if isinstance(decoded, str) and list in kinds:
            path = key.startswith("DATASETS.") and "/" in decoded and ":" not in decoded
            words += f"; did you mean \"('{'folder:' * path}{decoded}',)\"?"
        raise UserError(f"{where}: {key} is {shown(decoded)}: expected {words}")
    return value
