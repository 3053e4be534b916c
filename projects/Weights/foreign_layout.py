"""Checkpoints of other projects, which call a backbone's tensors as torchvision and timm do, after some prefix.

``foreign_names`` renames the few that do not. Only the prefix and what else the file holds differ by project.
"""

import re
from collections import Counter
from collections.abc import Mapping

from projects.Weights.choosing import FEWEST, average_or_weights, kinds, named_tensors, with_tensors
from projects.Weights.foreign_names import in_library_names
from projects.Weights.resnet import library_families
from revisit.checkpoint.flags import IMAGENET, is_folded, stated_for
from revisit.checkpoint.reading import clipped, tensors_of, unwrapped
from revisit.checkpoint.source_layout import FoundBackbone, SourceLayout, contents_of
from revisit.errors import UserError, expect
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors

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

_NO_TENSOR = "no tensor of a ResNet's, or of the network that --timm NAME names,"
_ANOTHER_NETWORK = "its network is another one, which --timm NAME names"
_PART_OF_DETECTOR = re.compile(r"((teacher|student)\.)?(neck|(rpn|roi|bbox|mask|decode)_head)\.")
_DETECTOR = "this is a whole network as OpenMMLab (mmdetection) saves it, of which the backbone alone can be taken"
_DROP = "--drop PATTERN leaves it out"


class ForeignLayout(SourceLayout):
    """Names of tensors: a prefix + the library's name in the backbone, without DistributedDataParallel's ``module.``"""

    PREFIXES: tuple[str, ...] = ("",)  # the first is the one to recognise it by
    MARK: str | None = ""  # what one of the names begins with in this project alone; None: nothing tells it apart

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        tensors = prepared_tensors(checkpoint, stated)
        if self.MARK is None or not any(key.startswith(self.MARK) for key in tensors):
            return False
        return self._family_at(self.PREFIXES[0], tensors, stated) is not None

    def find_backbone(self, checkpoint: dict, stated: Flags) -> FoundBackbone:
        prepared, notes = _prepared(checkpoint, stated)
        tensors = tensors_of(prepared)
        prefix, description = self._locate(checkpoint, tensors, stated)
        backbone, left = _placed(tensors, prefix, description.library_names(stated))
        if prefix:
            notes.append(f"the backbone lies under {prefix}; left out: {kinds(left)}")
        elif left:
            notes.append(f"left out: {kinds(left)}")
        is_frozen = is_folded(backbone) and description.FOLDED.items() <= stated.items()
        stated = stated_for(description, stated) | (description.FOLDED if is_frozen else {})
        pixels, whose = self._pixels(description, stated)
        flags = {**pixels, **stated, **description.flags_of_tensors(backbone, stated)}
        notes.append(f"pixel statistics: {whose}")
        notes.append(f"assumed, because no tensor shows it: {description.assumed(flags)}")
        return FoundBackbone(backbone, description, flags, tuple(notes))

    def prefixes(self, tensors: Tensors, stated: Flags) -> tuple[str, ...]:
        """Where the backbone may lie. Raises UserError where that is not clear."""
        return self.PREFIXES

    def default_pixels(self, description: BackboneDescription, stated: Flags) -> tuple[Flags, str]:
        """Pixel statistics of the project's own weights, and whose they are; ({}, "") for ImageNet's."""
        return {}, ""

    def _locate(self, checkpoint: dict, tensors: Tensors, stated: Flags) -> tuple[str, BackboneDescription]:
        """The prefix of a backbone in a checkpoint, and its family."""
        prefixes = self.prefixes(tensors, stated)
        for prefix in prefixes:
            if description := self._family_at(prefix, tensors, stated):
                return prefix, description
        places = " or ".join(prefix or "nothing" for prefix in prefixes)
        raise UserError(
            f"not a checkpoint of {self.NAME}: {_NO_TENSOR} after {places} ({contents_of(checkpoint)}). --source auto "
            "finds out whose it is"
        )

    def _family_at(self, prefix: str, tensors: Tensors, stated: Flags) -> BackboneDescription | None:
        """The family of the backbone after a prefix, be it whole or not: what it lacks is to be reported by name."""
        for description in library_families():
            names = description.library_names(stated)
            if sum(f"{prefix}{name}" in tensors for name in names) >= FEWEST:
                return description
        return None

    def _pixels(self, description: BackboneDescription, stated: Flags) -> tuple[Flags, str]:
        """Pixel statistics that the weights expect, and in words whose they are."""
        if "MODEL.PIXEL_MEAN" in stated:
            return IMAGENET, "as stated by --timm's tag, a model card, config.json or --config"
        pixels, name = self.default_pixels(description, stated)
        if name:
            return {**IMAGENET, **pixels}, f"those of {name}, timm's default; of others give --timm the tag"
        return IMAGENET, "ImageNet's, as nothing states others"


def only_network(tensors: Tensors, stated: Flags) -> str:
    """The prefix of the one network in a file, or of the one that is no copy. Raises UserError where there are more."""
    prefixes = networks_in(tensors, stated)
    expect(bool(prefixes), f"{_NO_TENSOR} under any prefix")
    for copies in _COPIES:
        prefixes = [prefix for prefix in prefixes if not re.search(copies, prefix)] or prefixes
    names = ", ".join(prefix or "nothing" for prefix in prefixes)
    expect(len(prefixes) == 1, f"the checkpoint holds several networks, under {names}: name one, with --only PREFIX")
    return prefixes[0]


def networks_in(tensors: Tensors, stated: Flags) -> list[str]:
    """What stands before the names of each network in a file, of those with half as many tensors as the largest."""
    names = {name for name, ours in _library_names(stated).items() if ours}
    counts = Counter(prefix for key in tensors if (prefix := _before(key, names)) is not None)
    fewest = max(FEWEST, max(counts.values(), default=0) / 2)
    return [prefix for prefix, count in counts.items() if count >= fewest]


def prepared_tensors(checkpoint: dict, stated: Flags) -> Tensors:
    """The tensors that a layout looks at: of averages and weights one, under the library's names."""
    return tensors_of(_prepared(checkpoint, stated)[0])


def _prepared(checkpoint: dict, stated: Flags) -> tuple[dict, list[str]]:
    """The checkpoint with its tensors under ``model`` and the library's names, which ``foreign_names`` knows; and in
    words which of several are taken."""
    checkpoint, notes = average_or_weights(checkpoint)
    tensors = unwrapped(named_tensors(checkpoint))
    named = in_library_names(tensors, str(stated.get("MODEL.TIMM.NAME", "")), _library_names(stated))
    return with_tensors(checkpoint, named), notes


def _library_names(stated: Flags) -> dict[str, str | None]:
    return {name: ours for family in library_families() for name, ours in family.library_names(stated).items()}


def _before(key: str, names: set[str]) -> str | None:
    """What stands before the longest of the names that the key ends with."""
    starts = [0, *(dot.end() for dot in re.finditer(r"\.", key))]
    return next((key[:start] for start in starts if key[start:] in names), None)


def _placed(tensors: Tensors, prefix: str, names: Mapping[str, str | None]) -> tuple[Tensors, list[str]]:
    """The tensors under their names here, and the names of those that are left out, such as heads."""
    backbone, left = {}, []
    for key, value in tensors.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and names.get(name):
            backbone[names[name]] = value
        else:
            _require_known(key, prefix, names)
            left.append(key)
    return backbone, left


def _require_known(key: str, prefix: str, names: Mapping[str, str | None]) -> None:
    """Raise UserError for a tensor that neither the backbone has nor anything that is known to be left out."""
    name = key.removeprefix(prefix)
    way_out = _DROP
    if key.startswith(prefix):
        is_known = name in names or re.match(_HEADS, name)
        module = name.partition(".")[0]
        if any(other.partition(".")[0] == module for other in names):
            way_out = _ANOTHER_NETWORK
    else:
        is_known = _LEFT.search(key)
        if _PART_OF_DETECTOR.match(key):
            way_out = f"{_DETECTOR}: tools/convert_to_d2.py FILE OUTPUT --only {prefix}"
    place = prefix or "its bare name"
    neither = f"cannot place {clipped(key)}: neither the backbone's under {place} nor a head or a copy of it"
    expect(bool(is_known), f"{neither}; {way_out}")
