"""Other projects' weights: where the backbone lies in their checkpoints, and their terms (docs/weights.md).

The first layout that recognises a file is taken, so one whose names are a part of another's stands after it.
"""

from projects.Weights.foreign_layout import ForeignLayout, networks_in, only_network, prepared_tensors
from revisit.checkpoint.source_layout import SOURCE_LAYOUT_REGISTRY
from revisit.modeling.backbone.description import BackboneDescription, Flags, Tensors, families

# Of the weights that each project released, as its repository states it.
_NON_COMMERCIAL = "CC BY-NC 4.0, non-commercial"


@SOURCE_LAYOUT_REGISTRY.register()
class Reference(ForeignLayout):
    """The reference code of kNN-MoCo. The neighbours' features are the one thing that it adds to MoCo's keys."""

    NAME = "reference"
    PREFIXES = ("encoder_q.",)
    MARK = "queue_backbone"
    LICENCE = _NON_COMMERCIAL


@SOURCE_LAYOUT_REGISTRY.register()
class MoCo(ForeignLayout):
    NAME = "moco"
    PREFIXES = ("encoder_q.",)
    SHARED_WITH = (
        "MoCo v1 and v2, and the reference code without neighbours, have the same keys: all are converted alike"
    )
    LICENCE = _NON_COMMERCIAL


@SOURCE_LAYOUT_REGISTRY.register()
class MoCoV3(ForeignLayout):
    NAME = "moco_v3"
    PREFIXES = ("base_encoder.",)
    MARK = "momentum_encoder."
    LICENCE = _NON_COMMERCIAL


@SOURCE_LAYOUT_REGISTRY.register()
class SimSiam(ForeignLayout):
    NAME = "simsiam"
    PREFIXES = ("encoder.",)
    MARK = "encoder.fc.6."
    LICENCE = _NON_COMMERCIAL


@SOURCE_LAYOUT_REGISTRY.register()
class DINO(ForeignLayout):
    NAME = "dino"
    PREFIXES = ("backbone.", "")
    MARK = "head.last_layer."
    LICENCE = "Apache-2.0"


@SOURCE_LAYOUT_REGISTRY.register()
class BarlowTwins(ForeignLayout):
    NAME = "barlow_twins"
    PREFIXES = ("backbone.", "")
    MARK = "bn."
    LICENCE = "MIT"


@SOURCE_LAYOUT_REGISTRY.register()
class VICReg(ForeignLayout):
    NAME = "vicreg"
    PREFIXES = ("backbone.", "")
    MARK = None
    LICENCE = "MIT"


@SOURCE_LAYOUT_REGISTRY.register()
class DenseCL(ForeignLayout):
    NAME = "densecl"
    PREFIXES = ("backbone.", "")
    MARK = "queue2"
    LICENCE = "BSD 2-Clause for academic use, non-commercial"


@SOURCE_LAYOUT_REGISTRY.register()
class SwAV(ForeignLayout):
    NAME = "swav"
    MARK = "prototypes."
    LICENCE = _NON_COMMERCIAL


@SOURCE_LAYOUT_REGISTRY.register()
class VISSL(ForeignLayout):
    NAME = "vissl"
    PREFIXES = ("classy_state_dict.base_model.model.trunk._feature_blocks.",)
    LICENCE = "MIT"


@SOURCE_LAYOUT_REGISTRY.register()
class VirTex(ForeignLayout):
    NAME = "virtex"
    PREFIXES = ("visual.cnn.", "")
    LICENCE = "MIT"


@SOURCE_LAYOUT_REGISTRY.register()
class Torchvision(ForeignLayout):
    NAME = "torchvision"
    SHARED_WITH = (
        "torchvision, timm, VirTex's hub, and the released weights of DenseCL, DINO, VICReg and Barlow Twins have the "
        "same keys: all are converted alike"
    )
    LICENCE = "BSD 3-Clause"

    def licence(self, checkpoint: dict, *, is_named: bool) -> str:
        unknown = "unknown, because weights of several projects have the same keys: name --source"
        return self.LICENCE if is_named else unknown

    def _family_at(self, prefix: str, tensors: Tensors, stated: Flags) -> BackboneDescription | None:
        return None if "MODEL.TIMM.NAME" in stated else super()._family_at(prefix, tensors, stated)


@SOURCE_LAYOUT_REGISTRY.register()
class Timm(ForeignLayout):
    NAME = "timm"
    SHARED_WITH = "others whose networks are timm's, such as DINO's ViTs, have the same keys: all are converted alike"
    LICENCE = "by model, as its card says"

    def default_pixels(self, description: BackboneDescription, stated: Flags) -> tuple[Flags, str]:
        return description.default_pixels(stated)


@SOURCE_LAYOUT_REGISTRY.register()
class Other(ForeignLayout):
    """One network under some prefix."""

    NAME = "other"
    ORDER = 2
    EXPECTED = "a ResNet's layer1.0., or the tensors of the network that --timm NAME names, under any one prefix"
    SHARED_WITH = (
        "its keys do not say whose: VICReg, OpenMMLab, Lightning and others have such: all are converted alike"
    )

    def recognises(self, checkpoint: dict, stated: Flags) -> bool:
        ours = tuple(prefix for family in families() for prefix in family.PREFIXES)  # not a library's names
        prefixes = networks_in(prepared_tensors(checkpoint, stated), stated)
        return any(not prefix.endswith(ours) for prefix in prefixes)

    def prefixes(self, tensors: Tensors, stated: Flags) -> tuple[str, ...]:
        return (only_network(tensors, stated),)
