"""Where the backbone lies in each project's checkpoints, and what else they hold (docs/weights.md).

All of them but ours call a backbone's tensors as torchvision and timm do, or ``foreign_names`` renames them; only the
prefix and the company differ.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from revisit.checkpoint.detectron2_layouts import DETECTOR_MARKS, backbone_in_detectron2
from revisit.checkpoint.foreign_names import in_library_names
from revisit.checkpoint.reading import require_tensors, unwrapped
from revisit.errors import UserError, expect, first_few
from revisit.modeling.backbone.description import (
    BackboneDescription,
    Flags,
    Tensors,
    description_of,
    families,
    undescribed,
)


class Layout(NamedTuple):
    """Names of tensors: ``prefix`` + the library's name in the backbone, without DistributedDataParallel's module."""

    prefix: str
    mark: str | None = ""  # what one of the names begins with in this project alone; None: nothing tells it apart


_BARE = Layout("")
_VISSL = "classy_state_dict.base_model.model.trunk._feature_blocks."

# The first layout of a source is the one to know it by, and the first source whose layout fits is taken.
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    # The neighbours' features are the one thing that it adds to MoCo's keys.
    "reference": (Layout("encoder_q.", "queue_backbone"),),
    "moco": (Layout("encoder_q."),),
    "moco_v3": (Layout("base_encoder.", "momentum_encoder."),),
    "simsiam": (Layout("encoder.", "encoder.fc.6."),),
    "dino": (Layout("backbone.", "head.last_layer."), _BARE),
    "barlow_twins": (Layout("backbone.", "bn."), _BARE),
    "vicreg": (Layout("backbone.", None), _BARE),
    "densecl": (Layout("backbone.", "queue2"), _BARE),
    "swav": (Layout("", "prototypes."),),
    "vissl": (Layout(_VISSL),),
    "virtex": (Layout("visual.cnn."), _BARE),
    "torchvision": (_BARE,),
    "timm": (_BARE,),
}
OTHER = "other"  # a layout with one network under some prefix

# A second network of the same kind, by its prefix: the one without it is taken. Later patterns decide among the rest.
_COPIES = (r"(^|[._])(encoder_k|momentum|target|student|ema)[._]", r"encoder_q\.0\.")
# Beside the backbone's modules, under its prefix: heads, and what pretraining of ViTs masks and decodes with.
_HEADS = (
    r"(fc|heads?|classifier|linear|projector|projection_head|predictor|prototypes|mask_token|n_averaged|decoder_\w+)"
    r"(\.|$)"
)
# Beside its prefix.
_COMPANY = (
    r"(^|\.)(bn|necks?|mlp\d?|projection|proj_head|prediction_head|(backward_)?textual|queue\w*|criterion|loss\w*"
    r"|optimizers?|fpn|rpn|roi_heads|encoder_q)(\.|$)"
)
_LEFT = re.compile("|".join((_COPIES[0], _COMPANY, rf"(^|\.){_HEADS}")))
_FEWEST = 6  # tensors that show a network

_ANOTHER_NETWORK = "its network is another one, which --timm NAME names"
_DROP = "--drop PATTERN leaves it out"
SOURCES = ("revisit", "detectron2", *LAYOUTS, OTHER)

# What recognising a layout cannot tell apart, because all of the keys are the same.
SHARED_WITH = {
    "moco": "MoCo v1 and v2, and the reference code without neighbours, have the same keys: all are converted alike",
    "torchvision": "torchvision, timm, VirTex's hub, and the released weights of DenseCL, DINO, VICReg and Barlow "
    "Twins have the same keys: all are converted alike",
    "timm": "others whose networks are timm's, such as DINO's ViTs, have the same keys: all are converted alike",
    OTHER: "its keys do not say whose: VICReg, OpenMMLab, Lightning and others have such: all are converted alike",
}

# Of the weights that each project released, as its repository states it.
_NON_COMMERCIAL = "CC BY-NC 4.0, non-commercial"
LICENCES = {
    "detectron2": "CC BY-SA 3.0, if they are of Detectron2's model zoo",
    "reference": _NON_COMMERCIAL,
    "moco": _NON_COMMERCIAL,
    "moco_v3": _NON_COMMERCIAL,
    "simsiam": _NON_COMMERCIAL,
    "swav": _NON_COMMERCIAL,
    "densecl": "BSD 2-Clause for academic use, non-commercial",
    "dino": "Apache-2.0",
    "vicreg": "MIT",
    "barlow_twins": "MIT",
    "virtex": "MIT",
    "vissl": "MIT",
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
    ours = tuple(prefix for family in families() for prefix in family.PREFIXES)  # of a backbone without library's names
    if any(not prefix.endswith(ours) for prefix in _networks_in(tensors, stated)):
        return OTHER
    if backbone_in_detectron2(tensors, author_of(checkpoint)):
        return "detectron2"
    if description_of(tensors):
        raise UserError("the backbone has Detectron2's names already, as after conversion: use it as MODEL.WEIGHTS")
    raise UserError(
        f"no backbone recognised in the checkpoint ({_looks(checkpoint)}): expected a ResNet's layer1.0., or the "
        "tensors of the network that --timm NAME names, under any one prefix"
    )


def in_library_layout(checkpoint: dict, stated: Flags) -> dict:
    """The checkpoint with timm's names where its project has others of its own, which ``foreign_names`` knows."""
    tensors = tensors_of(checkpoint)
    names = {name: ours for family in families() for name, ours in family.library_names(stated).items()}
    renamed = in_library_names(tensors, str(stated.get("MODEL.TIMM.NAME", "")), names)
    return checkpoint if renamed.keys() == tensors.keys() else _with_tensors(checkpoint, renamed)


def _with_tensors(checkpoint: dict, tensors: Tensors) -> dict:
    rest = {key: value for key, value in checkpoint.items() if not _flat({key: value}, "", set())}
    return {**rest, "model": tensors}


def _foreign_source(tensors: Tensors, stated: Flags) -> str | None:
    """The first source of LAYOUTS whose first layout fits."""
    for name, (layout, *_) in LAYOUTS.items():
        is_marked = layout.mark is not None and any(key.startswith(layout.mark) for key in tensors)
        if is_marked and _family_in(tensors, layout.prefix, name, stated):
            return name
    return None


def _networks_in(tensors: Tensors, stated: Flags) -> list[str]:
    """What stands before the names of each network in a file, of those with half as many tensors as the largest."""
    names = {name for family in families() for name, ours in family.library_names(stated).items() if ours}
    counts = Counter(prefix for key in tensors if (prefix := _before(key, names)) is not None)
    fewest = max(_FEWEST, max(counts.values(), default=0) / 2)
    return [prefix for prefix, count in counts.items() if count >= fewest]


def _before(key: str, names: set[str]) -> str | None:
    """What stands before the longest of the names that the key ends with."""
    starts = [0, *(dot.end() for dot in re.finditer(r"\.", key))]
    return next((key[:start] for start in starts if key[start:] in names), None)


def _only_network(tensors: Tensors, stated: Flags) -> str:
    """The prefix of the network to take."""
    prefixes = _networks_in(tensors, stated)
    expect(bool(prefixes), "no tensor of a ResNet's, or of the network that --timm NAME names, under any prefix")
    for copies in _COPIES:
        prefixes = [prefix for prefix in prefixes if not re.search(copies, prefix)] or prefixes
    names = ", ".join(prefix or "nothing" for prefix in prefixes)
    expect(len(prefixes) == 1, f"the checkpoint holds several networks, under {names}: name one, with --strip PREFIX")
    return prefixes[0]


def selected(checkpoint: dict, strip: str = "", drop: Sequence[str] = ()) -> tuple[dict, list[str]]:
    """The checkpoint without the tensors that a pattern of ``drop`` matches (fnmatch), of the rest those whose names
    begin with ``strip``, without it, and what that did, in words.

    Names are those of the file, or those without wrappers such as ``module.``. Raises UserError where nothing matches.
    """
    tensors, lines = _raw_tensors(checkpoint), []
    for pattern in drop:
        tensors = _first_with(pattern, tensors, lambda key, pattern=pattern: fnmatchcase(key, pattern))
        dropped = [key for key in tensors if fnmatchcase(key, pattern)]
        tensors = {key: value for key, value in tensors.items() if not fnmatchcase(key, pattern)}
        lines.append(f"--drop {pattern}: {len(dropped)} tensors dropped: {_kinds(dropped)}")
    if strip:
        tensors = _first_with(strip, tensors, lambda key: key.startswith(strip))
        left = [key for key in tensors if not key.startswith(strip)]
        tensors = {key.removeprefix(strip): value for key, value in tensors.items() if key.startswith(strip)}
        lines.append(f"--strip {strip}: {len(tensors)} tensors begin with it; left out: {_kinds(left)}")
    return _with_tensors(checkpoint, tensors) if lines else checkpoint, lines


def _first_with(what: str, tensors: Tensors, matches: Callable[[str], bool]) -> Tensors:
    """The tensors as the file names them, or without wrappers, whichever has such names."""
    for named in (tensors, unwrapped(tensors)):
        if any(map(matches, named)):
            return named
    raise UserError(f"{what} fits no tensor of the checkpoint: expected the names of some of {_kinds(list(tensors))}")


def _kinds(keys: Sequence[str]) -> str:
    """How the keys begin, for a message."""
    return first_few(sorted({_clipped(".".join(key.split(".")[:2])) for key in keys})) or "nothing"


def backbone_of(checkpoint: dict, source: str, stated: Flags) -> tuple[Tensors, BackboneDescription, str]:
    """The backbone's tensors under its own names, such as ``res2.0.conv1.weight``, its family, and in words what of
    another project's checkpoint is taken and left out."""
    tensors = tensors_of(checkpoint)
    if source == "revisit" and not isinstance(checkpoint.get("flags"), dict):
        raise UserError("the checkpoint carries no flags: not a checkpoint of a Revisit run")
    if is_of_detectron2(checkpoint, source):
        if backbone := backbone_in_detectron2(tensors, author_of(checkpoint)):
            return *backbone, ""
        raise undescribed(f"the backbone of a model with tensors such as {_clipped(next(iter(tensors), 'none'))}")
    if source == "revisit":
        backbone = {k.removeprefix("backbone."): value for k, value in tensors.items() if k.startswith("backbone.")}
        if description := description_of(backbone):
            return backbone, description, ""
        raise undescribed(f"a backbone with tensors such as {_clipped(next(iter(backbone), 'none'))}")
    prefixes = [_only_network(tensors, stated)] if source == OTHER else [each.prefix for each in LAYOUTS[source]]
    for prefix in prefixes:
        if description := _family_in(tensors, prefix, source, stated):
            backbone, left = _placed(tensors, prefix, description.library_names(stated))
            after = f"the backbone lies under {prefix}; " if prefix else ""
            return backbone, description, f"{after}left out: {_kinds(left)}" if left or prefix else ""
    raise UserError(
        f"not a checkpoint of {source}: no tensor of a ResNet's, or of the network that --timm NAME names, after "
        f"{' or '.join(prefix or 'nothing' for prefix in prefixes)} ({_looks(checkpoint)}). --source "
        "auto finds out whose it is"
    )


def _placed(tensors: Tensors, prefix: str, names: Mapping[str, str | None]) -> tuple[Tensors, list[str]]:
    """The tensors under their names here, and the names of those that are left out: heads, and what lies beside it."""
    backbone, left = {}, []
    modules = {name.partition(".")[0] for name in names}
    for key, value in tensors.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and names.get(name):
            backbone[names[name]] = value
            continue
        is_head = name in names or re.match(_HEADS, name)
        is_known = is_head if key.startswith(prefix) else _LEFT.search(key)
        is_within = key.startswith(prefix) and name.partition(".")[0] in modules
        expect(bool(is_known), _unplaced(key, prefix, _ANOTHER_NETWORK if is_within else _DROP))
        left.append(key)
    return backbone, left


def _unplaced(key: str, prefix: str, way_out: str) -> str:
    return (
        f"cannot place {_clipped(key)}: neither the backbone's under {prefix or 'its bare name'} nor a head or a copy "
        f"of it; {way_out}"
    )


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
    """The tensors by name, bare or under the usual top-level names, without wrappers such as ``module.``; numpy arrays
    become tensors. Other dicts are nested names: ``encoder.conv1.weight``."""
    return unwrapped(_raw_tensors(checkpoint))


def _raw_tensors(checkpoint: dict) -> Tensors:
    for name in ("model", "state_dict", "teacher", "blobs"):
        if isinstance(checkpoint.get(name), dict):
            require_tensors(checkpoint[name], name)
            return {key: _as_tensor(value) for key, value in checkpoint[name].items()}
    bare = {str(key): _as_tensor(value) for key, value in checkpoint.items() if isinstance(value, Tensor | np.ndarray)}
    return bare if len(bare) >= _FEWEST else _flat(checkpoint, "", set())


def _flat(content: dict, prefix: str, visited: set[int]) -> Tensors:
    """The tensors in nested dicts, each dict once, by their dotted names; without those of optimizers."""
    visited.add(id(content))
    tensors = {}
    for key, value in content.items():
        if isinstance(value, Tensor | np.ndarray):
            tensors[f"{prefix}{key}"] = _as_tensor(value)
        elif isinstance(value, dict) and id(value) not in visited and "optimizer" not in str(key):
            tensors |= _flat(value, f"{prefix}{key}.", visited)
    return tensors


def _as_tensor(value: Tensor | np.ndarray) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.tensor(value)
    except TypeError as error:
        raise UserError(f"the checkpoint has an array of {value.dtype}: expected 16 to 64 bits") from error


def _family_in(tensors: Tensors, prefix: str, source: str, stated: Flags) -> BackboneDescription | None:
    """The family of the backbone that lies there, be it whole or not: what it lacks is to be reported by name."""
    if source == "torchvision" and "MODEL.TIMM.NAME" in stated:
        return None
    for description in families():
        names = description.library_names(stated)
        if sum(f"{prefix}{name}" in tensors for name in names) >= _FEWEST:
            return description
    return None


def _looks(checkpoint: dict) -> str:
    some = ", ".join(map(_clipped, list(tensors_of(checkpoint))[:3])) or "no tensors"
    top = [key for key, value in checkpoint.items() if not isinstance(value, Tensor | np.ndarray)][:5]
    return f"it holds {some}" + (f"; at the top level {', '.join(map(_clipped, top))}" if top else "")


def _clipped(key: object) -> str:
    return str(key).replace("\n", " ")[:100]
