"""Where the backbone lies in each project's checkpoints, and what else they hold (docs/weights.md).

All of them but ours call a backbone's tensors as torchvision and timm do; only the prefix and the company differ.
"""

import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from revisit.checkpoint.detectron2_layouts import CAFFE2_MARK, DETECTOR_MARKS, backbone_in_detectron2
from revisit.checkpoint.reading import require_tensors
from revisit.errors import UserError
from revisit.modeling.backbone.description import BackboneDescription, Tensors, description_of, families, undescribed


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
    "swav": (Layout("module.", r"module\.(projection_head|prototypes)\."),),
    # Its bidirectional captioning models have a second head of text.
    "virtex": (Layout("visual.cnn.", r"(backward_)?textual\."), _BARE),
    "torchvision": (Layout("", r"fc\."),),
    "timm": (Layout("", r"(fc|head)\."),),
}
LIBRARIES = ("torchvision", "timm")  # of them a family may say which it is in
SOURCES = ("revisit", "detectron2", *LAYOUTS)

# What recognising a layout cannot tell apart, because all of the keys are the same.
SHARED_WITH = {
    "moco": "MoCo v1 and v2, and the reference code without neighbours, have the same keys: all are converted alike",
    "torchvision": "torchvision, timm, VirTex's hub, and the released weights of DenseCL, DINO, VICReg and Barlow "
    "Twins have the same keys: all are converted alike",
    "timm": "others whose networks are timm's, such as DINO's ViTs, have the same keys: all are converted alike. "
    "Many of timm's own ViTs expect 127.5 as each mean and deviation: then correct the .yaml",
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


def recognise(checkpoint: dict) -> str:
    """The source that a checkpoint comes from, by its layout; ``SHARED_WITH`` says for which others it stands too.

    Raises:
        UserError: no layout fits; says what the checkpoint holds.
    """
    tensors = tensors_of(checkpoint)
    if "flags" in checkpoint and any(key.startswith("backbone.") for key in tensors):
        return "revisit"
    for name, layouts in LAYOUTS.items():
        if _family_in(tensors, layouts[0], name) and any(key.startswith(layouts[0].mark) for key in tensors):
            return name
    if backbone_in_detectron2(tensors, author_of(checkpoint)):
        return "detectron2"
    if description_of(tensors):
        raise UserError("the backbone has Detectron2's names already, as after conversion: use it as MODEL.WEIGHTS")
    known = {"backbone.": ["revisit", "detectron2"], CAFFE2_MARK: ["detectron2"]}
    for name, prefix in ((name, place.prefix) for name, places in LAYOUTS.items() for place in places):
        known.setdefault(prefix or "nothing", []).append(name)
    layouts = "; ".join(f"{prefix} ({', '.join(names)})" for prefix, names in known.items())
    marks = ", ".join(f"{known.LIBRARY_MARK} ({known.NAME})" for known in families() if known.LIBRARY_MARK)
    raise UserError(
        f"no backbone recognised in the checkpoint ({_looks(checkpoint)}); known layouts, by what stands before the "
        f"backbone's tensors, such as {marks}: {layouts}"
    )


def backbone_of(checkpoint: dict, source: str) -> tuple[Tensors, BackboneDescription]:
    """The backbone's tensors under its own names, such as ``res2.0.conv1.weight``, and what is known of its family.

    Raises:
        UserError: another layout than the source's, a key that has no place in it, or no known family.
    """
    tensors = tensors_of(checkpoint)
    if is_of_detectron2(checkpoint, source):
        if found := backbone_in_detectron2(tensors, author_of(checkpoint)):
            return found
        raise undescribed(f"the backbone of a model with tensors such as {_clipped(next(iter(tensors), 'none'))}")
    if source == "revisit":
        return _of_revisit(tensors)
    found = ((layout, known) for layout in LAYOUTS[source] if (known := _family_in(tensors, layout, source)))
    layout, description = next(found, (None, None))
    if layout is None:
        expected = " or ".join(first for layout in LAYOUTS[source] for first in _first_names(layout, source))
        raise UserError(
            f"not a checkpoint of {source}: no tensor begins with {expected} ({_looks(checkpoint)}). "
            "--source auto finds out whose it is"
        )
    backbone = {}
    for key, value in tensors.items():
        if re.match(layout.left, key):
            continue
        name = description.own_name(key.removeprefix(layout.prefix)) if key.startswith(layout.prefix) else None
        if name is None:
            raise UserError(
                f"cannot place {_clipped(key)}: neither a tensor of a {description.NAME} under "
                f"{layout.prefix or 'its bare name'} nor one that {source} is known to have beside it"
            )
        backbone[name] = value
    return backbone, description


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
    return ", ".join(filter(None, (method, trained, drawn)))


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


def _of_revisit(tensors: Tensors) -> tuple[Tensors, BackboneDescription]:
    backbone = {k.removeprefix("backbone."): value for k, value in tensors.items() if k.startswith("backbone.")}
    if description := description_of(backbone):
        return backbone, description
    raise undescribed(f"a backbone with tensors such as {_clipped(next(iter(backbone), 'none'))}")


def _first_names(layout: Layout, source: str) -> dict[str, BackboneDescription]:
    """Families by what some tensors of their backbones begin with in a layout; in a library's, of its families."""
    there = [known for known in families() if source not in LIBRARIES or source in (known.SNIPPETS or LIBRARIES)]
    return {f"{layout.prefix}{known.LIBRARY_MARK}": known for known in there if known.LIBRARY_MARK}


def _family_in(tensors: Tensors, layout: Layout, source: str) -> BackboneDescription | None:
    """The family of the backbone that lies there, be it whole or not: what it lacks is to be reported by name."""
    found = _first_names(layout, source).items()
    return next((known for first, known in found if any(key.startswith(first) for key in tensors)), None)


def _looks(checkpoint: dict) -> str:
    some = ", ".join(map(_clipped, list(tensors_of(checkpoint))[:3])) or "no tensors"
    top = [key for key, value in checkpoint.items() if not isinstance(value, Tensor | np.ndarray)][:5]
    return f"it holds {some}" + (f"; at the top level {', '.join(map(_clipped, top))}" if top else "")


def _clipped(key: object) -> str:
    return str(key).replace("\n", " ")[:60]
