"""Importing this package registers Revisit's backbones, heads and meta-architectures with Detectron2."""

from revisit.modeling import detectors  # noqa: F401
from revisit.modeling.backbone import resnet  # noqa: F401
from revisit.modeling.meta_arch import depth_estimator, knn_moco, moco  # noqa: F401
from revisit.modeling.sem_seg import pixel_heads  # noqa: F401
