"""Importing this package registers Revisit's backbones, heads and meta-architectures with Detectron2."""

from revisit.modeling import detectors  # noqa: F401
from revisit.modeling.backbone import resnet, timm  # noqa: F401
from revisit.modeling.meta_arch import (  # noqa: F401
    byol,
    densecl,
    depth_estimator,
    diet,
    knn_moco,
    moco,
    object_moco,
    simclr,
    swav,
)
from revisit.modeling.sem_seg import pixel_heads  # noqa: F401
