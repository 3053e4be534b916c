"""kNN-MoCo whose queue knows the groups of its rows, or whose neighbours find back (docs/method.md: Groups)."""

import logging
from functools import partial

import torch
from torch import Tensor

from projects.Objectives.continued import Continues
from projects.Objectives.grouped_losses import RULES, Cycle, Groups, Mined, grouped_losses, mine
from projects.Objectives.image_groups import NO_GROUP, WithGroups
from projects.Objectives.object_moco import ObjectMoCo
from revisit.data.views.annotation import ViewAnnotator
from revisit.errors import expect
from revisit.keys import SWITCH, declare, one_of
from revisit.modeling.distributed import gather_rows, own_share
from revisit.modeling.losses.queue_scores import nearest_rows
from revisit.modeling.meta_arch.knn_moco import KNNMoCo
from revisit.modeling.meta_arch.moco import Encoded

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.utils.events import get_event_storage

logger = logging.getLogger(__name__)

grouped = partial(declare, read_by="GroupedKNNMoCo")
grouped(
    "NEIGHBORS.GROUPS",
    "",
    "Which images belong together: a CSV file with the columns file_name and group, self: each image is a group, "
    "patient: by the PatientID of DICOM files, or file: windows of one scan. '': no groups.",
)
grouped(
    "NEIGHBORS.GROUP_RULE",
    "exclude",
    "Rows of an image's own group are neither negatives nor neighbours (exclude), neighbours first and no negatives "
    "(attract), or negatives and never neighbours (across).",
    one_of(*RULES),
)
grouped("NEIGHBORS.CYCLE", False, "A neighbour counts only if its nearest anchor of the batch is the image's.", SWITCH)


@META_ARCH_REGISTRY.register()
class GroupedKNNMoCo(KNNMoCo):
    """kNN-MoCo with NEIGHBORS.GROUPS and NEIGHBORS.CYCLE; with NEIGHBORS.WEIGHT 0 it is MoCo with groups.

    ``group_of_row`` (K,), int64, is the group of each row's image; -1: the random rows of the start.
    """

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        options = cfg.NEIGHBORS
        self.has_groups = options.GROUPS != ""
        self.has_cycle = options.CYCLE
        self.rule = RULES[options.GROUP_RULE]
        self.register_buffer("group_of_row", torch.full((self.queue.length,), NO_GROUP))

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        options = cfg.NEIGHBORS
        parts = cfg.SOLVER.ACCUMULATION_STEPS
        plain = not options.GROUPS and not options.CYCLE
        expect(
            plain or not options.ENQUEUE_FIRST,
            "NEIGHBORS.ENQUEUE_FIRST scores neighbours by rows of other images: expected False with "
            "NEIGHBORS.GROUPS or NEIGHBORS.CYCLE",
        )
        expect(
            not options.CYCLE or parts == 1,
            f"NEIGHBORS.CYCLE looks for anchors in the whole batch: expected SOLVER.ACCUMULATION_STEPS 1, not {parts}",
        )

    @classmethod
    def warn(cls, cfg: CfgNode, num_images: int, share: int) -> None:
        super().warn(cfg, num_images, share)
        options = cfg.NEIGHBORS
        is_across = bool(options.GROUPS) and options.GROUP_RULE == "across"
        if not options.WEIGHT and (options.CYCLE or is_across):
            logger.warning("NEIGHBORS.WEIGHT 0: without L_nn, NEIGHBORS.CYCLE and the rule across change nothing")

    @classmethod
    def view_annotator(cls, cfg: CfgNode) -> ViewAnnotator:
        other = super().view_annotator(cfg)
        return WithGroups(other, cfg.NEIGHBORS.GROUPS) if cfg.NEIGHBORS.GROUPS else other

    def keep_keys(self, batch: dict, rows: dict[str, Tensor]) -> None:
        if self.has_groups:
            groups = gather_rows(batch["group"])
            num_keys = len(next(iter(rows.values())))
            rows = rows | {"group": groups.repeat_interleave(num_keys // len(groups))}
        super().keep_keys(batch, rows)

    def enqueue(self, rows: dict[str, Tensor]) -> None:
        if self.has_groups:
            groups = rows.pop("group")
            self.group_of_row[self.queue.next_rows(len(groups))] = groups
        super().enqueue(rows)

    def losses(self, encoded: Encoded) -> dict[str, Tensor]:
        """L_inst and, once it has joined, lambda L_nn, on the queues as they are before this step."""
        if not self.has_groups and not self.has_cycle:
            return super().losses(encoded)
        groups = self.groups_of(encoded.positives)
        with torch.autocast(self.device.type, enabled=False):
            mined = self.mined(encoded, groups) if self.neighbor_weight else None
            losses = grouped_losses(
                encoded.positives,
                encoded.anchors,
                self.queue.keys,
                groups,
                mined,
                temperature=self.temperature,
                max_scores=self.max_scores,
            )
        if "loss_nn" in losses:
            losses["loss_nn"] = self.weighted(losses["loss_nn"])
        return losses

    def mined(self, encoded: Encoded, groups: Groups | None) -> Mined:
        """The neighbours of all positives; the share that the cycle keeps is logged as ``cycle_kept``."""
        mined = self._mined_for(*self.mining_space(encoded.positives, encoded.positives_g), groups)
        if self.has_cycle and self.watched:
            share = mined.counts.float().mean()
            get_event_storage().put_scalar("cycle_kept", 100 * share.item())
        return mined

    def _mined_for(self, rows: Tensor, ring: str, groups: Groups | None) -> Mined:
        """The neighbours of rows (B, L, W) in a ring, and which of them count."""
        cycle = None
        if self.has_cycle:
            anchors = self.pending_keys[-1][ring]
            places = torch.arange(len(anchors), device=anchors.device)
            cycle = Cycle(anchors, self._of_positives(places, rows))
        queue = getattr(self.queue, ring)
        return mine(rows.flatten(0, 1), queue, self.num_neighbors, groups, cycle, self.max_scores)

    def groups_of(self, positives: Tensor) -> Groups | None:
        """Of positives (B, L, C) of this process."""
        if not self.has_groups:
            return None
        of_positives = self._of_positives(self.pending_keys[-1]["group"], positives)
        return Groups(of_positives, self.group_of_row, self.rule)

    @staticmethod
    def _of_positives(of_anchors: Tensor, positives: Tensor) -> Tensor:
        """What the anchors of all processes have, (N,), for each positive (B, L, ...) of this one: (B * L,)."""
        return own_share(of_anchors).repeat_interleave(positives.shape[1])

    def monitors(self, batch: dict, encoded: Encoded) -> dict[str, Tensor]:
        """kNN-MoCo's; with groups ``group_purity``, by whatever rule; ``counted_purity`` where data have classes."""
        values = super().monitors(batch, encoded)
        if self.has_groups:
            large = encoded.positives[:, 0]
            large_g = encoded.positives_g[:, 0]
            rows, ring = self.mining_space(large, large_g)
            nearest = nearest_rows(rows, getattr(self.queue, ring), self.num_neighbors, self.max_scores)
            own = own_share(self.pending_keys[-1]["group"])
            is_same = self.group_of_row[nearest] == own[:, None]
            if (is_shown := large.any(dim=1)).any():  # rows of objects that are left out are 0
                values["group_purity"] = 100 * is_same[is_shown].float().mean()
        if "label" in batch and (self.has_groups or self.has_cycle):
            values["counted_purity"] = self._counted_purity(encoded, batch["label"])
        return values

    @torch.no_grad()
    def _counted_purity(self, encoded: Encoded, labels: Tensor) -> Tensor:
        """Percent of the neighbours that count which have the class of their image, given labels (B,); 0 where none
        counts."""
        large = encoded.positives[:, :1]
        rows, ring = self.mining_space(large, encoded.positives_g[:, :1])
        neighbors, counts = self._mined_for(rows, ring, self.groups_of(rows))
        counts = counts & large.any(dim=2)  # rows of objects that are left out are 0
        of_rows = labels.repeat_interleave(len(rows) // len(labels))  # an image's for each of its objects
        is_same = counts & (self.queue.labels[neighbors] == of_rows[:, None])
        return 100 * is_same.sum() / counts.sum().clamp(min=1)


@META_ARCH_REGISTRY.register()
class ContinuedGroupedKNNMoCo(Continues, GroupedKNNMoCo):
    """Continues from good weights."""


@META_ARCH_REGISTRY.register()
class GroupedObjectMoCo(GroupedKNNMoCo, ObjectMoCo):
    """Rows are objects, each of its image's group."""

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        super().check(cfg, share)
        weight = cfg.OBJECTS.IMAGE_WEIGHT
        expect(not weight, f"OBJECTS.IMAGE_WEIGHT {weight}: groups are of one queue: expected 0.0")
