"""What loading, conversion and export have to know of a backbone: a description, in the file of its builder."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from revisit.errors import UserError
from revisit.keys import value_of

from detectron2.config import CfgNode
from detectron2.modeling import Backbone
from fvcore.common.registry import Registry

Flags = dict[str, object]  # values of a config by full key
Tensors = dict[str, Tensor]  # by state-dict key

BACKBONE_DESCRIPTIONS = Registry("BACKBONE_DESCRIPTIONS")


# How timm loads all tensors of a network that ``{timm_model}`` of the card builds.
TIMM_SNIPPET = """\
In timm:

```python
import timm
import torch
{import_more}
model = {timm_model}
model.load_state_dict({load})
mean, std = torch.tensor({mean_list}).view(3, 1, 1), torch.tensor({std_list}).view(3, 1, 1)
features = model.eval()((torch.rand(1, 3, 224, 224) - mean) / std)
assert features.shape == (1, {features})
```
"""


class BackboneDescription:
    """A family of backbones. ``BACKBONE_DESCRIPTIONS.register()`` decorates the subclass that fills in its values.

    What has a default here is needed to convert weights of other libraries, and to export to them.
    """

    NAME = ""  # of the family
    FLAG_KEYS: tuple[str, ...] = ()  # config keys that its weights are valid under, beside those of the pixels
    PREFIXES: tuple[str, ...] = ()  # each of its state-dict keys begins with one of them
    LIBRARY_MODULES: Mapping[str, str] = {}  # by a module's name in torchvision or timm, its name here
    LIBRARY_MARK = ""  # what some of its keys begin with in those libraries
    SNIPPETS: Mapping[str, str] = {}  # by library, how to load exported weights there: a template for a model card
    FIRST = ""  # the tensor of the first convolution, (C, 3, h, w)
    FOLDED: Flags = {}  # what the config has to state for weights whose batch norm is a scale and a bias
    BUILDERS: tuple[str, ...] = ()  # names in BACKBONE_REGISTRY of what builds its networks, alone or in another one
    NORM_KEY = ""  # the config key that says what its batch norm is; "" of a family without
    FEATURES_KEY = ""  # the config key that lists the maps it returns; "" of a family that always returns one
    TRACEABLE = True  # whether a trace of its networks computes what they do for images of other sizes too
    MAY_STAY_RANDOM = 0  # the highest MODEL.BACKBONE.FREEZE_AT that freezes nothing which has to be learnt

    def matches(self, module: nn.Module) -> bool:
        """Whether a module is a backbone of this family."""
        raise NotImplementedError

    def build(self, cfg: CfgNode) -> nn.Module:
        """A backbone for RGB that has a place for every tensor of the family's under ``cfg``'s flags."""
        raise NotImplementedError

    def check(self, cfg: CfgNode) -> None:
        """Raise UserError where the family's keys ask for something that none of its members is."""

    @property
    def nodes(self) -> list[str]:
        """Where its keys stand in a config, such as ``MODEL.RESNETS``."""
        return sorted({key.rpartition(".")[0] for key in self.FLAG_KEYS})

    def maps(self, cfg: CfgNode) -> list[str]:
        """Names of the maps that MODEL.BACKBONE.NAME, one of BUILDERS, returns under ``cfg``."""
        return list(value_of(cfg, self.FEATURES_KEY))

    def places(self, cfg: CfgNode, size: int) -> int:
        """Of the last map over images of ``size`` x ``size`` px; asked of families with batch norm alone."""
        raise NotImplementedError

    def check_bfloat16(self, cfg: CfgNode, size: int) -> None:
        """Raise UserError where training over images of ``size`` px in bfloat16 goes wrong on a CPU."""

    def title(self, flags: Flags) -> str:
        """Which member of the family the flags describe, such as ``ResNet-50``."""
        return self.NAME

    def parts(self, module: nn.Module) -> list[str]:
        """Names of the submodules of ``module`` that are parts of a backbone, "" for itself; mostly none."""
        return [""] if self.matches(module) else []

    def own_name(self, key: str) -> str | None:
        """The state-dict key here of a key in torchvision or timm; None for what is in no such network."""
        return _renamed(key, self.LIBRARY_MODULES)

    def library_name(self, key: str) -> str | None:
        """The inverse of ``own_name``."""
        return _renamed(key, {own: theirs for theirs, own in self.LIBRARY_MODULES.items()})

    def flags_of_tensors(self, tensors: Tensors) -> Flags:
        """Values of FLAG_KEYS under which tensors of another project are valid, read off their names and shapes.

        Raises:
            UserError: no member of the family has such tensors.
        """
        raise NotImplementedError

    def zoo_flags(self, flags: Flags) -> Flags:
        """Flags that differ from those of ``flags_of_tensors`` in the configs of Detectron2's model zoo."""
        return {}

    def library_flags(self, flags: Flags) -> Flags:
        """Flags that weights need so that the libraries of SNIPPETS can hold them and compute the same."""
        return {}

    def card(self, flags: Flags) -> dict[str, object]:
        """Values for the model card: ``network`` and ``output`` in words, and whatever SNIPPETS name."""
        return {}


def _renamed(key: str, modules: Mapping[str, str]) -> str | None:
    module, dot, tensor = key.rpartition(".")
    return f"{modules[module]}{dot}{tensor}" if module in modules else None


def families() -> list[BackboneDescription]:
    """Of every family that is known."""
    return [description() for _, description in BACKBONE_DESCRIPTIONS]


def family_of(cfg: CfgNode) -> BackboneDescription | None:
    """The family of what MODEL.BACKBONE.NAME builds; None if no description names it among its BUILDERS."""
    return next((known for known in families() if cfg.MODEL.BACKBONE.NAME in known.BUILDERS), None)


def describe(model: nn.Module) -> BackboneDescription | None:
    """The description of the backbone in a model, or of a backbone; None if no family matches."""
    modules = [module for _, module in _encoder_modules(model)]
    return next((known for known in families() if any(map(known.matches, modules))), None)


def description_of(tensors: Tensors) -> BackboneDescription | None:
    """The description of a backbone's tensors by their names, which have no prefix."""
    return next((known for known in families() if any(key.startswith(known.PREFIXES) for key in tensors)), None)


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
    names = " or ".join(known.NAME for known in families())
    return UserError(
        f"{backbone} is of no family that is described: expected {names}; register a BackboneDescription "
        "of it (docs/extending.md), or correct MODEL.BACKBONE.NAME"
    )


def backbone_class(model: nn.Module) -> str:
    """What the class of a model's backbone, within any that wraps it, is called."""
    modules = [module for _, module in _encoder_modules(model) if isinstance(module, Backbone)]
    return type(modules[-1] if modules else getattr(model, "backbone", model)).__name__


def _encoder_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A model's modules by name, without those of its momentum encoder."""
    copies = tuple(getattr(model, "ENCODERS", ())[1:])
    return ((name, module) for name, module in model.named_modules() if not copies or not name.startswith(copies))
