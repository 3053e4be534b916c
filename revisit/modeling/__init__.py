"""Importing this package registers Revisit's backbones and meta-architectures with Detectron2."""

from revisit.modeling import (  # noqa: F401
    backbone,
    c4_roi_heads,
    deeplab_head,
    densecl,
    depth,
    dilated_c5,
    fcn_head,
    knn_moco,
    moco,
)
