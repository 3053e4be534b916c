"""Importing this package registers Revisit's backbones, heads and meta-architectures with Detectron2."""

from revisit.modeling.backbone import dilated_c5, resnet  # noqa: F401
from revisit.modeling.meta_arch import densecl, depth_estimator, knn_moco, moco  # noqa: F401
from revisit.modeling.roi_heads import res5_norm  # noqa: F401
from revisit.modeling.sem_seg import pixel_heads  # noqa: F401
