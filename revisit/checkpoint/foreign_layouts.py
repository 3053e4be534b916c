"""Where the backbone lies in each project's checkpoints, and what else they hold (docs/weights.md).

All of them but ours call a backbone's tensors as torchvision and timm do; only the prefix and the company differ.
"""

import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from revisit.checkpoint.detectron2_layouts import CAFFE2_MARK, DETECTOR_MARKS, backbone_in_detectron2
from revisit.checkpoint.reading import require_tensors, unwrapped
from revisit.errors import UserError
from revisit.modeling.backbone.description import (
    BackboneDescription,
    Flags,
    Tensors,
    description_of,
    families,
    undescribed,
)


class Layout(NamedTuple):
    """Names of tensors: ``prefix`` + torchvision's name in the backbone, the pattern ``left`` for what is left out."""

    prefix: str
    left: str = r"(?!)"  # nothing
    mark: str = ""  # what one of the names begins with in this project alone, where others share the prefix


_MOCO = Layout("module.encoder_q.", r"module\.(encoder_q\.fc|encoder_k\.|queue)")
_BARE = Layout("")
_JOINT = "module.backbone."  # of networks that embed two views and compare them

# The first layout of a source is the one to know it by, and the first source whose layout fits is taken.
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    # The neighbours' features are the one thing that it adds to MoCo's keys.
    "reference": (_MOCO._replace(mark="module.queue_backbone"),),
    "moco": (_MOCO,),
    "dino": (Layout(_JOINT, r"module\.head\.", mark="module.head."), _BARE),
    "barlow_twins": (Layout(_JOINT, r"module\.(projector|bn)\.", mark="module.bn."), _BARE),
    "vicreg": (Layout(_JOINT, r"module\.projector\."), _BARE),
    "densecl": (Layout("backbone.", r"necks?\.|queue2?(_ptr)?$|encoder_[qk]\."), _BARE),
    "swav": (Layout("module.", r"module\.(projection_head|prototypes)\.", mark="module.pro"),),
    # Its bidirectional captioning models have a second head of text.
    "virtex": (Layout("visual.cnn.", r"(backward_)?textual\."), _BARE),
    "torchvision": (Layout("", r"fc\."),),
    "timm": (Layout("", r"(fc|head)\."),),
}
SOURCES = ("revisit", "detectron2", *LAYOUTS)

# What recognising a layout cannot tell apart, because all of the keys are the same.
SHARED_WITH = {
    "moco": "MoCo v1 and v2, and the reference code without neighbours, have the same keys: all are converted alike",
    "torchvision": "torchvision, timm, VirTex's hub, and the released weights of DenseCL, DINO, VICReg and Barlow "
    "Twins have the same keys: all are converted alike",
    "timm": "others whose networks are timm's, such as DINO's ViTs, have the same keys: all are converted alike",
}

# Of the weights that each project released, as its repository states it.
_NON_COMMERCIAL = "CC BY-NC 4.0, non-commercial"
LICENCES = {
    "detectron2": "CC BY-SA 3.0, if they are of Detectron2's model zoo",
    "reference": _NON_COMMERCIAL,
    "moco": _NON_COMMERCIAL,
    "swav": _NON_COMMERCIAL,
    "densecl": "BSD 2-Clause for academic use, non-commercial",
    "dino": "Apache-2.0",
    "vicreg": "MIT",
    "barlow_twins": "MIT",
    "virtex": "MIT",
    "torchvision": "BSD 3-Clause",
    "timm": "by model, as its card says",
}


def licence_of(source: str, *, is_named: bool) -> str:
    """Terms of a source's published weights, "" if none are on record; ``is_named``: the user said whose they are."""
    if source == "torchvision" and not is_named:
        return "unknown, because weights of several projects have the same keys: name --source"
    return LICENCES.get(source, "")


def recognise(checkpoint: dict, stated: Flags) -> str:
    """The source that a checkpoint comes from, by its layout; ``SHARED_WITH`` says for which others it stands too."""
    tensors = tensors_of(checkpoint)
    if "flags" in checkpoint and any(key.startswith("backbone.") for key in tensors):
        return "revisit"
    if source := _foreign_source(tensors, stated):
        return source
    if backbone_in_detectron2(tensors, author_of(checkpoint)):
        return "detectron2"
    if description_of(tensors):
        raise UserError("the backbone has Detectron2's names already, as after conversion: use it as MODEL.WEIGHTS")
    prefixes = {"backbone.": ["revisit", "detectron2"], CAFFE2_MARK: ["detectron2"]}
    for name, prefix in ((name, layout.prefix) for name, layouts in LAYOUTS.items() for layout in layouts):
        prefixes.setdefault(prefix or "nothing", []).append(name)
    layouts = "; ".join(f"{prefix} ({', '.join(names)})" for prefix, names in prefixes.items())
    raise UserError(
        f"no backbone recognised in the checkpoint ({_looks(checkpoint)}): expected a ResNet's layer1.0., or the "
        f"tensors of the network that --timm NAME names, after {layouts}"
    )


def without_wrapper(checkpoint: dict, stated: Flags) -> dict:
    """The checkpoint without DistributedDataParallel's ``module.``, unless a source's own layout has it."""
    tensors = tensors_of(checkpoint)
    if unwrapped(tensors) is tensors or _foreign_source(tensors, stated):
        return checkpoint
    rest = {key: value for key, value in checkpoint.items() if not isinstance(value, Tensor | np.ndarray)}
    return {**rest, "model": unwrapped(tensors)}


def _foreign_source(tensors: Tensors, stated: Flags) -> str | None:
    """The first source of LAYOUTS whose first layout fits."""
    for name, (layout, *_) in LAYOUTS.items():
        if _family_in(tensors, layout, name, stated) and any(key.startswith(layout.mark) for key in tensors):
            return name
    return None


def backbone_of(checkpoint: dict, source: str, stated: Flags) -> tuple[Tensors, BackboneDescription]:
    """The backbone's tensors under its own names, such as ``res2.0.conv1.weight``, and its family."""
    tensors = tensors_of(checkpoint)
    if source == "revisit" and not isinstance(checkpoint.get("flags"), dict):
        raise UserError("the checkpoint carries no flags: not a checkpoint of a Revisit run")
    if is_of_detectron2(checkpoint, source):
        if backbone := backbone_in_detectron2(tensors, author_of(checkpoint)):
            return backbone
        raise undescribed(f"the backbone of a model with tensors such as {_clipped(next(iter(tensors), 'none'))}")
    if source == "revisit":
        backbone = {k.removeprefix("backbone."): value for k, value in tensors.items() if k.startswith("backbone.")}
        if description := description_of(backbone):
            return backbone, description
        raise undescribed(f"a backbone with tensors such as {_clipped(next(iter(backbone), 'none'))}")
    for layout in LAYOUTS[source]:
        if description := _family_in(tensors, layout, source, stated):
            return _placed(tensors, layout, description.library_names(stated)), description
    raise UserError(
        f"not a checkpoint of {source}: no tensor of a ResNet's, or of the network that --timm NAME names, after "
        f"{' or '.join(layout.prefix or 'nothing' for layout in LAYOUTS[source])} ({_looks(checkpoint)}). --source "
        "auto finds out whose it is"
    )


def _placed(tensors: Tensors, layout: Layout, names: dict[str, str | None]) -> Tensors:
    """The tensors under their names here, without those that the layout or the family leaves out."""
    backbone = {}
    for key, value in tensors.items():
        name = key.removeprefix(layout.prefix)
        if key.startswith(layout.prefix) and names.get(name):
            backbone[names[name]] = value
        elif not re.match(layout.left, key) and not (key.startswith(layout.prefix) and name in names):
            raise UserError(
                f"cannot place {_clipped(key)}: neither the backbone's under {layout.prefix or 'its bare name'} nor "
                "one that such a checkpoint has beside it"
            )
    return backbone


def is_of_detectron2(checkpoint: dict, source: str) -> bool:
    """Whether it holds one of Detectron2's models or backbones, its own or one that was finetuned here."""
    return source == "detectron2" or (
        source == "revisit" and any(key.startswith(DETECTOR_MARKS) for key in tensors_of(checkpoint))
    )


def author_of(checkpoint: dict) -> str:
    """What the file calls its maker, as those of Detectron2's model zoo do; "" if it says nothing."""
    return str(checkpoint.get("__author__") or "")


def training_of(checkpoint: dict, source: str) -> str:
    """How the weights were trained, in words, as far as the checkpoint says: ``kNN-MoCo, 1188 iterations, seed 1``."""
    if source != "revisit":
        names = ("epoch", "iteration")
        return ", ".join(f"{name} {checkpoint[name]}" for name in names if type(checkpoint.get(name)) is int)
    method, iteration, trainer = (checkpoint.get(key) for key in ("method", "iteration", "trainer"))
    seed = trainer.get("seed") if isinstance(trainer, dict) else None
    trained = f"{iteration + 1} iterations" if isinstance(iteration, int) else ""
    drawn = f"seed {seed}" if isinstance(seed, int) else ""
    start = start_of(checkpoint).get("source", "")
    return ", ".join(filter(None, (method, trained, drawn, f"started from {start}" if start else "")))


def start_of(checkpoint: dict) -> dict[str, str]:
    """What a run's checkpoint says of the weights that the run started from: their ``source`` and ``licence``."""
    start = checkpoint.get("start")
    return {str(key): str(value) for key, value in start.items()} if isinstance(start, dict) else {}


def origin_of(checkpoint: dict, name: str, source: str, licence: str) -> dict[str, str]:
    """``source`` and ``licence`` of weights that a run starts from, for ``start_of`` its checkpoints.

    ``source`` and ``licence`` are what the flags beside the file ``name`` say, "" where they say nothing: then a run's
    checkpoint speaks for itself, a file of Detectron2's by its author.
    """
    if "flags" in checkpoint:
        origin = ", ".join(filter(None, (f"revisit: {name}", training_of(checkpoint, "revisit"))))
        return {"source": origin, "licence": start_of(checkpoint).get("licence", "")}
    source = source or (f"detectron2: {name}" if author_of(checkpoint) else f"{name}, of unknown origin")
    licence = licence or licence_of(source.partition(":")[0], is_named=False)
    unknown = "" if source.startswith("revisit:") else "unknown, because nothing says it of the weights of the start"
    return {"source": source, "licence": licence or unknown}


def tensors_of(checkpoint: dict) -> Tensors:
    """The tensors by name, bare or under the usual top-level names; numpy arrays become tensors."""
    for name in ("model", "state_dict", "teacher", "blobs"):
        if isinstance(checkpoint.get(name), dict):
            require_tensors(checkpoint[name], name)
            return {key: _as_tensor(value) for key, value in checkpoint[name].items()}
    return {str(key): _as_tensor(value) for key, value in checkpoint.items() if isinstance(value, Tensor | np.ndarray)}


def _as_tensor(value: Tensor | np.ndarray) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.tensor(value)
    except TypeError as error:
        raise UserError(f"the checkpoint has an array of {value.dtype}: expected 16 to 64 bits") from error


def _family_in(tensors: Tensors, layout: Layout, source: str, stated: Flags) -> BackboneDescription | None:
    """The family of the backbone that lies there, be it whole or not: what it lacks is to be reported by name."""
    if source == "torchvision" and "MODEL.TIMM.NAME" in stated:
        return None
    for description in families():
        if any(f"{layout.prefix}{name}" in tensors for name in description.library_names(stated)):
            return description
    return None


def _looks(checkpoint: dict) -> str:
    some = ", ".join(map(_clipped, list(tensors_of(checkpoint))[:3])) or "no tensors"
    top = [key for key, value in checkpoint.items() if not isinstance(value, Tensor | np.ndarray)][:5]
    return f"it holds {some}" + (f"; at the top level {', '.join(map(_clipped, top))}" if top else "")


def _clipped(key: object) -> str:
    return str(key).replace("\n", " ")[:60]
