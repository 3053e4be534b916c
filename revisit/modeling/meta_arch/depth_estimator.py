"""Depth from a single image: any pixel head with one output, by regression (configs/depth/nyud_deeplab_R50.yaml)."""

from torch import Tensor
from torch.nn import functional as F

from revisit.keys import declare, one_of
from revisit.modeling.sees_pixels import SeesPixels

from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY, build_backbone, build_sem_seg_head
from detectron2.modeling.postprocessing import sem_seg_postprocess
from detectron2.structures import ImageList

LOSSES = {"mse": F.mse_loss, "l1": F.l1_loss}


declare("MODEL.DEPTH.LOSS", "mse", "Over the pixels of known depth.", one_of(*LOSSES), read_by="DepthEstimator")


def depth_loss(predicted: Tensor, depth: Tensor, kind: str) -> Tensor:
    """Mean squared (``mse``) or absolute (``l1``) error of (N, H, W) metres over the pixels whose depth is known,
    not 0; of a batch without any it is 0."""
    valid = depth > 0
    return LOSSES[kind](predicted[valid], depth[valid], reduction="sum") / valid.sum().clamp(min=1)


@META_ARCH_REGISTRY.register()
class DepthEstimator(SeesPixels):
    """Like Detectron2's SemanticSegmentor, but its head's single logit is a depth in metres."""

    def __init__(self, cfg: CfgNode):
        super().__init__(cfg)
        self.backbone = build_backbone(cfg)
        self.head = build_sem_seg_head(cfg, self.backbone.output_shape())  # of NUM_CLASSES 1
        self.loss = cfg.MODEL.DEPTH.LOSS

    def forward(self, batched_inputs: list[dict]) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Detectron2's contract.

        Args:
            batched_inputs: dicts with ``image`` (3, H, W) and, in training, ``depth`` float32 (H, W) metres, 0 where it
                is missing; in evaluation perhaps ``height`` and ``width``, the size of the answer.

        Returns:
            {"loss_depth": scalar} in training, else {"depth": float32 (height, width) metres} for each.
        """
        images = ImageList.from_tensors([self.normalized(x["image"]) for x in batched_inputs])
        predicted = self.head.predict(self.backbone(images.tensor), images.tensor.shape[-2:])[:, 0]
        if self.training:
            depths = ImageList.from_tensors([x["depth"].to(self.device) for x in batched_inputs]).tensor
            return {"loss_depth": self.head.loss_weight * depth_loss(predicted, depths, self.loss)}
        answers = []
        for depth, size, x in zip(predicted, images.image_sizes, batched_inputs, strict=True):
            height = x.get("height", size[0])
            width = x.get("width", size[1])
            answers.append({"depth": sem_seg_postprocess(depth[None], size, height, width)[0]})
        return answers
