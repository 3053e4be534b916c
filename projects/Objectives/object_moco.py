"""kNN-MoCo of objects: the pyramid and the box head of a detector learn too, from boxes that two views share.

Boxes in two views as positives: Wei et al., Aligning Pretraining for Detection via Object-Level Contrastive Learning
(SoCo), NeurIPS 2021. Objects of other images as positives: Xie et al., Unsupervised Object-Level Representation
Learning from Scene Images (ORL), NeurIPS 2021, before training; Lebailly et al., CrIBo, ICLR 2024, in training. k of
them in a queue, as kNN-MoCo has images, are ours. Written from the papers.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from projects.Objectives.object_boxes import ObjectBoxes
from revisit.errors import expect
from revisit.keys import PIXELS, declare, integer, list_of, number
from revisit.modeling.backbone.fpn import below
from revisit.modeling.bn_groups import meta_backbone
from revisit.modeling.distributed import gather_rows
from revisit.modeling.losses.queue_scores import at_least_float32
from revisit.modeling.meta_arch.knn_moco import KNNMoCo
from revisit.modeling.meta_arch.moco import Encoded
from revisit.modeling.meta_arch.pretraining import positive_passes, unit_rows
from revisit.modeling.momentum import momentum_copy
from revisit.modeling.projection_head import ProjectionHead
from revisit.modeling.queue import AlignedQueue

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY, build_roi_heads
from detectron2.modeling.poolers import ROIPooler, assign_boxes_to_levels
from detectron2.structures import Boxes

objects = partial(declare, read_by="ObjectMoCo")
_SHARES = list_of(number(0, 1, open_low=True), 2, rising=True)
objects("OBJECTS.NUM_BOXES", 8, "R, objects in anchor and large positive; R / 4 in each small one.", integer(1, 1024))
objects("OBJECTS.SCALE", (0.3, 0.8), "Root of a box's area over the root of the area that two views share.", _SHARES)
objects("OBJECTS.JITTER", 0.05, "By how much a box's edges move in a view, as a share of its side.", number(0, 0.4))
objects("OBJECTS.PROPOSALS", "", "A file with boxes, in COCO's result format; if too few are visible, more are drawn.")
objects("OBJECTS.DRAWN_SHARE", 0.0, "Of the boxes, at least how many are drawn, next to proposals.", number(0, 1))
objects("OBJECTS.CANONICAL_SIZE", 96, "Root of the area from which on a box is of p4; in a detector 224 px.", PIXELS)
objects("OBJECTS.IMAGE_WEIGHT", 0.0, "mu, weight of kNN-MoCo's losses of whole images in a step.", number(0, 1e6))
# Detectron2's keys that make a box head, below MODEL.ROI_BOX_HEAD.
_OF_BOX_HEAD = [f"MODEL.ROI_BOX_HEAD.{key}" for key in ("NAME", "NORM", "NUM_*", "*_DIM", "POOLER_*")]


@dataclass(frozen=True)
class ObjectEncoded(Encoded):
    """``Encoded`` with a row for each of the B O objects and, where images have losses, theirs."""

    images: Encoded | None = None
    image_keys: Tensor | None = None  # (B, C + Cg) of the anchors, after and before the head, without gradient


@META_ARCH_REGISTRY.register()
class ObjectMoCo(KNNMoCo):
    """kNN-MoCo whose rows are objects: a box of the image in the anchor, the key, and in one positive, the query.

    What MoCo does with B images, this does with B O objects; their features before the head are those of a detector's
    own box head (docs/method.md: Objects).
    """

    also_reads = ("MODEL.ROI_HEADS.NAME", "MODEL.ROI_HEADS.IN_FEATURES", *_OF_BOX_HEAD)
    key_inputs = ("anchor", "anchor_objects")

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        shapes = below(self.backbone).output_shape()
        *_, (self.feature, shape) = shapes.items()
        self.feature_dim = shape.channels
        self.momentum_roi_heads = momentum_copy(self.roi_heads)
        self.image_weight = cfg.OBJECTS.IMAGE_WEIGHT
        self.num_boxes = cfg.OBJECTS.NUM_BOXES
        if self.image_weight:
            self.image_head = ProjectionHead(self.feature_dim, self.embedding_dim)
            self.momentum_image_head = momentum_copy(self.image_head)
            self.image_queue = AlignedQueue(
                _images_in_queue(cfg), self.queue.keys.dtype, keys=self.embedding_dim, features=self.feature_dim
            )

    def build_before_head(self, cfg: CfgNode) -> int:
        """Build a detector's RoI heads without their predictor, which no loss would reach."""
        self.roi_heads = heads = build_roi_heads(cfg, self.backbone.output_shape())
        heads.pooler = getattr(heads, "box_pooler", None) or heads.pooler  # of those with res5 in them
        heads.pooler.canonical_box_size = cfg.OBJECTS.CANONICAL_SIZE
        width = heads.box_predictor.cls_score.in_features
        del heads.box_predictor
        return width

    @classmethod
    def check(cls, cfg: CfgNode, share: int) -> None:
        views = cfg.VIEWS
        divisor = max(1, meta_backbone(cfg).size_divisibility)
        sizes = ("LARGE_SIZE", "SMALL_SIZE") if views.NUM_SMALL > 0 else ("LARGE_SIZE",)
        for name in sizes:
            expect(
                views[name] % divisor == 0,
                f"VIEWS.{name} {views[name]}: the backbone's pyramid needs a multiple of {divisor} px",
            )
        expect(views.MAX_IOU == 1, f"VIEWS.MAX_IOU {views.MAX_IOU}: expected 1, as objects lie in what views share")
        expect(
            not (cfg.NEIGHBORS.ENQUEUE_FIRST and cfg.OBJECTS.IMAGE_WEIGHT),
            "NEIGHBORS.ENQUEUE_FIRST mines in one queue: expected OBJECTS.IMAGE_WEIGHT 0.0 with it",
        )
        if cfg.OBJECTS.IMAGE_WEIGHT:
            k = cfg.NEIGHBORS.NUM_NEIGHBORS
            rows = _images_in_queue(cfg)
            expect(k <= rows, f"NEIGHBORS.NUM_NEIGHBORS {k}: with OBJECTS.IMAGE_WEIGHT the queue holds {rows} images")
        share_drawn = cfg.OBJECTS.DRAWN_SHARE
        expect(
            cfg.OBJECTS.PROPOSALS or not share_drawn,
            f"OBJECTS.DRAWN_SHARE {share_drawn}: expected 0.0 without OBJECTS.PROPOSALS, as all are drawn",
        )
        super().check(cfg, share)

    @classmethod
    def view_annotator(cls, cfg: CfgNode) -> ObjectBoxes:
        options = cfg.OBJECTS
        return ObjectBoxes(options.NUM_BOXES, options.SCALE, options.JITTER, options.PROPOSALS, options.DRAWN_SHARE)

    @classmethod
    def keys_of_image(cls, cfg: CfgNode) -> int:
        in_large = cfg.OBJECTS.NUM_BOXES
        in_small = max(1, in_large // 4)
        return in_large + cfg.VIEWS.NUM_SMALL * in_small

    def encode_positives(self, batch: dict) -> ObjectEncoded:
        """Rows of the objects in their positives; zero where the positive does not show the object."""
        boxes = batch["positive_objects"]
        shown = boxes.isfinite().all(dim=-1).flatten()
        in_large_and_small = boxes.nan_to_num().tensor_split([self.num_boxes], dim=1)
        by_pass = zip(positive_passes(batch), in_large_and_small, strict=False)  # there may be no small views
        features = [self._in_views(views, boxes_of_views) for views, boxes_of_views in by_pass]
        o, g = (torch.cat(of_passes, dim=1) for of_passes in zip(*features, strict=True))
        o = o.flatten(0, 1)
        projected = unit_rows(self.projection_head(o))
        rows = projected * shown[:, None]  # of zeros: no gradient
        images = Encoded(unit_rows(self.image_head(g)), unit_rows(g)) if self.image_weight else None
        return ObjectEncoded(rows[:, None], unit_rows(o)[:, None], images=images)

    def _in_views(self, views: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """``object_features`` of views (B, n, 3, H, W), each with its share of boxes (B, m, 4).

        Returns (B, m, Co) and (B, n, Cg).
        """
        batch, count = views.shape[:2]
        by_view = boxes.reshape(batch * count, -1, 4)
        images = views.flatten(0, 1)
        o, g = self.object_features(self.backbone, self.roi_heads, images, by_view)
        o = o.unflatten(0, (batch, count)).flatten(1, 2)
        return o, g.unflatten(0, (batch, count))

    @torch.no_grad()
    def encode_anchors(self, images: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        """Of uint8 images and boxes (B, O, 4) unit rows: ``keys`` (B, O, C) and ``features`` (B, O, Co), what the queue
        holds of them, and with losses of images ``image_keys`` (B, C + Cg)."""
        o, g = self.object_features(self.momentum_backbone, self.momentum_roi_heads, images, boxes)
        both = {"keys": unit_rows(self.momentum_projection_head(o)), "features": unit_rows(o)}
        rows = {name: both[name] for name in self.queue.names}
        if self.image_weight:
            keys = unit_rows(self.momentum_image_head(g))
            features = unit_rows(g)
            rows["image_keys"] = torch.cat([keys, features], dim=1)
        return rows

    def object_features(
        self, backbone: nn.Module, roi_heads: nn.Module, images: Tensor, boxes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a detector's predictor would see of each box, and what MoCo learns from of each image.

        Args:
            images: (B, 3, H, W) uint8.
            boxes: (B, n, 4) px.

        Returns:
            o(x, b), (B, n, Co); and g(x) of the last map below the pyramid, (B, Cg), or (B, 0) where images have no
            losses.
        """
        maps, g = self._maps_and_feature(backbone, images)
        with torch.autocast(self.device.type, enabled=False):  # 16 bits do not hold a place
            levels = [at_least_float32(maps[name]) for name in roi_heads.in_features]
            regions = pooled_regions(roi_heads.pooler, levels, boxes)
        if hasattr(roi_heads, "res5"):
            o = roi_heads.res5(regions).mean(dim=(2, 3))
        else:
            o = roi_heads.box_head(regions).flatten(1)
        return o.unflatten(0, boxes.shape[:2]), g

    def _maps_and_feature(self, backbone: nn.Module, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The pyramid's maps of uint8 images, and g of the map below it, (B, Cg), or (B, 0)."""
        pixels = self.normalized(images)
        if not self.image_weight:  # with MODEL.COMPILE a hook means another compilation
            return backbone(pixels), pixels.new_empty(len(images), 0)
        kept: list[dict[str, Tensor]] = []
        hook = below(backbone).register_forward_hook(lambda module, inputs, maps: kept.append(maps))
        maps = backbone(pixels)
        hook.remove()
        return maps, kept[0][self.feature].mean(dim=(2, 3))

    def losses(self, encoded: ObjectEncoded) -> dict[str, Tensor]:
        """Those of objects, and of images where they have a weight; the images' keys wait with the objects'."""
        if not self.image_weight:
            return super().losses(encoded)
        anchors = encoded.image_keys[:, : self.embedding_dim]
        images = replace(encoded.images, anchors=anchors)
        of_images = super().losses(images, self.image_queue)
        self.pending_keys[-1]["image_keys"] = gather_rows(encoded.image_keys)
        weighted = {f"image_{name}": self.image_weight * loss for name, loss in of_images.items()}
        return super().losses(encoded) | weighted

    def monitors(self, batch: dict, encoded: ObjectEncoded) -> dict[str, Tensor]:
        """kNN-MoCo's, of the objects that their positives show, if any, and the share of those."""
        shown = batch["positive_objects"].isfinite().all(dim=-1)
        share = {"objects_seen": 100 * shown.float().mean()}
        if not shown.any():
            return share
        of_all = (encoded.positives, encoded.positives_g, encoded.anchors)
        of_shown = Encoded(*(rows[shown.flatten()] for rows in of_all))
        labels = {}
        if "label" in batch:
            of_objects = batch["label"][:, None].expand_as(shown)
            labels["label"] = of_objects[shown]
        return super().monitors(labels, of_shown) | share

    def feature_map(self, backbone: nn.Module, images: Tensor) -> Tensor:
        return super().feature_map(below(backbone), images)  # without the pyramid, as other methods have it

    def enqueue(self, rows: dict[str, Tensor]) -> None:
        if self.image_weight:
            widths = [self.embedding_dim, self.feature_dim]
            keys, features = rows.pop("image_keys").split(widths, dim=1)
            self.image_queue.enqueue(keys=keys, features=features)
        super().enqueue(rows)


def _images_in_queue(cfg: CfgNode) -> int:
    """How many images the objects in the queue are of: as many have keys of their own."""
    return cfg.MOCO.QUEUE_SIZE // ObjectMoCo.keys_of_image(cfg)


def pooled_regions(pooler: ROIPooler, levels: list[Tensor], boxes: Tensor) -> Tensor:
    """What a detector's pooler cuts out of the levels of a pyramid for boxes (B, n, 4) px: (B * n, C, h, w).

    Every box is pooled from every level, with an area in its own alone, so the others take few samples. ROIPooler's way
    of choosing waits for the device, and a dry run's boxes have no values to choose by.
    """
    flat = boxes.flatten(0, 1)
    level = assign_boxes_to_levels(
        [Boxes(flat)], pooler.min_level, pooler.max_level, pooler.canonical_box_size, pooler.canonical_level
    )[:, None]
    batch, count = boxes.shape[:2]
    image = torch.arange(batch, device=flat.device).repeat_interleave(count)
    with_image = torch.cat([image[:, None], flat], dim=1)
    regions = 0
    for n, (pool, maps) in enumerate(zip(pooler.level_poolers, levels, strict=True)):
        own = (level == n).float()
        pooled = pool(maps, own * with_image)
        regions = regions + own[..., None, None] * pooled
    return regions
