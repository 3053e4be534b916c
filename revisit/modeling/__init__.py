"""Importing this package registers Revisit's backbones, heads and meta-architectures with Detectron2."""

from revisit.modeling import detectors  # noqa: F401
from revisit.modeling.backbone import resnet, timm  # noqa: F401
from revisit.modeling.meta_arch import byol, densecl, depth_estimator, diet, knn_moco, moco, simclr, swav  # noqa: F401
from revisit.modeling.meta_arch.object_moco import ObjectMoCo  # noqa: F401
from revisit.modeling.sem_seg import pixel_heads  # noqa: F401
