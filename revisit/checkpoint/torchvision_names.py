"""The names of a ResNet's tensors in torchvision, which most projects share, and in Detectron2."""

from __future__ import annotations

import re
from collections.abc import Callable

Rules = tuple[tuple[str, str | Callable[[re.Match], str]], ...]

# Of two rules that match, the first decides: a norm's tensors also begin as its convolution's do.
_TO_DETECTRON2: Rules = (
    (r"^conv1\.", r"stem.conv1."),
    (r"^bn1\.", r"stem.conv1.norm."),
    (r"^layer(\d)\.(\d+)\.conv(\d)\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.conv{m[3]}."),
    (r"^layer(\d)\.(\d+)\.bn(\d)\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.conv{m[3]}.norm."),
    (r"^layer(\d)\.(\d+)\.downsample\.0\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.shortcut."),
    (r"^layer(\d)\.(\d+)\.downsample\.1\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.shortcut.norm."),
)
_TO_TORCHVISION: Rules = (
    (r"^stem\.conv1\.norm\.", r"bn1."),
    (r"^stem\.conv1\.", r"conv1."),
    (r"^res(\d)\.(\d+)\.conv(\d)\.norm\.", lambda m: f"layer{int(m[1]) - 1}.{m[2]}.bn{m[3]}."),
    (r"^res(\d)\.(\d+)\.conv(\d)\.", lambda m: f"layer{int(m[1]) - 1}.{m[2]}.conv{m[3]}."),
    (r"^res(\d)\.(\d+)\.shortcut\.norm\.", lambda m: f"layer{int(m[1]) - 1}.{m[2]}.downsample.1."),
    (r"^res(\d)\.(\d+)\.shortcut\.", lambda m: f"layer{int(m[1]) - 1}.{m[2]}.downsample.0."),
)


def detectron2_name(key: str) -> str | None:
    """``layer1.0.bn1.weight`` -> ``res2.0.conv1.norm.weight``; None for what is in no ResNet of torchvision."""
    return _renamed(key, _TO_DETECTRON2)


def torchvision_name(key: str) -> str | None:
    """``res2.0.conv1.norm.weight`` -> ``layer1.0.bn1.weight``; None for what is in no ResNet of Detectron2."""
    return _renamed(key, _TO_TORCHVISION)


def _renamed(key: str, rules: Rules) -> str | None:
    for pattern, replacement in rules:
        name, count = re.subn(pattern, replacement, key)
        if count:
            return name
    return None
