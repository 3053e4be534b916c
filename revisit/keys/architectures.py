"""What the core asks of a meta-architecture, with the answer of one that states nothing."""

from functools import cache
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY


class Architecture:
    """Base class, beside ``nn.Module``, of a meta-architecture that answers otherwise than Detectron2's own."""

    around = ""  # the key that names the meta-architecture which predicts; "": this one does
    also_reads: tuple[str, ...] = ()  # Detectron2's keys of other networks that it reads; a name may have *
    unread: tuple[str, ...] = ()  # keys of what it extends which it does not read; a name may have *
    continues = False  # whether it is made for weights that know something already
    training_only: tuple[str, ...] = ()  # how names of tensors begin that only its training needs

    @classmethod
    def training_samples(cls, cfg: CfgNode, labelled: Dataset) -> Dataset:
        """What a training reads instead of labelled samples, both by (position in the run, record index)."""
        return labelled

    @classmethod
    def view_annotator(cls, cfg: CfgNode) -> Any:
        """What it adds to views besides their pixels, a ViewAnnotator; None: nothing."""
        return None

    @classmethod
    def keys_of_image(cls, cfg: CfgNode) -> int:
        """How many rows an image leaves in a queue."""
        return 1

    @classmethod
    def evaluated(cls, model: nn.Module) -> nn.Module:
        """The part of a model of its class whose batch statistics TEST.PRECISE_BN measures."""
        return model


def architecture_named(name: str) -> type[Architecture]:
    """The meta-architecture that MODEL.META_ARCHITECTURE may name. Raises KeyError, which says the name."""
    return with_answers(META_ARCH_REGISTRY.get(name))


@cache
def with_answers(network: Any) -> type[Architecture]:
    """A meta-architecture with all of Architecture's answers, its own first. Detectron2's do not derive from it."""
    if not isinstance(network, type):
        return Architecture  # a function that builds one
    return network if issubclass(network, Architecture) else type(network.__name__, (network, Architecture), {})
