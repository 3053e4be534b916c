"""Importing this package registers Revisit's backbones and meta-architectures with Detectron2."""

from revisit.modeling import backbone, dilated_c5, knn_moco, moco  # noqa: F401
