"""Where the backbone lies in each project's checkpoints, and what else they hold (PROTOCOLS: checkpoints of others).

A ResNet has torchvision's names in all of them but ours; only the prefix and the company differ.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from revisit.checkpoint.flags import Flags
from revisit.checkpoint.reading import require_tensors
from revisit.checkpoint.torchvision_names import detectron2_name
from revisit.errors import UserError
from revisit.modeling.meta_arch.pretraining import methods

Tensors = dict[str, Tensor]


class Layout(NamedTuple):
    """Names of tensors: ``prefix`` + torchvision's name in the backbone, the pattern ``left`` for what stays behind."""

    prefix: str
    left: str = r"(?!)"  # nothing


_MOCO = Layout("module.encoder_q.", r"module\.(encoder_q\.fc|encoder_k\.|queue)")
_BARE = Layout("")

# The first layout of a source is the one to know it by.
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "moco": (_MOCO,),
    "densecl": (Layout("backbone.", r"necks?\.|queue2?(_ptr)?$|encoder_[qk]\."), _BARE),
    "swav": (Layout("module.", r"module\.(projection_head|prototypes)\."),),
    # Its bidirectional captioning models have a second head of text.
    "virtex": (Layout("visual.cnn.", r"(backward_)?textual\."), _BARE),
    "torchvision": (Layout("", r"fc\."),),
    "timm": (Layout("", r"fc\."),),
    "reference": (_MOCO,),
}
SOURCES = ("revisit", *LAYOUTS)

# What recognising a layout cannot tell, because the keys are the same to the last one.
SHARED_WITH = {
    "moco": "MoCo v1 and v2, and the reference code without neighbours, have the same keys: all are converted alike",
    "torchvision": "torchvision, timm, VirTex's hub and DenseCL's released weights have the same keys: all are "
    "converted alike",
}


def recognise(checkpoint: dict) -> str:
    """The source that a checkpoint comes from, by its layout; ``SHARED_WITH`` says for which others it stands too.

    Raises:
        UserError: no layout fits; says what the checkpoint holds.
    """
    tensors = tensors_of(checkpoint)
    if "flags" in checkpoint and any(key.startswith("backbone.") for key in tensors):
        return "revisit"
    source = next((name for name, layouts in LAYOUTS.items() if _fits(tensors, layouts[0])), None)
    if source == "moco" and any(key.startswith("module.queue_backbone") for key in tensors):
        return "reference"  # the neighbours' features are the one thing that it adds to MoCo's keys
    if source:
        return source
    if "stem.conv1.weight" in tensors:
        raise UserError("the backbone has Detectron2's names already, as after conversion: use it as MODEL.WEIGHTS")
    raise UserError(
        f"no backbone recognised in the checkpoint ({_looks(checkpoint)}); known layouts, by the first tensors of "
        f"the backbone: {_known()}"
    )


def backbone_of(checkpoint: dict, source: str) -> Tensors:
    """The backbone's tensors under Detectron2's names, such as ``res2.0.conv1.weight``.

    Raises:
        UserError: another layout than the source's, or a key that has no place in it.
    """
    tensors = tensors_of(checkpoint)
    if source == "revisit":
        return _of_revisit(tensors, tuple(_method_of_run(checkpoint)["heads"]))
    layout = next((layout for layout in LAYOUTS[source] if _fits(tensors, layout)), None)
    if layout is None:
        expected = " or ".join(f"{layout.prefix}layer1.0." for layout in LAYOUTS[source])
        raise UserError(
            f"not a checkpoint of {source}: no tensor begins with {expected} ({_looks(checkpoint)}). "
            "--source auto finds out whose it is"
        )
    backbone = {}
    for key, value in tensors.items():
        if re.match(layout.left, key):
            continue
        name = detectron2_name(key.removeprefix(layout.prefix)) if key.startswith(layout.prefix) else None
        if name is None:
            raise UserError(
                f"cannot place {_clipped(key)}: neither a tensor of a torchvision ResNet under "
                f"{layout.prefix or 'its bare name'} nor one that {source} is known to have beside it"
            )
        backbone[name] = value
    return backbone


def flags_of_run(checkpoint: dict) -> Flags:
    """The flags that a Revisit run saves with its weights."""
    if not isinstance(checkpoint.get("flags"), dict):
        raise UserError("the checkpoint carries no flags: not a checkpoint of a Revisit pretraining run")
    return checkpoint["flags"]


def training_of(checkpoint: dict, source: str) -> str:
    """How the weights were trained, in words, as far as the checkpoint tells: ``kNN-MoCo, 1188 iterations, seed 1``."""
    known = []
    if source == "revisit":
        known += filter(None, [_method_of_run(checkpoint)["title"]])
        if isinstance(checkpoint.get("iteration"), int):
            known.append(f"{checkpoint['iteration'] + 1} iterations")
        trainer = checkpoint.get("trainer")
        if isinstance(trainer, dict) and isinstance(trainer.get("seed"), int):
            known.append(f"seed {trainer['seed']}")
    else:
        known += [f"{name} {checkpoint[name]}" for name in ("epoch", "iteration") if type(checkpoint.get(name)) is int]
    return ", ".join(known)


def tensors_of(checkpoint: dict) -> Tensors:
    """The tensors by name, bare or under the usual top-level names; numpy arrays become tensors."""
    for name in ("model", "state_dict"):
        if isinstance(checkpoint.get(name), dict):
            require_tensors(checkpoint[name], name)
            return {key: _as_tensor(value) for key, value in checkpoint[name].items()}
    bare = {str(key): value for key, value in checkpoint.items() if isinstance(value, Tensor | np.ndarray)}
    return {key: _as_tensor(value) for key, value in bare.items()}


def _as_tensor(value: Tensor | np.ndarray) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.tensor(value)
    except TypeError as error:
        raise UserError(f"the checkpoint has an array of {value.dtype}: expected 16 to 64 bits") from error


def _method_of_run(checkpoint: dict) -> dict:
    """``title`` and ``heads`` of the method that a checkpoint of ours names; older ones tell it by their tensors."""
    named = checkpoint.get("method")
    if isinstance(named, dict) and isinstance(named.get("title"), str) and isinstance(named.get("heads"), list | tuple):
        return {"title": named["title"], "heads": [str(head) for head in named["heads"]]}
    tensors = tensors_of(checkpoint)
    known = next((method for method in methods() if method.MARK in tensors), None)
    every = sorted({head for method in methods() for head in method.HEADS})
    return {"title": known.TITLE if known else "", "heads": known.HEADS if known else every}


def _of_revisit(tensors: Tensors, heads: tuple[str, ...]) -> Tensors:
    backbone = {}
    for key, value in tensors.items():
        if key.startswith("backbone."):
            backbone[key.removeprefix("backbone.")] = value
        elif not key.startswith(heads):
            raise UserError(f"cannot place {_clipped(key)}: not a checkpoint of a Revisit pretraining run")
    return backbone


def _fits(tensors: Tensors, layout: Layout) -> bool:
    """Whether a backbone lies there, be it whole or not: what it lacks is to be told by name."""
    return any(key.startswith(f"{layout.prefix}layer1.0.") for key in tensors)


def _known() -> str:
    names: dict[str, list[str]] = {"backbone.stem.": ["revisit"]}
    for source, layouts in LAYOUTS.items():
        for layout in layouts:
            names.setdefault(f"{layout.prefix}layer1.", []).append(source)
    return "; ".join(f"{first} ({', '.join(sources)})" for first, sources in names.items())


def _looks(checkpoint: dict) -> str:
    some = ", ".join(map(_clipped, list(tensors_of(checkpoint))[:3])) or "no tensors"
    top = [key for key, value in checkpoint.items() if not isinstance(value, Tensor | np.ndarray)][:5]
    return f"it holds {some}" + (f"; at the top level {', '.join(map(_clipped, top))}" if top else "")


def _clipped(key: object) -> str:
    return str(key).replace("\n", " ")[:60]
