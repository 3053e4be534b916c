"""The configuration that weights are valid under, kept in NAME.yaml beside NAME.pth.

Silent mis-transfer (flipped channels, another stride, other pixel statistics) costs tens of AP and raises
no error by itself, so the flags travel with the weights and every user of the weights compares them.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import yaml

from revisit.errors import UserError

from detectron2.config import CfgNode

Flags = dict[str, object]

FLAG_KEYS = (
    "MODEL.RESNETS.DEPTH",
    "MODEL.RESNETS.STEM_TYPE",
    "MODEL.RESNETS.STEM_OUT_CHANNELS",
    "MODEL.RESNETS.RES2_OUT_CHANNELS",
    "MODEL.RESNETS.NUM_GROUPS",
    "MODEL.RESNETS.WIDTH_PER_GROUP",
    "MODEL.RESNETS.STRIDE_IN_1X1",
    "MODEL.PIXEL_MEAN",
    "MODEL.PIXEL_STD",
    "INPUT.FORMAT",
)


def flags_of(cfg: CfgNode) -> Flags:
    """The flags of a config, plain values by full key."""
    flags = {key: reduce(getattr, key.split("."), cfg) for key in FLAG_KEYS}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in flags.items()}


def flags_path(weights: str | Path) -> Path:
    """Where the flags of a weight file lie."""
    return Path(weights).with_suffix(".yaml")


def write_flags(weights: str | Path, flags: Flags, source: str) -> None:
    """Write NAME.yaml beside NAME.pth; ``source`` says in words where the weights come from."""
    text = yaml.safe_dump({"source": source, "config": flags}, sort_keys=False)
    header = f"# {Path(weights).name} is valid under this configuration alone; Revisit refuses another.\n"
    flags_path(weights).write_text(header + text)


def read_flags(weights: str | Path) -> Flags | None:
    """Flags of a weight file, None where none lie beside it."""
    content = _read(weights)
    return None if content is None else content["config"]


def read_source(weights: str | Path) -> str:
    """Where the flag file says that the weights come from; "" where it does not."""
    return str((_read(weights) or {}).get("source", ""))


def _read(weights: str | Path) -> dict | None:
    path = flags_path(weights)
    if not path.is_file():
        return None
    try:
        content = yaml.safe_load(path.read_text())
        content["config"]  # absent, or of another kind of file
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not a flag file: expected the keys source and config, as tools/convert_to_d2.py writes it"
        ) from error
    return content


def check_flags(flags: Flags, cfg: CfgNode, weights: str) -> None:
    """Refuse a config that disagrees with the flags of the weights, by name.

    Raises:
        UserError: names every key that differs with both values.
    """
    ours = flags_of(cfg)
    wrong = [
        f"{key} is {ours[key]} here and {flags[key]} there"
        for key in FLAG_KEYS
        if flags.get(key, ours[key]) != ours[key]
    ]
    if wrong:
        raise UserError(f"{weights} was made under another configuration: {'; '.join(wrong)}. Change the config.")
