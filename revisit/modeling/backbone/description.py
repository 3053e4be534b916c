"""What loading, conversion and export have to know of a backbone: a description, in the file of its builder."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from revisit.errors import UserError
from revisit.plugins import load_plugins

from detectron2.config import CfgNode
from fvcore.common.registry import Registry

Flags = dict[str, object]  # values of a config by full key
Tensors = dict[str, Tensor]  # by state-dict key

BACKBONE_DESCRIPTIONS = Registry("BACKBONE_DESCRIPTIONS")


class Card(NamedTuple):
    """What a model card says of exported weights."""

    network: str  # in words
    output: str  # in words
    facts: Mapping[str, object]  # values that the snippets name in braces
    snippets: Mapping[str, str]  # by library that can hold the weights, code that loads them there


class BackboneDescription:
    """A family of backbones. ``BACKBONE_DESCRIPTIONS.register()`` decorates the subclass that fills in its values.

    What has a default here is needed to convert weights of other libraries, and to export to them.
    """

    NAME = ""  # of the family
    BUILDER = ""  # of a plain backbone of it, in BACKBONE_REGISTRY
    NETWORK: type[nn.Module]  # the class of its backbones
    FLAG_KEYS: tuple[str, ...] = ()  # config keys that its weights depend on, besides those of the pixels
    PREFIXES: tuple[str, ...] = ()  # each of its state-dict keys begins with one of them
    FOLDED: Flags = {}  # what the config has to state for weights whose batch norm is a scale and a bias

    def build(self, cfg: CfgNode) -> nn.Module:
        """A backbone for as many channels as MODEL.PIXEL_MEAN has values, with a place for every tensor of the family's
        under ``cfg``'s flags."""
        raise NotImplementedError

    def parts(self, module: nn.Module) -> list[str]:
        """Names of the submodules of ``module`` that are parts of a backbone, "" for itself; mostly none."""
        return [""] if isinstance(module, self.NETWORK) else []

    def blocks(self, network: nn.Module) -> list[list[str]]:
        """Names of all parameters of a NETWORK by depth, the stem's first: what shares a rate where rates differ by
        depth. By default those of each child."""
        children = network.named_children()
        return [[f"{name}.{of}" for of, _ in child.named_parameters()] for name, child in children]

    def title(self, flags: Flags) -> str:
        """Which member of the family the flags describe, such as ``ResNet-50``."""
        return self.NAME

    def assumed(self, flags: Flags) -> str:
        """What no tensor of another project's shows, and is taken to be so, in words; "" for nothing."""
        return ""

    def library_names(self, stated: Flags) -> Mapping[str, str | None]:
        """State-dict keys here by those in torchvision and timm; None for what a backbone leaves out.

        ``stated`` are flags that the user has given, such as the name of a network of timm's. Empty where the family
        is not in those libraries, or not the one that is stated.
        """
        return {}

    def flags_of_tensors(self, tensors: Tensors, stated: Flags) -> Flags:
        """Values of FLAG_KEYS under which tensors of another project are valid, as ``stated`` or by their shapes.

        Raises:
            UserError: no member of the family has such tensors.
        """
        raise NotImplementedError

    def stated(self, path: Path, names: Collection[str], network: str = "") -> Flags:
        """What is known of the weights in a file by other means than tensors: by the file's name, by other files in the
        folder, by ``network``, the name that the user gave. ``names`` are those of the tensors."""
        return {}

    def default_pixels(self, stated: Flags) -> tuple[Flags, str]:
        """Pixel statistics of the weights that the family's library loads by default for the network that is stated,
        and their name; ({}, "") where nothing is known of them."""
        return {}, ""

    def keys_to_build(self, flags: Flags, cfg: CfgNode) -> Flags:
        """Values by key, apart from the flags, with which ``cfg`` builds the backbone of weights with these flags; {}
        where it has no place for such a backbone, or the family has none."""
        return {}

    def card(self, flags: Flags) -> Card:
        """What exported weights need. Raises UserError where no library can hold them, or computes something else."""
        raise UserError(f"neither torchvision nor timm is known to have a {self.title(flags)}: use it in Detectron2")


def families() -> list[BackboneDescription]:
    """Of every family that is known, the plug-ins' too."""
    load_plugins()
    return [description() for _, description in BACKBONE_DESCRIPTIONS]


def family_of(flags: Flags) -> BackboneDescription | None:
    """The description whose flags these are; None of no family."""
    return next((family for family in families() if family.FLAG_KEYS and family.FLAG_KEYS[0] in flags), None)


def describe(model: nn.Module) -> BackboneDescription | None:
    """The description of the backbone in a model, or of a backbone; None if no family matches."""
    kinds = [type(module) for _, module in _encoder_modules(model)]
    return next((family for family in families() if any(issubclass(kind, family.NETWORK) for kind in kinds)), None)


def description_of(tensors: Tensors) -> BackboneDescription | None:
    """The description of a backbone's tensors by their names, which have no prefix."""
    return next((family for family in families() if any(key.startswith(family.PREFIXES) for key in tensors)), None)


def backbone_keys(model: nn.Module) -> list[str]:
    """State-dict keys of a model that a checkpoint's backbone must fill; none if no family matches.

    Of several encoders the first counts. BN's step counters do not: older files lack them.
    """
    if not (description := describe(model)):
        return []
    places = [(name, part) for name, module in _encoder_modules(model) for part in description.parts(module)]
    prefixes = tuple("".join(f"{name}." for name in place if name) for place in places)
    return [key for key in model.state_dict() if key.startswith(prefixes) and not key.endswith("num_batches_tracked")]


def undescribed(backbone: str) -> UserError:
    """The error for a backbone of no family, which is named in words."""
    names = " or ".join(family.NAME for family in families())
    return UserError(
        f"{backbone} is of no family that is described: expected {names}; register a BackboneDescription "
        "of it (docs/extending.md), or correct MODEL.BACKBONE.NAME"
    )


def _encoder_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A model's modules by name, without those of its momentum encoder."""
    return ((name, module) for name, module in model.named_modules() if not name.startswith("momentum_"))
