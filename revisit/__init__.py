"""Revisit: contrastive pretraining of Detectron2 backbones.

Importing it is cheap. What it adds to Detectron2 is registered by importing ``revisit.modeling`` and ``revisit.data``.
"""

from revisit import compat

compat.apply_before_detectron2()

__version__ = "0.1.0"
