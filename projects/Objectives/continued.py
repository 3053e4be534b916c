"""Methods that continue from good weights without losing what they know (docs/method.md: Continuing)."""

from functools import partial

import torch
from torch import Tensor, nn

from projects.Objectives.diet import DIET
from projects.Objectives.relations import RELATIONS
from projects.Objectives.simclr import SimCLR
from revisit.checkpoint.named_weights import expected_weights
from revisit.errors import expect
from revisit.keys import SWITCH, declare, integer, number, one_of
from revisit.modeling.backbone.description import describe, undescribed
from revisit.modeling.bn_groups import batch_norms
from revisit.modeling.meta_arch.knn_moco import KNNMoCo
from revisit.modeling.meta_arch.pretraining import Pretraining
from revisit.network.frozen_network import SameNetwork, load_frozen
from revisit.network.network import Network

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from detectron2.modeling import META_ARCH_REGISTRY

WEIGHTS = "MODEL.WEIGHTS"
continues = partial(declare, read_by="Continues")
continues(
    "CONTINUE.LAYER_DECAY",
    1.0,
    "d: block n of N, the stem is 0, learns at d^(N - n) times the rate of the head.",
    number(0, 1, open_low=True),
    may_change=True,
)
continues("CONTINUE.TRAIN_BLOCKS", 0, "The last blocks, which alone learn; 0: all.", integer(unit="blocks"))
continues(
    "CONTINUE.FROZEN_STATISTICS",
    False,
    "Normalise by the statistics that batch norm has from the weights; those of blocks that do not learn always stay.",
    SWITCH,
)
continues("KEEP.WEIGHT", 0.0, "Of the loss that holds the relations which the start has found.", number())
continues("KEEP.RELATIONS", "images", "Between which places: of a batch, or of a view.", one_of(*RELATIONS))


class Continues(Pretraining):
    """What a method adds that continues from MODEL.WEIGHTS, the start: ``class ContinuedX(Continues, X)``.

    - The last blocks of the network learn, the earlier the slower; the blocks are those of the family's description.
    - ``loss_keep`` is KEEP.WEIGHT times what the relations between images, or the cells of a view, differ from those
      that the frozen start finds in the same views: whatever views the method gives its backbone with gradient.
    - At the end the network is compared with its start, which is given back where it was better.
    """

    continues = True

    def __init__(self, cfg: CfgNode):
        expect(cfg.MODEL.WEIGHTS != "", f"{WEIGHTS} is empty, and nothing can continue: expected {expected_weights()}")
        super().__init__(cfg)
        self.layer_decay = cfg.CONTINUE.LAYER_DECAY
        self.frozen_statistics = cfg.CONTINUE.FROZEN_STATISTICS
        self.keep_weight = cfg.KEEP.WEIGHT
        self.difference = RELATIONS[cfg.KEEP.RELATIONS]
        self._seen: list[tuple[Tensor, Tensor]] = []  # images and maps of this step
        self._start = (load_frozen(cfg, WEIGHTS),)  # no part of this module: no checkpoint has it
        self.blocks = blocks_of(self)
        trained = min(cfg.CONTINUE.TRAIN_BLOCKS or len(self.blocks), len(self.blocks))
        frozen = [name for block in self.blocks[: len(self.blocks) - trained] for name in block]
        self.frozen_layers = {name.rpartition(".")[0] for name in frozen}
        for name in frozen:
            self.backbone.get_parameter(name).requires_grad_(False)

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        parts = cfg.SOLVER.ACCUMULATION_STEPS
        keep = cfg.KEEP
        expect(
            parts == 1 or not keep.WEIGHT or keep.RELATIONS != "images",
            f"SOLVER.ACCUMULATION_STEPS {parts}: KEEP.RELATIONS images are of whole batches; expected 1",
        )

    def hooks(self, cfg: CfgNode, iterations_per_epoch: int) -> list[HookBase]:
        return [*super().hooks(cfg, iterations_per_epoch), SameNetwork(self.start, WEIGHTS)]

    def rate_factors(self) -> dict[str, float]:
        depth = len(self.blocks)
        return {
            f"backbone.{name}": self.layer_decay ** (depth - n) for n, block in enumerate(self.blocks) for name in block
        }

    def train(self, mode: bool = True) -> nn.Module:
        """Batch norm of the encoders stays in evaluation mode where its statistics stay."""
        super().train(mode)
        for encoder in self.encoders():
            stays = {id(encoder.get_submodule(name)) for name in self.frozen_layers}
            for layer in batch_norms(encoder):
                layer.train(mode and not (self.frozen_statistics or id(layer) in stays))
        return self

    @property
    def start(self) -> Network:
        """On the model's device."""
        (start,) = self._start
        return start if start.mean.device == self.device else start.to(self.device)

    def encoders(self) -> list[nn.Module]:
        """The backbone, and its momentum copy where there is one."""
        return [part for name, part in self.named_children() if name.endswith("backbone")]

    def give_back_start(self) -> None:
        """Put the start's values into all encoders."""
        for encoder in self.encoders():
            encoder.load_state_dict(self.start.network.state_dict(), strict=False)  # counters may be missing

    def feature_map(self, backbone: nn.Module, images: Tensor) -> Tensor:
        maps = super().feature_map(backbone, images)
        if self.keep_weight and backbone is self.backbone and torch.is_grad_enabled():
            self._seen.append((images, maps))
        return maps

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        self._seen = []
        losses = super().training_losses(batch)
        if self.keep_weight:
            losses["loss_keep"] = self.keep_weight * self._lost()
        return losses

    def _lost(self) -> Tensor:
        """How far the relations of this step's views are from those that the start finds."""
        images, maps = zip(*self._seen, strict=True)
        self._seen = []
        theirs = [self.start.last_map(each) for each in images]
        with torch.autocast(self.device.type, enabled=False):
            return self.difference(list(maps), theirs)


def blocks_of(model: Pretraining) -> list[list[str]]:
    """Names of its backbone's parameters by depth. Raises UserError where no description says them."""
    description = describe(model)
    kind = type(model.backbone).__name__
    if description is None:
        raise undescribed(f"the backbone, a {kind},")
    expect(description.parts(model.backbone) == [""], f"the backbone is a {kind}: expected a plain {description.NAME}")
    return description.blocks(model.backbone)


@META_ARCH_REGISTRY.register()
class ContinuedSimCLR(Continues, SimCLR):
    """SimCLR that continues."""


@META_ARCH_REGISTRY.register()
class ContinuedDIET(Continues, DIET):
    """DIET that continues."""


@META_ARCH_REGISTRY.register()
class ContinuedKNNMoCo(Continues, KNNMoCo):
    """kNN-MoCo that continues; with NEIGHBORS.WEIGHT 0 it is MoCo."""
