"""kNN-MoCo of objects: the pyramid and the box head of a detector learn too, from boxes that two views share.

Boxes in two views as positives: Wei et al., Aligning Pretraining for Detection via Object-Level Contrastive Learning
(SoCo), NeurIPS 2021; neighbours of objects instead of images are ours. Written from the paper.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from revisit.errors import expect
from revisit.keys import POSITIVE, declare, each, real, whole
from revisit.modeling.bn_groups import meta_backbone
from revisit.modeling.distributed import gather_rows, in_global_order
from revisit.modeling.losses.chunked import chunked_losses
from revisit.modeling.losses.contrastive import at_least_float32
from revisit.modeling.meta_arch.knn_moco import KNNMoCo
from revisit.modeling.meta_arch.moco import Encoded
from revisit.modeling.meta_arch.pretraining import positive_passes, unit_rows
from revisit.modeling.momentum import ema_update, momentum_copy
from revisit.modeling.projection_head import ProjectionHead
from revisit.modeling.queue import AlignedQueue

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY, build_roi_heads
from detectron2.structures import Boxes
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage

objects = partial(declare, read_by="ObjectMoCo")
objects("OBJECTS.NUM_BOXES", 8, "R, objects of an image in anchor and large positive.", whole(1, 1024))
objects("OBJECTS.NUM_SMALL_BOXES", 2, "S, objects of an image in anchor and each small positive.", whole(1, 1024))
objects(
    "OBJECTS.SCALE",
    (0.3, 0.8),
    "Root of a box's area, as a share of the root of the area that its two views share.",
    each(real(0, 1, open_low=True), 2, rising=True),
)
objects("OBJECTS.RATIO", (1 / 3, 3.0), "Width / height of a box.", each(POSITIVE, 2, rising=True))
objects(
    "OBJECTS.JITTER",
    0.05,
    "By how much each edge of a box moves, in each view by another draw, as a share of the box's side.",
    real(0, 0.4),
)
objects(
    "OBJECTS.MIN_SIZE",
    8,
    "Least side of a box in either view, and of an image, px. A smaller box is left out, a smaller image replaced.",
    whole(1, 2**14, "px"),
)
objects(
    "OBJECTS.PROPOSALS",
    "",
    "A file in COCO's result format, whose boxes are the objects where they lie in both views; more are drawn where "
    "there are too few. Empty: all are drawn.",
)
objects(
    "OBJECTS.CANONICAL_SIZE",
    96,
    "Root of the area, px, from which on a box is of the pyramid's p4; half of it p3, and so on. Views are smaller "
    "than a detector's images, where it is 224.",
    whole(1, 2**14, "px"),
)
objects("OBJECTS.IMAGE_WEIGHT", 0.0, "Weight of kNN-MoCo's losses of whole images on the same step.", real(0, 1e6))


@META_ARCH_REGISTRY.register()
class ObjectMoCo(KNNMoCo):
    """kNN-MoCo whose rows are objects: a box of the image in the anchor, the key, and in one positive, the query.

    The features before the head are those of the detector's own box head (docs/method.md: Objects). What MoCo does
    with B images, this does with B O objects, of which those without a place in their positive are left out.
    """

    @configurable
    def __init__(self, *, roi_heads: nn.Module, image_weight: float, large_objects: int, **knn_moco: object):
        """The keys OBJECTS.* say what each option means; ``roi_heads`` are a detector's, of whose predictor nothing
        but the width is of use."""
        predictor = roi_heads.box_predictor
        del roi_heads.box_predictor  # no loss would reach it
        super().__init__(row_dim=predictor.cls_score.in_features, **knn_moco)
        *_, self.feature = below(self.backbone).output_shape()
        self.feature_dim = below(self.backbone).output_shape()[self.feature].channels
        self.roi_heads, self.momentum_roi_heads = roi_heads, momentum_copy(roi_heads)
        self.image_weight = image_weight
        self.large_objects = large_objects
        self.pending_images: list[dict[str, Tensor]] = []
        if image_weight:
            self.image_head = ProjectionHead(self.feature_dim, self.embedding_dim)
            self.momentum_image_head = momentum_copy(self.image_head)
            rings = {"keys": self.embedding_dim, "features": self.feature_dim}
            self.image_queue = AlignedQueue(self.queue.length, self.queue.keys.dtype, **rings)

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        options = super().from_config(cfg)
        of_boxes = cfg.clone()
        of_boxes.defrost()
        of_boxes.MODEL.MASK_ON = of_boxes.MODEL.KEYPOINT_ON = False
        roi_heads = build_roi_heads(of_boxes, options["backbone"].output_shape())
        box_pooler(roi_heads).canonical_box_size = cfg.OBJECTS.CANONICAL_SIZE
        own = {"image_weight": cfg.OBJECTS.IMAGE_WEIGHT, "large_objects": cfg.OBJECTS.NUM_BOXES}
        return {**options, "roi_heads": roi_heads, **own}

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        backbone, levels = meta_backbone(cfg), cfg.MODEL.ROI_HEADS.IN_FEATURES
        maps, divisor = backbone.output_shape(), max(1, backbone.size_divisibility)
        lacking = [level for level in levels if level not in maps]
        expect(not lacking, f"MODEL.ROI_HEADS.IN_FEATURES {lacking}: the backbone has {', '.join(maps)}")
        sizes = {"VIEWS.LARGE_SIZE": cfg.VIEWS.LARGE_SIZE}
        sizes |= {"VIEWS.SMALL_SIZE": cfg.VIEWS.SMALL_SIZE} if cfg.VIEWS.NUM_SMALL else {}
        for name, size in sizes.items():
            expect(size % divisor == 0, f"{name} {size}: the backbone's pyramid needs a multiple of {divisor} px")
        apart = f"VIEWS.MAX_IOU {cfg.VIEWS.MAX_IOU}: objects lie in what anchor and positive share; expected 1"
        expect(cfg.VIEWS.MAX_IOU == 1, apart)
        super().check(cfg, share)

    @classmethod
    def keys_of_image(cls, cfg: CfgNode) -> int:
        return cfg.OBJECTS.NUM_BOXES + cfg.VIEWS.NUM_SMALL * cfg.OBJECTS.NUM_SMALL_BOXES

    def training_losses(self, batch: dict) -> dict[str, Tensor]:
        boxes = batch["objects"]  # (B, 2, O, 4)
        finish_keys = self.start_keys(batch["anchor"], boxes[:, 0])
        seen = boxes[:, 1].isfinite().all(dim=2)  # (B, O)
        share = seen.float().mean()  # those left out count as 0: the sum is that of any parts and processes
        encoded, chosen, images = self.encode_objects(batch, seen | ~seen.any())
        keys = finish_keys()
        pending = {name: keys.pop(name) for name in self.queue.names}  # (B of all processes, O, width)
        anchors = pending["keys"].chunk(comm.get_world_size())[comm.get_rank()].flatten(0, 1)[chosen]
        labels = {"label": batch["label"].repeat_interleave(seen.shape[1])} if "label" in batch else {}
        self.keep_keys(labels, {name: rows.flatten(0, 1) for name, rows in pending.items()})
        encoded = replace(encoded, anchors=anchors)
        self.log_monitors({name: rows[chosen] for name, rows in labels.items()}, encoded)
        if self.watched:
            get_event_storage().put_scalar("objects_seen", 100 * share.item())
        losses = {name: share * loss for name, loss in self.losses(encoded).items()}
        return losses | (self.image_losses(images, keys) if self.image_weight else {})

    def encode_objects(self, batch: dict, chosen: Tensor) -> tuple[Encoded, Tensor, list[Tensor]]:
        """Rows of the ``chosen`` (B, O) objects in their positives, with gradient; of each its place among all B O; and
        of every positive image (B, L, Cg), before a head, if it has losses of its own."""
        rows, rows_g, places, images_g, first = [], [], [], [], 0
        numbers = torch.arange(chosen.numel(), device=chosen.device).view_as(chosen)
        for images in positive_passes(batch):
            count = self.large_objects if not first else chosen.shape[1] - self.large_objects
            mine = slice(first, first + count)
            maps, g = self.maps(self.backbone, images.flatten(0, 1))
            per_image = (images.shape[0] * images.shape[1], -1)
            boxes = batch["objects"][:, 1, mine].reshape(*per_image, 4)
            which = chosen[:, mine].reshape(per_image)
            o = self.object_features(self.roi_heads, maps, boxes.nan_to_num(), which)
            rows.append(unit_rows(self.projection_head(o)))
            rows_g.append(unit_rows(o))
            places.append(numbers[:, mine].flatten()[_places(which)])
            images_g += [] if g is None else [g.unflatten(0, images.shape[:2])]
            first += count
        return Encoded(torch.cat(rows)[:, None], torch.cat(rows_g)[:, None]), torch.cat(places), images_g

    @torch.no_grad()
    def encode_anchors(self, images: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        """Of uint8 images and boxes (B, O, 4) unit rows: ``keys`` (B, O, C) and ``features`` (B, O, Co), what the queue
        holds of them, and with losses of images ``image_keys`` (B, C) and ``image_features`` (B, Cg)."""
        maps, g = self.maps(self.momentum_backbone, images)
        all_of_them = torch.ones(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
        o = self.object_features(self.momentum_roi_heads, maps, boxes, all_of_them)
        rows = {"keys": unit_rows(self.momentum_projection_head(o)), "features": unit_rows(o)}
        rows = {name: rows[name].unflatten(0, boxes.shape[:2]) for name in self.queue.names}
        if g is not None:
            rows |= {"image_keys": unit_rows(self.momentum_image_head(g)), "image_features": unit_rows(g)}
        return rows

    def maps(self, backbone: nn.Module, images: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """All maps of uint8 images, and with losses of images the last one below a pyramid, pooled, (B, Cg)."""
        kept: list[dict[str, Tensor]] = []
        hook = below(backbone).register_forward_hook(lambda _, __, maps: kept.append(maps))
        maps = backbone((images - self.pixel_mean) / self.pixel_std)
        hook.remove()
        return maps, kept[0][self.feature].mean(dim=(2, 3)) if self.image_weight else None

    def object_features(self, roi_heads: nn.Module, maps: dict, boxes: Tensor, chosen: Tensor) -> Tensor:
        """o(x, b), (M, Co), of the M ``chosen`` (B, n) of boxes (B, n, 4), px: what a detector's predictor sees."""
        pooler = box_pooler(roi_heads)
        levels = [at_least_float32(maps[name]) for name in roi_heads.in_features]
        with torch.autocast(self.device.type, enabled=False):  # 16 bits do not hold a place
            if isinstance(boxes, FakeTensor):  # of a dry run, whose boxes have no area: as many of each level
                flat = boxes.flatten(0, 1)
                parts = torch.cat([flat[:, :1], flat], dim=1).tensor_split(len(levels))
                each = zip(pooler.level_poolers, levels, parts, strict=True)
                regions = torch.cat([pool(level, part) for pool, level, part in each])
            else:
                counts = chosen.sum(dim=1).tolist()
                parts = boxes.flatten(0, 1)[_places(chosen)].split(counts)
                regions = pooler(levels, [Boxes(part) for part in parts])
        if hasattr(roi_heads, "res5"):
            return roi_heads.res5(regions).mean(dim=(2, 3))
        return roi_heads.box_head(regions).flatten(1)

    def image_losses(self, images_g: list[Tensor], keys: dict[str, Tensor]) -> dict[str, Tensor]:
        """kNN-MoCo's losses of the images themselves, times OBJECTS.IMAGE_WEIGHT; their keys are kept."""
        g = torch.cat(images_g, dim=1)
        self.pending_images.append({name: gather_rows(keys[f"image_{name}"]) for name in self.image_queue.names})
        losses = chunked_losses(
            unit_rows(self.image_head(g.flatten(0, 1))).unflatten(0, g.shape[:2]),
            keys["image_keys"],
            self.image_queue.keys,
            unit_rows(g),
            self.image_queue.features,
            temperature=self.temperature,
            num_neighbors=self.num_neighbors if self.neighbor_weight else 0,
            max_scores=self.max_scores,
        )
        weights = {"loss_inst": self.image_weight, "loss_nn": self.image_weight * self.neighbor_weight}
        return {f"image_{name}": weights[name] * loss for name, loss in losses.items()}

    def feature_map(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """The last map below a pyramid, as other methods have it; (B, 3, H, W) uint8 RGB -> (B, Cg, h, w)."""
        return super().feature_map(below(backbone), images)

    def update_momentum_encoder(self) -> None:
        """One EMA step of g', its pyramid, the box head, and the projection heads."""
        super().update_momentum_encoder()
        ema_update(self.momentum_roi_heads, self.roi_heads, self.momentum)
        if self.image_weight:
            ema_update(self.momentum_image_head, self.image_head, self.momentum)

    def enqueue_pending_keys(self) -> None:
        """Those of objects, and of images where they have losses."""
        super().enqueue_pending_keys()
        parts, self.pending_images = self.pending_images, []
        if parts:
            self.image_queue.enqueue(**{name: in_global_order([part[name] for part in parts]) for name in parts[0]})


def below(backbone: nn.Module) -> nn.Module:
    """What a pyramid is built on, or a backbone without one."""
    return getattr(backbone, "bottom_up", backbone)


def box_pooler(roi_heads: nn.Module) -> nn.Module:
    """Detectron2's ROIPooler of boxes."""
    return roi_heads.pooler if hasattr(roi_heads, "res5") else roi_heads.box_pooler


def _places(chosen: Tensor) -> Tensor:
    """Where a mask is true, (M,); everywhere in a dry run, whose masks have no values."""
    if isinstance(chosen, FakeTensor):
        return torch.arange(chosen.numel(), device=chosen.device)
    return chosen.flatten().nonzero()[:, 0]
